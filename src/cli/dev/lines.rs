//! Lines out of bytes, bounded: what a build command or a plugin prints may have no end and any byte in it.

/// Most characters of a line.
const LINE_MAX: usize = 1000;

/// Cuts a stream of bytes into lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The beginning of a line whose end has not come.
    begun: Vec<u8>,
}

// === impl Lines ===

impl Lines {
    /// The lines that end in the next bytes.
    pub(super) fn add(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            // Of a character of UTF-8, there are up to four bytes.
            let room = (LINE_MAX * 4).saturating_sub(self.begun.len());
            self.begun.extend(part.iter().take(room));
            if part.ends_with(b"\n") {
                lines.push(shown(&std::mem::take(&mut self.begun)));
            }
        }
        lines
    }

    /// The last line, which has no end.
    pub(super) fn rest(&mut self) -> Option<String> {
        let begun = std::mem::take(&mut self.begun);
        (!begun.is_empty()).then(|| shown(&begun))
    }
}

/// A line that cannot move the cursor.
fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let safe = |letter: char| if letter.is_control() { ' ' } else { letter };
    text.trim_end().chars().take(LINE_MAX).map(safe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_whatever_the_pieces_are() {
        let mut lines = Lines::default();
        assert_eq!(lines.add(b"one\ntw"), ["one"]);
        assert_eq!(lines.add(b"o\n\nthree"), ["two", ""]);
        assert_eq!(lines.rest().as_deref(), Some("three"));
        assert_eq!(lines.rest(), None);
    }

    #[test]
    fn a_line_without_end_takes_no_memory_and_no_terminal() {
        let mut lines = Lines::default();
        for _ in 0..100 {
            assert!(lines.add(&[b'x'; 1 << 16]).is_empty());
        }
        assert!(lines.begun.len() <= LINE_MAX * 4);
        assert_eq!(lines.add(b"\n")[0].len(), LINE_MAX);
        assert_eq!(lines.add(b"a\x1b[2Jb\xff\r\n"), ["a [2Jb\u{fffd}"]);
    }
}
