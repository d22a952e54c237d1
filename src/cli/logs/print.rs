//! Prints what comes of logs: the exact bytes, text that is harmless on a terminal, or JSON.

use std::fmt::Write as _;

use super::json::LogJson;
use super::lines::{Line, Part};
use crate::cli::console::{Console, Tone};
use crate::cli::format::padded;
use jiff::Timestamp;

/// Most bytes of an incomplete UTF-8 character.
const UNFINISHED_MAX: usize = 3;

/// What stands in place of a time that is not known.
const UNKNOWN_TIME: &str = "-";

/// Columns of a time.
const TIME_COLUMNS: usize = 20;

/// How a log is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The exact bytes of each line.
    Bytes,
    /// Text without control sequences.
    Safe,
    /// An object for each line.
    Objects,
}

/// What stands before each line.
#[derive(Clone, Debug)]
pub(super) struct Head {
    /// The name of the log, where there are several, padded to the longest.
    pub(super) name: Option<String>,
    pub(super) time: bool,
}

/// Prints one log. What it keeps between two calls is bounded.
pub(super) struct Printer {
    pub(super) form: Form,
    pub(super) head: Head,
    /// The beginning of a character.
    unfinished: Vec<u8>,
}

// === impl Head ===

impl Head {
    /// Whether lines are printed as they are.
    pub(super) fn is_empty(&self) -> bool {
        self.name.is_none() && !self.time
    }

    fn text(&self, at: Option<Timestamp>, console: &Console<'_>) -> String {
        let mut text = String::new();
        if self.time {
            // Whole seconds: more is not known of the lines of plugins.
            let at = at.and_then(|at| Timestamp::from_second(at.as_second()).ok());
            let at = at.map_or_else(|| UNKNOWN_TIME.to_owned(), |at| at.to_string());
            text.push_str(&console.paint(Tone::Quiet, &padded(&at, TIME_COLUMNS)));
            text.push(' ');
        }
        if let Some(name) = &self.name {
            text.push_str(&console.paint(Tone::Quiet, &format!("{name} |")));
            text.push(' ');
        }
        text
    }
}

// === impl Printer ===

impl Printer {
    pub(super) fn new(form: Form, head: Head) -> Self {
        Self { form, head, unfinished: Vec::new() }
    }

    /// Prints bytes as they come.
    pub(super) fn bytes(&mut self, data: &[u8], console: &mut Console<'_>) -> std::io::Result<()> {
        if self.form != Form::Safe {
            console.out.write_all(data)?;
            return console.out.flush();
        }
        self.unfinished.extend_from_slice(data);
        let whole = self.unfinished.len() - unfinished_character(&self.unfinished);
        let rest = self.unfinished.split_off(whole);
        let text = std::mem::replace(&mut self.unfinished, rest);
        console.text(&safe(&text))
    }

    /// Prints a line, or that some are missing.
    pub(super) fn part(&mut self, part: &Part, console: &mut Console<'_>) -> std::io::Result<()> {
        match part {
            Part::Missing(bytes) => self.missing(*bytes, console),
            Part::Line(line) => self.line(line, console),
        }
    }

    /// Prints what is left of bytes that came.
    pub(super) fn finish(&mut self, console: &mut Console<'_>) -> std::io::Result<()> {
        let rest = std::mem::take(&mut self.unfinished);
        if rest.is_empty() { Ok(()) } else { console.text(&safe(&rest)) }
    }

    /// Prints that bytes are missing.
    pub(super) fn missing(&self, bytes: u64, console: &mut Console<'_>) -> std::io::Result<()> {
        if self.form == Form::Objects {
            return console.object(&LogJson::Skipped { plugin: self.plugin(), skipped: bytes });
        }
        let of = self
            .head
            .name
            .as_ref()
            .map_or_else(String::new, |name| format!("{}: ", name.trim_end()));
        let text = "were cut off the log before they could be read";
        writeln!(console.err, "guest-agent: {of}{bytes} bytes {text}")
    }

