//! The meaning of a request's conditions and range for an artifact: RFC 9110 sections 13 and 14.
//! Pure.
//!
//! One range is answered with a part. Several ranges, another unit or a malformed header are
//! ignored, which the RFC allows: the whole artifact is the answer. There is no Last-Modified, so
//! an If-Range with a date never holds.

use http::header::{IF_NONE_MATCH, IF_RANGE, RANGE};
use http::{HeaderMap, Method};

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Status 200 and the whole artifact.
    Whole,
    /// Status 206 and the bytes from `first` to `last`, both included.
    Part {
        /// The first byte.
        first: u64,
        /// The last byte, which is included.
        last: u64,
    },
    /// Status 304, without a body.
    NotModified,
    /// Status 416, without a body.
    Unsatisfiable,
}

/// Decides for a GET or HEAD of an artifact of `length` bytes.
#[must_use]
pub fn answer(method: &Method, headers: &HeaderMap, etag: &str, length: u64) -> Answer {
    if let Some(known) = text(headers, IF_NONE_MATCH.as_str())
        && matches_weakly(known, etag)
    {
        return Answer::NotModified;
    }
    // A range is only defined for GET.
    let Some(range) = text(headers, RANGE.as_str()).filter(|_| *method == Method::GET) else {
        return Answer::Whole;
    };
    // If-Range wants the strong comparison: the same tag, not a weak one.
    if headers.contains_key(IF_RANGE) && text(headers, IF_RANGE.as_str()) != Some(etag) {
        return Answer::Whole;
    }
    part(range, length)
}

fn matches_weakly(known: &str, etag: &str) -> bool {
    // Our tags hold no comma, so splitting at commas cannot cut one of them.
    known.trim() == "*"
        || known.split(',').map(str::trim).any(|tag| tag.strip_prefix("W/").unwrap_or(tag) == etag)
}

fn part(range: &str, length: u64) -> Answer {
    let Some((unit, spec)) = range.split_once('=') else { return Answer::Whole };
    if !unit.trim().eq_ignore_ascii_case("bytes") || spec.contains(',') {
        return Answer::Whole;
    }
    let Some((first, last)) = spec.trim().split_once('-') else { return Answer::Whole };
    match (number(first), number(last)) {
        (Number::Absent, Number::Is(0)) => Answer::Unsatisfiable,
        (Number::Absent, Number::Is(_)) if length == 0 => Answer::Unsatisfiable,
        (Number::Absent, Number::Is(suffix)) => {
            Answer::Part { first: length.saturating_sub(suffix), last: length - 1 }
        }
        (Number::Is(first), Number::Is(last)) if last < first => Answer::Whole,
        (Number::Is(first), Number::Is(_) | Number::Absent) if first >= length => {
            Answer::Unsatisfiable
        }
        (Number::Is(first), Number::Is(last)) => Answer::Part { first, last: last.min(length - 1) },
        (Number::Is(first), Number::Absent) => Answer::Part { first, last: length - 1 },
        (Number::Absent, Number::Absent) | (Number::Not, _) | (_, Number::Not) => Answer::Whole,
    }
}

enum Number {
    Absent,
    Is(u64),
    Not,
}

fn number(text: &str) -> Number {
    let text = text.trim();
    if text.is_empty() {
        Number::Absent
    } else if text.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that does not fit is beyond the end of every artifact.
        Number::Is(text.parse().unwrap_or(u64::MAX))
    } else {
        Number::Not
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETAG: &str = "\"abc\"";

    #[track_caller]
    fn check(headers: &[(&'static str, &str)], expected: Answer) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().expect("it is a header value"));
        }
        assert_eq!(answer(&Method::GET, &map, ETAG, 100), expected, "{headers:?}");
    }

    #[test]
    fn ranges_are_clipped_to_the_artifact() {
        check(&[], Answer::Whole);
        check(&[("range", "bytes=0-9")], Answer::Part { first: 0, last: 9 });
        check(&[("range", "bytes=90-")], Answer::Part { first: 90, last: 99 });
        check(&[("range", "bytes=90-1000")], Answer::Part { first: 90, last: 99 });
        check(&[("range", "bytes=-10")], Answer::Part { first: 90, last: 99 });
        check(&[("range", "bytes=-1000")], Answer::Part { first: 0, last: 99 });
        check(&[("range", "bytes=5-99999999999999999999999")], Answer::Part { first: 5, last: 99 });
    }

    #[test]
    fn ranges_outside_the_artifact_are_unsatisfiable() {
        check(&[("range", "bytes=100-")], Answer::Unsatisfiable);
        check(&[("range", "bytes=100-200")], Answer::Unsatisfiable);
        check(&[("range", "bytes=-0")], Answer::Unsatisfiable);
    }

    #[test]
    fn ranges_that_are_not_understood_are_ignored() {
        for range in
            ["bytes", "bytes=", "bytes=-", "bytes=a-b", "bytes=9-1", "lines=0-1", "bytes=0-1,3-4"]
        {
            check(&[("range", range)], Answer::Whole);
        }
    }

    #[test]
    fn a_range_of_another_version_brings_the_whole() {
        let range = ("range", "bytes=90-");
        check(&[range, ("if-range", ETAG)], Answer::Part { first: 90, last: 99 });
        check(&[range, ("if-range", "\"other\"")], Answer::Whole);
        check(&[range, ("if-range", "W/\"abc\"")], Answer::Whole);
        check(&[range, ("if-range", "Sat, 21 Nov 2026 01:00:00 GMT")], Answer::Whole);
    }

    #[test]
    fn a_known_version_is_not_sent_again() {
        check(&[("if-none-match", ETAG)], Answer::NotModified);
        check(&[("if-none-match", "\"x\", W/\"abc\"")], Answer::NotModified);
        check(&[("if-none-match", "*")], Answer::NotModified);
        check(&[("if-none-match", "\"x\"")], Answer::Whole);
        check(&[("if-none-match", ETAG), ("range", "bytes=500-")], Answer::NotModified);
    }

    #[test]
    fn a_range_means_nothing_to_head() {
        let headers = HeaderMap::from_iter([(RANGE, "bytes=0-1".parse().expect("it is one"))]);
        assert_eq!(answer(&Method::HEAD, &headers, ETAG, 100), Answer::Whole);
    }
}
