//! `logs`: what a plugin printed. A file or a pipe gets the exact bytes; a terminal gets text
//! without control sequences.

use std::fmt::Write as _;
use std::time::Duration;

use guest_agent_actors::model::id::PluginName;
use guest_agent_proto::local::{LogChunk, StreamLogsRequest};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::Instant;

use super::client::{self, Patience};
use super::console::Console;
use super::context::Context;
use super::failure::{Exit, Failure};

/// Longest time that an agent may be away while its logs are followed.
const COMEBACK: Duration = Duration::from_secs(30);

/// Time between two attempts to connect.
const BEAT: Duration = Duration::from_millis(200);

/// A line longer than this many bytes becomes several objects.
const LINE_MAX: usize = 64 * 1024;

/// Most bytes of an incomplete UTF-8 character.
const UNFINISHED_MAX: usize = 3;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent logs metrics -n 20
  guest-agent logs metrics --follow")]
pub(super) struct Flags {
    /// Name of the plugin
    name: PluginName,
    /// Go on with what it prints from now on
    #[arg(short, long)]
    follow: bool,
    /// How many of the last lines to show
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    lines: u32,
}

pub(super) async fn run(flags: Flags, mut context: Context<'_, '_>) -> Result<(), Failure> {
    let mut request = StreamLogsRequest {
        name: flags.name.as_str().to_owned(),
        follow: flags.follow,
        lines: flags.lines,
        from: None,
    };
    let mut printer = Printer::new(context.global.json(), context.console.width.is_some());
    let mut gone_since = None;
    loop {
        let before = request.from;
        let ended = read(&mut request, &mut printer, &mut context).await;
        if request.from != before {
            gone_since = None;
        }
        let since = *gone_since.get_or_insert_with(Instant::now);
        match ended {
            // After a restart of the agent, the new stream continues after the last printed byte.
            Err(failure)
                if failure.exit == Exit::Unreachable
                    && request.from.is_some()
                    && since.elapsed() < COMEBACK =>
            {
                tokio::time::sleep(BEAT).await;
            }
            ended => {
                printer.finish(context.console)?;
                return ended;
            }
        }
    }
}

async fn read(
    request: &mut StreamLogsRequest,
    printer: &mut Printer,
    context: &mut Context<'_, '_>,
) -> Result<(), Failure> {
    let patience = if request.follow { Patience::Forever } else { Patience::Soon };
    let mut client = context.connect().await?;
    let mut chunks = match client.stream_logs(request.clone()).await {
        Ok(answer) => answer.into_inner(),
        Err(error) => return Err(client::about(&mut client, &request.name, error).await),
    };
    while let Some(chunk) = client::next(&mut chunks, patience).await? {
        printer.print(&chunk, context.console)?;
        // Older agents send no positions, so there is no point to continue from.
        if request.follow && chunk.next > 0 {
            request.from = Some(chunk.next);
        }
    }
    Ok(())
}

/// A part of a log, as scripts see it; field names never change.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum LogJson<'a> {
    /// A line, or a part of one that is longer than 64 KiB.
    Data {
        /// What the plugin printed, with the end of the line; what is no UTF-8 is replaced.
        data: &'a str,
    },
    /// A gap.
    Skipped {
        /// Bytes that were cut off the log before they could be read.
        skipped: u64,
    },
}

/// Prints chunks. What it keeps between two of them is bounded.
struct Printer {
    form: Form,
    /// The beginning of a line, or of a character.
    unfinished: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Bytes,
    Safe,
    Objects,
}

// === impl Printer ===

impl Printer {
    fn new(json: bool, terminal: bool) -> Self {
        let form = match (json, terminal) {
            (true, _) => Form::Objects,
            (false, true) => Form::Safe,
            (false, false) => Form::Bytes,
        };
        Self { form, unfinished: Vec::new() }
    }

