//! The verbs `man` and `completions`: what the command line says of itself, for packages.

use std::io::Write;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;
use guest_agent_cli_kit::man::{self, Manual, Section};
use guest_fleet::cli::failure::Failure;

/// The head of the pages, and the sections of the program's page.
const MANUAL: Manual = Manual {
    title: "Guest fleet",
    source: concat!("guest-fleet ", env!("CARGO_PKG_VERSION")),
    sections: &SECTIONS,
};

const SECTIONS: [Section; 3] = [
    (
        "EXIT STATUS",
        &[
            ("0", "The command succeeded."),
            (
                "1",
                "It failed, or found a difference. The reason is on standard error: one line, then its causes.",
            ),
            ("2", "The command line is not valid."),
            ("3", "The ledger cannot be reached."),
            ("4", "It is not known whether it happened, or it did not happen in time."),
        ],
    ),
    (
        "ENVIRONMENT",
        &[
            ("GUEST_FLEET_LEDGER", "The ledger of the fleet; --ledger has precedence."),
            (
                "RUST_LOG",
                "What is logged: a level, or directives; --log-level of serve has precedence.",
            ),
            ("NO_COLOR", "No colour, when it is set to any value."),
        ],
    ),
    (
        "FILES",
        &[
            ("/var/lib/guest-fleet/ledger.db", "The ledger of a fleet on one machine."),
            ("/etc/guest-fleet/guest-fleet.env", "The flags of the service."),
        ],
    ),
];

/// Writes a manual page for the program and for each verb into a directory, and prints how many.
pub(crate) fn man(program: Command, directory: &Path, out: &mut dyn Write) -> Result<(), Failure> {
    let pages = MANUAL.pages(program)?;
    let written = man::write(&pages, directory).map_err(|(path, error)| Failure {
        causes: vec![error.to_string()],
        ..Failure::failed(format_args!("failed to write {}", path.display()))
    })?;
    Ok(writeln!(out, "{}: {} pages", directory.display(), written.len())?)
}

/// Writes what a shell reads to complete command lines.
pub(crate) fn completions(mut program: Command, shell: Shell, out: &mut dyn Write) {
    let name = program.get_name().to_owned();
    clap_complete::generate(shell, &mut program, name, out);
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn every_verb_has_a_page_and_is_completed() {
        let directory = tempfile::tempdir().expect("a directory");
        man(Cli::command(), directory.path(), &mut Vec::new()).expect("written");
        let page = |name: &str| {
            fs::read_to_string(directory.path().join(name)).unwrap_or_else(|_| panic!("{name}"))
        };
        assert!(page("guest-fleet.1").contains("guest\\-fleet\\-serve(1)"));
        assert!(page("guest-fleet-token-create.1").contains("\\-\\-uses"));
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            completions(Cli::command(), shell, &mut script);
            let script = String::from_utf8(script).expect("text");
            assert!(script.contains("upload-token-file"), "{shell}");
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
