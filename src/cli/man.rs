//! `man`: manual pages, one per verb, written from the same source as `--help`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Command;
use clap_mangen::Man;
use schemars::JsonSchema;
use serde::Serialize;

use super::context::Context;
use super::failure::Failure;

/// The sections of the program's page beside its verbs: a heading, then entries of a word and its
/// meaning.
const BEYOND: [(&str, &[(&str, &str)]); 3] = [
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
    let pages = pages(program)?;
    let console = context.console;
    let Some(dir) = flags.out else {
        let (_, page) = pages.first().ok_or_else(|| Failure::failed("the page does not exist"))?;
        console.out.write_all(page)?;
        return Ok(());
    };
    let cannot = |path: &std::path::Path, error: &io::Error| {
        Failure::failed(format_args!("failed to write {}", path.display())).because(error)
    };
    std::fs::create_dir_all(&dir).map_err(|error| cannot(&dir, &error))?;
    for (name, text) in &pages {
        let path = dir.join(name);
        std::fs::write(&path, text).map_err(|error| cannot(&path, &error))?;
    }
    if context.global.json() {
        let pages = pages.iter().map(|(name, _)| dir.join(name)).collect();
        console.document(&PagesJson { pages })?;
    } else {
        console.line(&format!("{}: {} pages", dir.display(), pages.len()))?;
    }
    Ok(())
}

/// The pages that were written, as scripts see them; field names never change.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct PagesJson {
    /// Their files, that of the program first.
    pages: Vec<PathBuf>,
}

/// All pages with the names of their files, that of the program first.
fn pages(program: Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut command = program.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    collect(&command, &mut pages)?;
    Ok(pages)
}

fn collect(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    let mut text = Vec::new();
    let page = Man::new(command.clone())
        .manual("Guest agent")
        .source(concat!("guest-agent ", env!("CARGO_PKG_VERSION")));
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    let verbs: Vec<_> = command.get_subcommands().filter(|verb| !is_hidden(verb)).collect();
    if !verbs.is_empty() {
        page.render_subcommands_section(&mut text)?;
    }
    if pages.is_empty() {
        beyond(&mut text)?;
    } else {
        if let Some(after) = command.get_after_help() {
            examples(&after.to_string(), &mut text)?;
        }
        writeln!(text, ".SH \"SEE ALSO\"\n\\fBguest\\-agent\\fR(1)")?;
    }
    pages.push((page.get_filename(), text));
    verbs.into_iter().try_for_each(|verb| collect(verb, pages))
}

fn is_hidden(verb: &Command) -> bool {
    verb.is_hide_set() || verb.get_name() == "help"
}

fn beyond(page: &mut Vec<u8>) -> io::Result<()> {
    for (heading, entries) in BEYOND {
        writeln!(page, ".SH \"{heading}\"")?;
        for (word, meaning) in entries {
            writeln!(page, ".TP\n\\fB{}\\fR\n{}", escaped(word), escaped(meaning))?;
        }
    }
    Ok(())
}

/// The text below the flags in the help, unchanged.
fn examples(help: &str, page: &mut Vec<u8>) -> io::Result<()> {
    let text = help.strip_prefix("Examples:\n");
    let heading = if text.is_some() { "EXAMPLES" } else { "NOTES" };
    writeln!(page, ".SH {heading}\n.nf")?;
    for line in text.unwrap_or(help).lines() {
        writeln!(page, "{}", escaped(line.strip_prefix("  ").unwrap_or(line)))?;
    }
    writeln!(page, ".fi")
}

/// A line that roff does not read as a request.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}
