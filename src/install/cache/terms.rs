//! For which downloads a cached archive may be the dictionary, as its server said: the header
//! `Use-As-Dictionary` of RFC 9842, sections 2.1 and 2.2. Pure.
//!
//! ```text
//! response ─► Terms::read ─► kept beside the archive ─► Terms::permits(URL of another archive)
//! ```
//!
//! The pattern of the header is a URL pattern. Only those are understood that consist of
//! characters and `*`; a dictionary with another one is never offered, which the RFC permits.

use std::time::{Duration, SystemTime};

use reqwest::Url;
use reqwest::header::{CACHE_CONTROL, HeaderMap};
use serde::{Deserialize, Serialize};
use sfv::{Dictionary, ListEntry, Parser};

/// The header that says what an archive is a dictionary for.
pub(in crate::install) const USE_AS_DICTIONARY: &str = "use-as-dictionary";

/// Longest header that is read, and longest id of a dictionary (RFC 9842, section 2.1.3).
const HEADER_MAX: usize = 4096;
const ID_MAX: usize = 1024;

/// Characters that mean something else in a URL pattern than themselves.
const SPECIAL: &[char] = &['{', '}', '(', ')', ':', '?', '+', '#'];

/// What an archive may be the dictionary for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::install) struct Terms {
    /// Scheme, host and port of the server.
    origin: String,
    /// The pattern of paths.
    paths: String,
    /// The server's name for the dictionary, which requests repeat; may be empty.
    id: String,
    /// The second since 1970 until which it may be used; `None` without a limit.
    until: Option<u64>,
}

// === impl Terms ===

impl Terms {
    /// The terms in the headers of a response, if there are any that are understood.
    pub(in crate::install) fn read(
        url: &Url,
        headers: &HeaderMap,
        now: SystemTime,
    ) -> Option<Self> {
        let mut values = headers.get_all(USE_AS_DICTIONARY).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return None };
        let value = value.as_bytes();
        if value.len() > HEADER_MAX || !url.origin().is_tuple() {
            return None;
        }
        let members: Dictionary = Parser::new(value).parse().ok()?;
        let text = |name: &str| match members.get(name) {
            None => Some(None),
            Some(ListEntry::Item(item)) => Some(Some(&item.bare_item)),
            Some(ListEntry::InnerList(_)) => None,
        };
        let pattern = text("match")??.as_string()?.as_str();
        if let Some(kind) = text("type")?
            && kind.as_token()?.as_str() != "raw"
        {
            return None;
        }
        let id = match text("id")? {
            Some(id) => id.as_string()?.as_str(),
            None => "",
        };
        if id.len() > ID_MAX || !is_for_programs(members.get("match-dest"))? {
            return None;
        }
        let origin = url.origin().ascii_serialization();
        let paths = pattern.strip_prefix(&origin).unwrap_or(pattern);
        parts(paths)?;
        let until = match lifetime(headers)? {
            None => None,
            Some(lifetime) => seconds(now).map(|now| now.saturating_add(lifetime.as_secs())),
        };
        Some(Self { origin, paths: paths.to_owned(), id: id.to_owned(), until })
    }

    /// How well the archive suits as the dictionary of what this URL names: the length of the
    /// pattern. `None` where it must not be used.
    pub(in crate::install) fn permits(&self, url: &Url, now: SystemTime) -> Option<usize> {
        let is_fresh = match (self.until, seconds(now)) {
            (Some(until), Some(now)) => now < until,
            (Some(_), None) => false,
            (None, _) => true,
        };
        let matches = is_fresh
            && url.origin().ascii_serialization() == self.origin
            && matches(&parts(&self.paths)?, url.path());
        matches.then_some(self.paths.len())
    }

    /// What requests repeat; may be empty.
    pub(in crate::install) fn id(&self) -> &str {
        &self.id
    }
}

/// Whether a list of destinations has the one of programs, which is empty; an empty list has all.
/// `None` where it is not a list.
fn is_for_programs(destinations: Option<&ListEntry>) -> Option<bool> {
    match destinations {
        None => Some(true),
        Some(ListEntry::InnerList(list)) => {
            let mut items = list.items.iter();
            let is_empty = |item: &sfv::Item| {
                item.bare_item.as_string().is_some_and(|text| text.as_str().is_empty())
            };
            Some(list.items.is_empty() || items.any(is_empty))
        }
        Some(ListEntry::Item(_)) => None,
    }
}

/// How long the response may be used: `Some(None)` without a limit, `None` where it must not be
/// kept.
fn lifetime(headers: &HeaderMap) -> Option<Option<Duration>> {
    let mut lifetime = None;
    for value in headers.get_all(CACHE_CONTROL) {
        for directive in value.to_str().ok()?.split(',') {
            let (name, argument) = match directive.split_once('=') {
                Some((name, argument)) => (name.trim(), argument.trim().trim_matches('"')),
                None => (directive.trim(), ""),
            };
            if name.eq_ignore_ascii_case("no-store") || name.eq_ignore_ascii_case("no-cache") {
                return None;
            }
            if name.eq_ignore_ascii_case("max-age") {
                lifetime = Some(Duration::from_secs(argument.parse().unwrap_or_default()));
            }
        }
    }
    Some(lifetime)
}

