//! The verbs `man` and `completions`: what the command line says of itself, for packages.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use guest_fleet::cli::failure::{Exit, Failure};

/// Writes a manual page for the program and for each verb into a directory, and prints how many.
pub(crate) fn man(program: Command, directory: &Path, out: &mut dyn Write) -> Result<(), Failure> {
    let mut command = program.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    let failed = |error: io::Error| {
        Failure::new(Exit::Failed, format_args!("failed to write {}: {error}", directory.display()))
    };
    collect(&command, &mut pages).map_err(failed)?;
    fs::create_dir_all(directory).map_err(failed)?;
    for (name, text) in &pages {
        fs::write(directory.join(name), text).map_err(failed)?;
    }
    Ok(writeln!(out, "{}: {} pages", directory.display(), pages.len())?)
}

fn collect(command: &Command, pages: &mut Vec<(PathBuf, Vec<u8>)>) -> io::Result<()> {
    let page = Man::new(command.clone())
        .manual("Guest fleet")
        .source(concat!("guest-fleet ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    page.render(&mut text)?;
    pages.push((page.get_filename().into(), text));
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    verbs.into_iter().try_for_each(|verb| collect(verb, pages))
}

/// Writes what a shell reads to complete command lines.
pub(crate) fn completions(mut program: Command, shell: Shell, out: &mut dyn Write) {
    let name = program.get_name().to_owned();
    clap_complete::generate(shell, &mut program, name, out);
}

#[cfg(test)]
mod tests {
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
