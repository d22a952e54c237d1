//! `logs`: what plugins printed, and what the agent logged. A file or a pipe gets the exact bytes; a
//! terminal gets text without control sequences.
//!
//! ```text
//! source (one for each log, on a connection of its own) ─┐
//! source ────────────────────────────────────────────────┼─► last lines by time, then as they come ─► print
//! source ────────────────────────────────────────────────┘
//! ```
//!
//! Each source reads ahead by a bounded number of lines. A connection of its own lets one wait
//! while another is read: on a shared one, the unread lines of one log could hold up another.

pub(super) mod json;
mod lines;
mod print;
mod source;

use std::sync::Arc;

use guest_agent_actors::model::id::PluginName;
use guest_agent_proto::local::StreamLogsRequest;
use memchr::memmem::Finder;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{StreamExt, StreamMap};

use super::console::Console;
use super::context::Context;
use super::failure::{Exit, Failure};
use super::format::{padded, width};
use super::moment::{Moment, moment};
use lines::Part;
use print::{Form, Head, Printer};
use source::{Cut, Item, Source};

/// Most logs at once.
const LOGS_MAX: usize = 64;

/// How many of the last lines are shown where neither -n nor --since says it.
const LINES: u32 = 100;

/// Most lines that one log is read ahead of the others.
const AHEAD: usize = 64;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent logs metrics -n 20
  guest-agent logs metrics web --follow --timestamps
  guest-agent logs metrics --since 10m --grep timeout
  guest-agent logs --agent")]
pub(super) struct Flags {
    /// Names of plugins; lines of several begin with the name
    #[arg(id = "name", value_name = "NAME", required_unless_present = "agent")]
    names: Vec<PluginName>,
    /// The agent's own log, as far back as it keeps it in memory
    #[arg(long, conflicts_with = "name")]
    agent: bool,
    /// Go on with what is printed from now on
    #[arg(short, long)]
    follow: bool,
    /// How many of the last lines to show [default: 100; with --since, all]
    #[arg(short = 'n', long, value_name = "N")]
    lines: Option<u32>,
    /// Only lines since then: how long ago (10m), or a time (2030-01-31T12:00:00Z)
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    since: Option<Moment>,
    /// Show when each line was printed, to about a second
    #[arg(short, long)]
    timestamps: bool,
    /// Only lines with this text in them; not a pattern
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    grep: Option<String>,
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let (mut printers, sources) = flags.prepare(&context)?;
    let mut reading = JoinSet::new();
    let mut items = Vec::new();
    for source in sources {
        let (sender, receiver) = mpsc::channel(AHEAD);
        reading.spawn(source.read(sender));
        items.push(receiver);
    }
    let console = context.console;
    let printed = print(items, &mut printers, console).await;
    for printer in &mut printers {
        printer.finish(console)?;
    }
    printed.map_err(|failure| if flags.agent { of_the_agent(failure) } else { failure })
}

/// Says where the log of an agent is that does not answer.
fn of_the_agent(failure: Failure) -> Failure {
    if failure.exit != Exit::Unreachable {
        return failure;
    }
    failure.hint(
        "the log of an agent that has ended is where it was sent: `journalctl -u guest-agent`",
    )
}

type Items = mpsc::Receiver<Result<Item, Failure>>;

/// Prints the last lines of all logs in the order in which they were printed, then what follows.
async fn print(
    mut logs: Vec<Items>,
    printers: &mut [Printer],
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    // The next line of each log.
    let mut heads: Vec<Option<Item>> = logs.iter().map(|_| None).collect();
    let mut is_read: Vec<bool> = vec![false; logs.len()];
    loop {
        for (index, log) in logs.iter_mut().enumerate() {
            if heads[index].is_none() && !is_read[index] {
                match log.recv().await.transpose()? {
                    Some(Item::CaughtUp) | None => is_read[index] = true,
                    Some(item) => heads[index] = Some(item),
                }
            }
        }
        let next =
            (0..heads.len()).filter_map(|index| Some((order(heads[index].as_ref()?), index))).min();
        let Some((_, index)) = next else { break };
        if let Some(item) = heads[index].take() {
            one(&item, &mut printers[index], console)?;
        }
    }
    let mut all: StreamMap<usize, ReceiverStream<_>> =
        logs.into_iter().map(ReceiverStream::new).enumerate().collect();
    while let Some((index, item)) = all.next().await {
        one(&item?, &mut printers[index], console)?;
    }
    Ok(())
}

/// What comes first: what has no time, and then the oldest.
fn order(item: &Item) -> Option<jiff::Timestamp> {
    match item {
        Item::Part(Part::Line(line)) => line.at,
        Item::Part(Part::Missing(_)) | Item::Bytes(_) | Item::CaughtUp => None,
    }
}

fn one(item: &Item, printer: &mut Printer, console: &mut Console<'_>) -> std::io::Result<()> {
    match item {
        Item::CaughtUp => Ok(()),
        Item::Part(part) => printer.part(part, console),
        Item::Bytes(chunk) => {
            if chunk.skipped > 0 {
                printer.finish(console)?;
                printer.missing(chunk.skipped, console)?;
            }
            printer.bytes(&chunk.data, console)
        }
    }
}

// === impl Flags ===

impl Flags {
    /// A printer and a source for each log.
    fn prepare(&self, context: &Context<'_, '_>) -> Result<(Vec<Printer>, Vec<Source>), Failure> {
        let mut names: Vec<&str> = Vec::new();
        for name in &self.names {
            if !names.contains(&name.as_str()) {
                names.push(name.as_str());
            }
        }
        if names.len() > LOGS_MAX {
            return Err(Failure::usage(format_args!("at most {LOGS_MAX} logs are read at once")));
        }
        if self.agent {
            names.push("");
        }
        let form = match (context.global.json(), context.console.width) {
            (true, _) => Form::Objects,
            (false, Some(_)) => Form::Safe,
            (false, None) => Form::Bytes,
        };
        let widest = names.iter().map(|name| width(name)).max().unwrap_or_default();
        let is_one = names.len() == 1;
        let head = |name: &str| Head {
            name: (!is_one).then(|| padded(name, widest)),
            // A log of the agent without times would say little.
            time: self.timestamps || (self.agent && form != Form::Objects),
        };
        let printers: Vec<_> = names.iter().map(|name| Printer::new(form, head(name))).collect();
        let finder = self.grep.as_ref().map(|text| Arc::new(Finder::new(text).into_owned()));
        let is_plain = finder.is_none() && form != Form::Objects;
        let times = self.timestamps || self.agent || !is_one;
        let cut = match finder {
            None if is_plain && printers.iter().all(|printer| printer.head.is_empty()) => {
                Cut::Bytes
            }
            finder => Cut::Lines(finder),
        };
        let lines = if self.since.is_some() { u32::MAX } else { LINES };
        let since = self.since.map(|since| since.before((context.console.now)()));
        let socket = context.socket()?;
        let source = |name: &&str| Source {
            socket: socket.clone(),
            last: StreamLogsRequest {
                name: (*name).to_owned(),
                agent: self.agent,
                lines: self.lines.unwrap_or(lines),
                since,
                times,
                ..StreamLogsRequest::default()
            },
            follows: self.follow,
            cut: cut.clone(),
        };
        let sources = names.iter().map(source).collect();
        Ok((printers, sources))
    }
}
