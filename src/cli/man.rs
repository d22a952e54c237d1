//! `man`: manual pages, one per verb, written from the same source as `--help`.

use std::path::PathBuf;

use clap::Command;
use guest_agent_cli_kit::man::{self, Manual, Section};
use schemars::JsonSchema;
use serde::Serialize;

use super::context::Context;
use super::failure::Failure;

/// The head of the pages, and the sections of the program's page.
const MANUAL: Manual = Manual {
    title: "Guest agent",
    source: concat!("guest-agent ", env!("CARGO_PKG_VERSION")),
    sections: &SECTIONS,
};

const SECTIONS: [Section; 3] = [
    (
        "EXIT STATUS",
        &[
            ("0", "The command succeeded."),
            ("1", "It failed. The reason is on standard error: one line, then its causes."),
            ("2", "The command line is not valid."),
            ("3", "The agent cannot be reached."),
            ("4", "The wait ended without the expected result."),
        ],
    ),
    (
        "ENVIRONMENT",
        &[
            ("GUEST_AGENT_SOCKET", "Socket of the running agent; --socket has precedence."),
            (
                "GUEST_AGENT__SECTION__KEY",
                "Sets a configuration key, such as \
              GUEST_AGENT__PLUGINS__PROBATION=1m. It overrides the files; --set overrides it.",
            ),
            ("GUEST_AGENT_LOG", "Level of what is logged: error, warn, info, debug or trace."),
            ("NO_COLOR", "No colour, when it is set to any value."),
        ],
    ),
    (
        "FILES",
        &[
            ("/etc/guest-agent/guest-agent.toml", "The configuration."),
            (
                "/etc/guest-agent/conf.d/*.toml",
                "More configuration, read after it in the order of the names.",
            ),
            ("/run/guest-agent/agent.sock", "The socket to which the verbs connect."),
            ("/var/lib/guest-agent", "Plugins, their data, and the agent's own records."),
            ("/var/log/guest-agent/plugins", "The output of plugins."),
            ("/usr/lib/guest-agent/plugins", "Plugins that came with the machine."),
        ],
    ),
];

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent man | man -l -
  guest-agent man --out /usr/local/share/man/man1")]
pub(super) struct Flags {
    /// Write all pages into this directory; without it, the page of the program is printed
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(super) fn run(flags: Flags, program: Command, context: Context<'_, '_>) -> Result<(), Failure> {
    let pages = MANUAL.pages(program)?;
    let console = context.console;
    let Some(dir) = flags.out else {
        let page = pages.first().ok_or_else(|| Failure::failed("the page does not exist"))?;
        console.out.write_all(&page.text)?;
        return Ok(());
    };
    let written = man::write(&pages, &dir).map_err(|(path, error)| {
        Failure::failed(format_args!("failed to write {}", path.display())).because(&error)
    })?;
    if context.global.json() {
        console.document(&PagesJson { pages: written })?;
    } else {
        console.line(&format!("{}: {} pages", dir.display(), written.len()))?;
    }
    Ok(())
}

/// The pages that were written, as scripts see them; field names never change.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct PagesJson {
    /// Their files, that of the program first.
    pages: Vec<PathBuf>,
}
