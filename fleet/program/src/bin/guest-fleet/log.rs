//! The log of the program, on stderr.

use std::io::{self, IsTerminal};

use clap::{Args, ValueEnum};
use guest_agent_observe_kit::json_lines::JsonLines;
use guest_agent_observe_kit::text_fields::TextFields;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// What is written where nothing else is wanted.
const LEVEL: &str = "warn";

/// The options of it.
#[derive(Args)]
#[group(skip)]
pub(crate) struct Options {
    /// How lines of the log look: text for people, or one JSON object per line.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    log_format: Format,
    /// What is logged: a level (error, warn, info, debug, trace), or directives such as
    /// info,guest_fleet_server::orders=debug.
    #[arg(long, value_name = "LEVEL", env = "RUST_LOG", default_value = LEVEL, value_parser = filter)]
    log_level: String,
}

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

fn filter(text: &str) -> Result<String, String> {
    let checked = EnvFilter::try_new(text).map_err(|error| error.to_string());
    checked.map(|_| text.to_owned())
}

/// Starts the log: as `serve` wants it, or for a verb, which has no options of its own.
pub(crate) fn start(options: Option<&Options>) {
    let filter = match options {
        Some(options) => EnvFilter::new(&options.log_level),
        None => EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LEVEL)),
    };
    let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let lines = fmt::layer().with_writer(io::stderr);
    let lines = match options.map_or(Format::Text, |options| options.log_format) {
        Format::Text => lines.with_ansi(colour).fmt_fields(TextFields).boxed(),
        Format::Json => lines.json().event_format(JsonLines).boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
}