    fn line(&self, line: &Line, console: &mut Console<'_>) -> std::io::Result<()> {
        let head = self.head.text(line.at, console);
        // With something before each line, each line has an end.
        let end = if self.head.is_empty() || line.data.ends_with(b"\n") { "" } else { "\n" };
        match self.form {
            Form::Objects => {
                let at = self.head.time.then(|| line.at.map(|at| at.to_string()));
                let data = &String::from_utf8_lossy(&line.data);
                console.object(&LogJson::Data { plugin: self.plugin(), at, data })
            }
            Form::Safe => console.text(&[&head, &*safe(&line.data), end].concat()),
            Form::Bytes => {
                for part in [head.as_bytes(), &line.data, end.as_bytes()] {
                    console.out.write_all(part)?;
                }
                console.out.flush()
            }
        }
    }

    /// The name of the log, where there are several.
    fn plugin(&self) -> Option<&str> {
        self.head.name.as_deref().map(str::trim_end)
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

    fn printed(
        form: Form,
        head: Head,
        print: impl FnOnce(&mut Printer, &mut Console<'_>),
    ) -> String {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut console = Console {
            out: &mut out,
            err: &mut err,
            width: (form == Form::Safe).then_some(80),
            err_is_terminal: false,
            colour: false,
            reply: None,
            now: jiff::Timestamp::now,
        };
        let mut printer = Printer::new(form, head);
        print(&mut printer, &mut console);
        printer.finish(&mut console).expect("printed");
        String::from_utf8(out).expect("text")
    }

    fn plain() -> Head {
        Head { name: None, time: false }
    }

    fn full() -> Head {
        Head { name: Some("a  ".to_owned()), time: true }
    }

    fn line(data: &[u8]) -> Part {
        let at = Timestamp::from_second(1_900_000_000).ok();
        Part::Line(Line { data: data.to_vec(), at })
    }

    #[test]
    fn a_terminal_is_shown_text_and_nothing_else() {
        let chunks: [&[u8]; 3] = [b"\x1b]0;owned\x07 gr\xc3", b"\xbc\xc3\x9f\xff\n", b"\xe2\x80"];
        let shown = printed(Form::Safe, plain(), |printer, console| {
            for chunk in chunks {
                printer.bytes(chunk, console).expect("printed");
            }
        });
        assert_eq!(shown, "\\x1b]0;owned\\x07 gr\u{fc}\u{df}\u{fffd}\n\u{fffd}");
        assert_eq!(safe("a\u{202e}b\u{9b}c\0\r\n".as_bytes()), "a\\u{202e}b\\x9bc\\x00\n");
        let shown = printed(Form::Safe, full(), |printer, console| {
            printer.part(&line(b"\x1b[2Jgone\n"), console).expect("printed");
        });
        assert_eq!(shown, "2030-03-17T17:46:40Z a   | \\x1b[2Jgone\n");
    }

    #[test]
    fn each_line_says_when_and_whose_it_is() {
        let bytes = |part: &Part, head: Head| {
            printed(Form::Bytes, head, |printer, console| {
                printer.part(part, console).expect("printed");
            })
        };
        assert_eq!(bytes(&line(b"one"), full()), "2030-03-17T17:46:40Z a   | one\n");
        assert_eq!(bytes(&line(b"one"), plain()), "one");
        let unknown = Part::Line(Line { data: b"one\n".to_vec(), at: None });
        assert_eq!(bytes(&unknown, full()), format!("{:<20} a   | one\n", "-"));
    }

    #[test]
    fn objects_have_the_fields_that_were_asked_for() {
        let object = |part: &Part, head: Head| {
            printed(Form::Objects, head, |printer, console| {
                printer.part(part, console).expect("printed");
            })
        };
        assert_eq!(object(&line(b"x\n"), plain()), "{\"data\":\"x\\n\"}\n");
        let at = "2030-03-17T17:46:40Z";
        let expected = format!("{{\"at\":\"{at}\",\"data\":\"x\\n\",\"plugin\":\"a\"}}\n");
        assert_eq!(object(&line(b"x\n"), full()), expected);
        let expected = "{\"plugin\":\"a\",\"skipped\":7}\n";
        assert_eq!(object(&Part::Missing(7), full()), expected);
    }
}
