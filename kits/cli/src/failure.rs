//! A failure as it is printed: one line, its causes, and what to try.

use std::error::Error;

/// An error and everything that caused it, the nearest first.
#[must_use]
pub fn chain(error: &dyn Error) -> Vec<String> {
    let mut texts = vec![error.to_string()];
    let mut next = error.source();
    while let Some(error) = next {
        texts.push(error.to_string());
        next = error.source();
    }
    texts
}

/// The lines of a failure of this program.
#[must_use]
pub fn text(program: &str, reason: &str, causes: &[String], hint: Option<&str>) -> String {
    let mut text = format!("{program}: {reason}\n");
    for cause in causes {
        text.push_str("  ");
        text.push_str(cause);
        text.push('\n');
    }
    if let Some(hint) = hint {
        text.push_str("try: ");
        text.push_str(hint);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_failure_says_what_why_and_what_to_try() {
        let inner = io::Error::other("the disk is full");
        let outer = io::Error::other(inner);
        assert_eq!(chain(&outer)[0], "the disk is full");
        let causes = ["it could not be written".to_owned(), "the disk is full".to_owned()];
        assert_eq!(
            text("guest-x", "nothing was saved", &causes, Some("make room")),
            "guest-x: nothing was saved\n  it could not be written\n  the disk is full\ntry: make room\n"
        );
        assert_eq!(text("guest-x", "no", &[], None), "guest-x: no\n");
    }
}
