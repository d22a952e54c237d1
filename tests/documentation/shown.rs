//! Whether a program printed what a page shows: the same, but for what differs from run to run.

/// What stands for any text.
const ANY: &str = "…";

/// Whether `printed` is what is shown. `…` in a line stands for any text, a line of it for any lines.
pub(crate) fn matches(shown: &str, printed: &str) -> bool {
    let shown: Vec<String> = shown.lines().map(general).collect();
    let printed: Vec<String> = printed.lines().map(general).collect();
    lines_match(&shown, &printed)
}

fn lines_match(shown: &[String], printed: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line == ANY => {
            (0..=printed.len()).any(|skipped| lines_match(rest, &printed[skipped..]))
        }
        Some((line, rest)) => printed
            .split_first()
            .is_some_and(|(first, after)| line_matches(line, first) && lines_match(rest, after)),
    }
}

fn line_matches(shown: &str, printed: &str) -> bool {
    let mut parts = shown.split(ANY);
    let first = parts.next().unwrap_or_default();
    let Some(mut left) = printed.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return left.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return left.ends_with(part);
        }
        let Some(at) = left.find(part) else { return false };
        left = &left[at + part.len()..];
    }
    true
}

/// A line without what differs from run to run. Spaces between words count as one.
fn general(line: &str) -> String {
    line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

/// Shortest number of ten digits, and of sixteen, that is not compared.
const LONG: usize = 4;
const LONG_HEX: usize = 12;

/// The form of a moment; `0` stands for a digit.
const MOMENT: &str = "0000-00-00T00:00:00Z";

/// Where a word has a moment.
fn moment(word: &str) -> Option<usize> {
    let fits = |bytes: &[u8]| {
        let mut pairs = bytes.iter().zip(MOMENT.bytes());
        pairs.all(|(byte, form)| if form == b'0' { byte.is_ascii_digit() } else { *byte == form })
    };
    word.as_bytes().windows(MOMENT.len()).position(fits)
}

fn word(word: &str) -> String {
    if let Some(at) = moment(word) {
        return format!("{}{MOMENT}{}", &word[..at], &word[at + MOMENT.len()..]);
    }
    let mut general = String::new();
    let mut rest = word;
    while let Some(first) = rest.chars().next() {
        let hex = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
        let decimal = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let taken = if hex >= LONG_HEX {
            general.push('0');
            hex
        } else if decimal >= LONG {
            general.push('0');
            decimal
        } else {
            let taken = hex.max(first.len_utf8());
            general.push_str(&rest[..taken]);
            taken
        };
        rest = &rest[taken..];
    }
    general
}

#[test]
fn what_differs_from_run_to_run_is_not_compared() {
    let shown = "NAME  PID   SINCE\na     1234  2026-11-26T18:00:04Z: done\n";
    assert!(matches(shown, "NAME PID    SINCE\na    99999  2031-01-02T03:04:05Z: done\n"));
    assert!(!matches(shown, "NAME PID    SINCE\na    99999  2031-01-02T03:04:05Z: failed\n"));
    assert!(!matches(shown, "NAME PID    SINCE\nb    99999  2031-01-02T03:04:05Z: done\n"));
    let digest = |digit: &str| format!("any {}…", digit.repeat(12));
    assert!(matches(&digest("a"), &digest("7")), "digests");
    assert!(!matches("revision 1", "revision 2"), "short numbers are compared");
    assert!(!matches("a", "a\nb") && !matches("a\nb", "a"), "all lines are compared");
}

#[test]
fn dots_stand_for_any_text_and_any_lines() {
    for printed in ["a\nd", "a\nb\nc\nd"] {
        assert!(matches("a\n…\nd", printed), "{printed}");
    }
    assert!(!matches("a\n…\nd", "a\nb"));
    assert!(matches("by … on …", "by you@host on friday"));
    assert!(!matches("by … on friday", "by you@host on monday"));
    assert!(matches("fleet f-…", "fleet f-pb677j23vevsjy73"));
}
