//! The outputs of a verb: results are printed to `out`, messages about the verb itself to `err`.
//! The console knows whether `out` is a terminal, and how wide it is.

use std::io::{self, BufRead, IsTerminal, Read, Write};

use jiff::Timestamp;
use serde::Serialize;

use super::failure::{Exit, Failure};
use super::format::one_line;
use crate::config::Environment;
/// Code names colours by their meaning.
pub(super) use crate::display::Tone;

/// Width of text that is laid out where there is no terminal.
const USUAL_WIDTH: usize = 100;

/// Both outputs of a verb.
pub struct Console<'a> {
    /// Results.
    pub out: &'a mut dyn Write,
    /// Errors, their causes and advice.
    pub err: &'a mut dyn Write,
    /// Columns of the terminal; `None` when `out` is no terminal.
    pub width: Option<usize>,
    /// Whether `err` is a terminal.
    pub err_is_terminal: bool,
    /// Whether text may be coloured.
    pub colour: bool,
    /// Reads a line that a person types; `None` where no person sits at both ends.
    pub reply: Option<fn() -> io::Result<String>>,
    /// Wall-clock time, for "since when".
    pub now: fn() -> Timestamp,
}

/// Most bytes of a reply.
const REPLY_MAX: u64 = 1024;

/// A line from the terminal.
fn typed() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().lock().take(REPLY_MAX).read_line(&mut line)?;
    Ok(line)
}

// === impl Console ===

impl<'a> Console<'a> {
    /// The console of this process. Colour only on a terminal, and never with `NO_COLOR`.
    pub fn of_process(
        out: &'a mut dyn Write,
        err: &'a mut dyn Write,
        environment: &dyn Environment,
    ) -> Self {
        let is_terminal = io::stdout().is_terminal();
        let columns = ratatui::crossterm::terminal::size()
            .map_or(USUAL_WIDTH, |(columns, _)| usize::from(columns).max(1));
        Self {
            out,
            err,
            width: is_terminal.then_some(columns),
            err_is_terminal: io::stderr().is_terminal(),
            colour: is_terminal && environment.variable("NO_COLOR").is_none(),
            reply: (io::stdin().is_terminal() && io::stderr().is_terminal()).then_some(typed),
            now: Timestamp::now,
        }
    }

    /// Whether a person can be asked.
    pub(super) fn can_ask(&self) -> bool {
        self.reply.is_some()
    }

    /// Whether a person agrees. Everything but yes is no, the end of the input as well.
    pub(super) fn ask(&mut self, what: &str) -> io::Result<bool> {
        let Some(reply) = self.reply else { return Ok(true) };
        write!(self.err, "{what}\nGo on? [y/N] ")?;
        self.err.flush()?;
        let reply = reply()?;
        Ok(["y", "yes"].contains(&reply.trim().to_lowercase().as_str()))
    }

    /// The width for which text is laid out, in columns.
    pub(super) fn columns(&self) -> usize {
        self.width.unwrap_or(USUAL_WIDTH)
    }

    /// Prints one line of text.
    pub(super) fn line(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{text}")
    }

    /// Prints text that brings its own line ends, at once.
    pub(super) fn text(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Prints a value as one document over several lines.
    pub(super) fn document(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *self.out, value)?;
        writeln!(self.out)
    }

    /// Prints a value as one line, at once: a follower may be waiting for it.
    pub(super) fn object(&mut self, value: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut *self.out, value)?;
        writeln!(self.out)?;
        self.out.flush()
    }

    /// Colours a text, if colours are on.
    pub(super) fn paint(&self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Plain => return text.to_owned(),
            Tone::Good => "32",
            Tone::Busy => "33",
            Tone::Bad => "31",
            Tone::Quiet => "2",
        };
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Prints why a verb failed. A failure to print is ignored, because it cannot be reported
    /// anywhere.
    pub(super) fn fail(&mut self, failure: &Failure) -> Exit {
        if failure.exit != Exit::Done {
            let mut text = format!("guest-agent: {}\n", one_line(&failure.reason));
            for cause in failure.causes.iter().filter(|cause| !cause.is_empty()) {
                text.push_str(&format_lines("  ", cause));
            }
            if let Some(hint) = &failure.hint {
                text.push_str(&format_lines("  try: ", hint));
            }
            let _unprintable = self.err.write_all(text.as_bytes());
        }
        failure.exit
    }

    /// Prints a message of clap: help and version are results, everything else is an error.
    pub(super) fn usage(&mut self, error: &clap::Error) -> Exit {
        let styled = error.render();
        if error.use_stderr() {
            let colour = self.colour && self.err_is_terminal;
            let text = if colour { styled.ansi().to_string() } else { styled.to_string() };
            let _unprintable = self.err.write_all(text.as_bytes());
            return Exit::Usage;
        }
        let text = if self.colour { styled.ansi().to_string() } else { styled.to_string() };
        let _unprintable = self.out.write_all(text.as_bytes());
        Exit::Done
    }
}

fn format_lines(prefix: &str, text: &str) -> String {
    format!("{prefix}{}\n", one_line(text))
}