    fn print(&mut self, chunk: &LogChunk, console: &mut Console<'_>) -> std::io::Result<()> {
        if chunk.skipped > 0 {
            self.finish(console)?;
            self.missing(chunk.skipped, console)?;
        }
        match self.form {
            Form::Bytes => console.out.write_all(&chunk.data)?,
            Form::Safe => {
                self.unfinished.extend_from_slice(&chunk.data);
                let whole = self.unfinished.len() - unfinished_character(&self.unfinished);
                let rest = self.unfinished.split_off(whole);
                let text = std::mem::replace(&mut self.unfinished, rest);
                console.out.write_all(safe(&text).as_bytes())?;
            }
            Form::Objects => {
                for part in chunk.data.split_inclusive(|&byte| byte == b'\n') {
                    for part in part.chunks(LINE_MAX) {
                        self.unfinished.extend_from_slice(part);
                        if self.unfinished.ends_with(b"\n") || self.unfinished.len() >= LINE_MAX {
                            self.finish(console)?;
                        }
                    }
                }
            }
        }
        console.out.flush()
    }

    /// Prints what is left of a line that has no end.
    fn finish(&mut self, console: &mut Console<'_>) -> std::io::Result<()> {
        let rest = std::mem::take(&mut self.unfinished);
        match self.form {
            _ if rest.is_empty() => Ok(()),
            Form::Objects => {
                console.object(&LogJson::Data { data: &String::from_utf8_lossy(&rest) })
            }
            Form::Bytes | Form::Safe => console.text(&safe(&rest)),
        }
    }

    fn missing(&self, bytes: u64, console: &mut Console<'_>) -> std::io::Result<()> {
        match self.form {
            Form::Objects => console.object(&LogJson::Skipped { skipped: bytes }),
            Form::Bytes | Form::Safe => {
                let text = "were cut off the log before they could be read";
                writeln!(console.err, "guest-agent: {bytes} bytes {text}")
            }
        }
    }
}

/// How many bytes at the end belong to an incomplete UTF-8 character.
fn unfinished_character(bytes: &[u8]) -> usize {
    (1..=UNFINISHED_MAX.min(bytes.len()))
        .find(|&count| {
            let error = std::str::from_utf8(&bytes[bytes.len() - count..]).err();
            error.is_some_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        })
        .unwrap_or(0)
}

/// Text that is safe on a terminal: control characters are written as escapes such as `\x1b`.
fn safe(bytes: &[u8]) -> String {
    let mut shown = String::new();
    for character in String::from_utf8_lossy(bytes).chars() {
        match character {
            '\n' | '\t' => shown.push(character),
            // A carriage return before a line feed is kept: other systems end their lines with it.
            '\r' => {}
            control if control.is_control() => {
                // Writing to a string does not fail.
                let _fits = write!(shown, "\\x{:02x}", u32::from(control));
            }
            // These change the direction of text, so that a reader sees another text than the bytes
            // hold.
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                shown.push_str(&character.escape_unicode().to_string());
            }
            other => shown.push(other),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(json: bool, terminal: bool, chunks: &[&[u8]]) -> String {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut console = Console {
            out: &mut out,
            err: &mut err,
            width: terminal.then_some(80),
            err_is_terminal: false,
            colour: false,
            reply: None,
            now: jiff::Timestamp::now,
        };
        let mut printer = Printer::new(json, terminal);
        for data in chunks {
            let chunk = LogChunk { data: data.to_vec(), ..LogChunk::default() };
            printer.print(&chunk, &mut console).expect("printed");
        }
        printer.finish(&mut console).expect("printed");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_terminal_is_shown_text_and_nothing_else() {
        let chunks: [&[u8]; 3] = [b"\x1b]0;owned\x07 gr\xc3", b"\xbc\xc3\x9f\xff\n", b"\xe2\x80"];
        let shown = printed(false, true, &chunks);
        assert_eq!(shown, "\\x1b]0;owned\\x07 gr\u{fc}\u{df}\u{fffd}\n\u{fffd}");
        assert_eq!(safe("a\u{202e}b\u{9b}c\r\n".as_bytes()), "a\\u{202e}b\\x9bc\n");
    }

    #[test]
    fn each_line_is_an_object_however_it_comes() {
        let shown = printed(true, false, &[b"on", b"e\ntwo\nth", b"ree"]);
        assert_eq!(shown, "{\"data\":\"one\\n\"}\n{\"data\":\"two\\n\"}\n{\"data\":\"three\"}\n");
    }

    #[test]
    fn a_line_without_end_is_passed_on_in_parts() {
        let endless = vec![b'x'; 5 * LINE_MAX];
        let shown = printed(true, false, &[&endless]);
        assert_eq!(shown.lines().count(), 5);
    }
}