fn seconds(time: SystemTime) -> Option<u64> {
    time.duration_since(SystemTime::UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// What is between the wildcards of a pattern. `None` where it means more than that.
fn parts(pattern: &str) -> Option<Vec<String>> {
    if !pattern.starts_with('/') {
        return None;
    }
    let mut parts = vec![String::new()];
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        let literal = match character {
            '*' => {
                parts.push(String::new());
                continue;
            }
            '\\' => characters.next()?,
            special if SPECIAL.contains(&special) => return None,
            other => other,
        };
        parts.last_mut()?.push(literal);
    }
    Some(parts)
}

/// Whether a path is these parts with anything between them.
fn matches(parts: &[String], path: &str) -> bool {
    let Some((first, rest)) = parts.split_first() else { return false };
    let Some(mut left) = path.strip_prefix(first.as_str()) else { return false };
    let Some((last, middle)) = rest.split_last() else { return left.is_empty() };
    for part in middle {
        match left.find(part.as_str()) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    left.ends_with(last.as_str())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reqwest::header::HeaderValue;

    use super::*;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn url(text: &str) -> Url {
        Url::parse(text).expect("a URL")
    }

    fn read(value: &str, cached: &'static str) -> Option<Terms> {
        let mut headers = HeaderMap::new();
        headers.insert(USE_AS_DICTIONARY, HeaderValue::from_str(value).expect("a value"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(cached));
        Terms::read(&url("https://a:7080/artifacts/echo/1"), &headers, NOW)
    }

    fn permits(value: &str, other: &str) -> bool {
        read(value, "").expect("terms").permits(&url(other), NOW).is_some()
    }

    #[test]
    fn an_archive_is_the_dictionary_of_what_its_pattern_names_on_its_server() {
        let of_echo = r#"match="/artifacts/echo/*""#;
        for (other, is_so) in [
            ("https://a:7080/artifacts/echo/2", true),
            ("https://a:7080/artifacts/echo/deep/2", true),
            ("https://a:7080/artifacts/echo/", true),
            ("https://a:7080/artifacts/other/2", false),
            ("https://a:7080/x/artifacts/echo/2", false),
            ("https://a/artifacts/echo/2", false),
            ("http://a:7080/artifacts/echo/2", false),
            ("https://b:7080/artifacts/echo/2", false),
        ] {
            assert_eq!(permits(of_echo, other), is_so, "{other}");
        }
        assert!(permits(r#"match="https://a:7080/x*", id="1""#, "https://a:7080/xy"));
        assert!(permits(r#"match="/a*b*c", type=raw"#, "https://a:7080/a-b-c"));
        assert!(!permits(r#"match="/a*b*c""#, "https://a:7080/a-c-b"));
        assert!(permits(r#"match="/x\\+y/*""#, "https://a:7080/x+y/1"));
        assert!(permits(r#"match="/*", match-dest=("")"#, "https://a:7080/a"));
        assert!(permits(r#"match="/*", match-dest=()"#, "https://a:7080/a"));
    }

    #[test]
    fn terms_that_are_not_understood_are_ignored() {
        for value in [
            "",
            "match",
            "match=1",
            r#"match="echo/*""#,
            r#"match="https://b/*""#,
            r#"match="/:name""#,
            r#"match="/(a|b)""#,
            r#"match="/a?b=1""#,
            r#"match="/{a}?""#,
            r#"match="/a\\""#,
            r#"match="/*", type=zstd"#,
            r#"match="/*", match-dest=("document")"#,
            r#"match="/*", match-dest=1"#,
            r#"match="/*", id=1"#,
            r#"match=("/a" "/b")"#,
            r#"match="/*"#,
            r#"match="/*", ="#,
        ] {
            assert_eq!(read(value, ""), None, "{value}");
        }
        let long = format!(r#"match="/*", id="{}""#, "x".repeat(1025));
        assert_eq!(read(&long, ""), None);
    }

    #[test]
    fn an_archive_that_is_stale_or_must_not_be_kept_is_no_dictionary() {
        let every = r#"match="/*""#;
        assert_eq!(read(every, "no-store"), None);
        assert_eq!(read(every, "max-age=5, No-Cache"), None);
        let terms = read(every, "public, max-age=5, immutable").expect("terms");
        let other = url("https://a:7080/x");
        assert!(terms.permits(&other, NOW + Duration::from_secs(4)).is_some());
        assert!(terms.permits(&other, NOW + Duration::from_secs(5)).is_none());
        let text = serde_json::to_string(&terms).expect("JSON");
        assert_eq!(serde_json::from_str::<Terms>(&text).expect("the same"), terms);
    }

    proptest! {
        #[test]
        fn law_any_header_is_read_without_harm(
            value in proptest::collection::vec(any::<u8>(), 0..60),
            path in "/[a-c/*]{0,12}",
        ) {
            let mut headers = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                headers.insert(USE_AS_DICTIONARY, value);
            }
            let here = url("http://a/b");
            if let Some(terms) = Terms::read(&here, &headers, NOW) {
                let _ = terms.permits(&here.join(&path).expect("a path"), NOW);
            }
        }

        #[test]
        fn law_a_pattern_without_wildcards_names_itself_alone(
            one in "/[a-c]{0,4}", other in "/[a-c]{0,4}",
        ) {
            let parts = parts(&one).expect("a pattern");
            prop_assert_eq!(matches(&parts, &other), one == other);
        }

        #[test]
        fn law_wildcards_stand_for_anything(
            texts in proptest::collection::vec("[a-b/]{0,3}", 1..5),
            between in "[a-b/]{0,3}",
        ) {
            let pattern = format!("/{}", texts.join("*"));
            let path = format!("/{}", texts.join(&between));
            prop_assert!(matches(&parts(&pattern).expect("a pattern"), &path));
        }
    }
}
