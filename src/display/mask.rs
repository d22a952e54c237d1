//! Masks secrets in configurations, logs and documents, by the names of their keys. One filter for
//! whatever shows them to a person.
//!
//! It knows JSON, also a document in each line, and `key = value` and `key: value` anywhere in a
//! line. A secret under a harmless name is not recognized: what is shown stays for those who may see
//! the original.

use serde_json::Value;

/// What stands in the place of a secret.
const MASK: &str = "***";

/// A key with one of these in its name has a secret, whatever the case and the separators.
const SECRET: [&str; 10] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "apikey",
    "privatekey",
    "credential",
    "authorization",
    "cookie",
];

/// A key of exactly these names has one, too.
const SECRET_ALONE: [&str; 4] = ["key", "auth", "pass", "pwd"];

/// The text, with a mask in the place of each secret.
#[must_use]
pub(crate) fn masked(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(mut value @ (Value::Object(_) | Value::Array(_))) => {
            mask(&mut value);
            serde_json::to_string_pretty(&value).unwrap_or_default()
        }
        Ok(_) | Err(_) => text.lines().map(line).collect::<Vec<_>>().join("\n"),
    }
}

fn mask(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                if is_secret(key) {
                    *value = MASK.into();
                } else {
                    mask(value);
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(mask),
        Value::String(text) => *text = text.lines().map(line).collect::<Vec<_>>().join("\n"),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn line(text: &str) -> String {
    if let Ok(mut value @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(text) {
        mask(&mut value);
        return value.to_string();
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['=', ':']) {
        let (head, tail) = rest.split_at(at + 1);
        let whole = &text[..text.len() - tail.len() - 1];
        let key = key_at_the_end(whole);
        shown.push_str(head);
        rest = tail;
        if tail.starts_with("//") || !is_secret(key) {
            continue;
        }
        let value = value_at_the_start(rest, is_alone(whole, key) || takes_the_line(key));
        if !value.trim().is_empty() {
            let blank = &value[..value.len() - value.trim_start().len()];
            shown.push_str(blank);
            shown.push_str(MASK);
            rest = &rest[value.len()..];
        }
    }
    shown.push_str(rest);
    without_userinfo(&shown)
}

/// The word before a separator: `"api-key" ` and `export TOKEN` alike.
fn key_at_the_end(text: &str) -> &str {
    let text = text.trim_end_matches([' ', '\t', '"', '\'']);
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let start = text
        .rfind(|c: char| !is_part(c))
        .map_or(0, |at| at + text[at..].chars().next().map_or(1, char::len_utf8));
    &text[start..]
}

/// Whether nothing but a key stands before a separator: then the value is the rest of the line.
fn is_alone(whole: &str, key: &str) -> bool {
    let before = whole.trim_end_matches([' ', '\t', '"', '\'']).strip_suffix(key).unwrap_or(whole);
    matches!(before.trim().trim_matches(['"', '\'', '-', ' ']), "" | "export")
}

/// Headers whose value is several words.
fn takes_the_line(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    key.ends_with("authorization") || key.ends_with("cookie")
}

/// The value after a separator, the blanks before it included.
fn value_at_the_start(text: &str, to_the_end: bool) -> &str {
    if to_the_end {
        return text;
    }
    let start = text.len() - text.trim_start_matches([' ', '\t']).len();
    let value = &text[start..];
    let end = match value.chars().next() {
        Some(quote @ ('"' | '\'')) => value[1..].find(quote).map_or(value.len(), |at| at + 2),
        _ => value
            .find(|c: char| {
                c.is_whitespace() || matches!(c, ',' | ';' | ')' | ']' | '}' | '&' | '"')
            })
            .unwrap_or(value.len()),
    };
    &text[..start + end]
}

fn is_secret(key: &str) -> bool {
    let plain: String =
        key.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    SECRET.iter().any(|secret| plain.contains(secret))
        || SECRET_ALONE.contains(&plain.as_str())
        || key.to_ascii_lowercase().ends_with("_key")
}

/// The text without the user and the password of the URLs in it.
fn without_userinfo(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        shown.push_str(before);
        let end = after
            .find(|c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"' | '\''))
            .unwrap_or(after.len());
        match after[..end].rfind('@') {
            Some(host) => {
                shown.push_str(MASK);
                rest = &after[host..];
            }
            None => rest = after,
        }
    }
    shown.push_str(rest);
    shown
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(masked(text), expected);
    }

    #[test]
    fn secrets_are_known_by_their_keys() {
        check("level = info\ndb_password = hunter2", "level = info\ndb_password = ***");
        check("API-Key: abc\nkeys: 3", "API-Key: ***\nkeys: 3");
        check("export AWS_SECRET_ACCESS_KEY=abc", "export AWS_SECRET_ACCESS_KEY=***");
        check("12:03 INFO got password=abc, level=7", "12:03 INFO got password=***, level=7");
        check("say token: \"a b\" and more", "say token: *** and more");
        check("GET /?token=abc&x=1", "GET /?token=***&x=1");
        check("> Authorization: Bearer abc", "> Authorization: ***");
        check("{\"a\": {\"secret\": 1}} and", "{\"a\": {\"secret\": ***}} and");
        check("{\"details\": \"x\\ntoken: t\"}\nb", "{\"details\":\"x\\ntoken: ***\"}\nb");
        check("token =", "token =");
        check("url = https://u:p@host/x?y", "url = https://***@host/x?y");
        check("https://host/a and ftp://me@there", "https://host/a and ftp://***@there");
        check("just words", "just words");
        check("", "");
    }

    #[test]
    fn secrets_of_json_are_masked_at_any_depth() {
        let text =
            r#"{"a": [{"clientSecret": {"x": 1}}, "postgres://u:p@db/"], "key": "k", "n": 1}"#;
        let masked: Value = serde_json::from_str(&masked(text)).expect("JSON");
        let expected = serde_json::json!({
            "a": [{"clientSecret": MASK}, "postgres://***@db/"], "key": MASK, "n": 1
        });
        assert_eq!(masked, expected);
    }

    proptest! {
        #[test]
        fn law_a_secret_never_shows(
            key in "[a-z]{0,5}(password|token|secret)[a-z]{0,5}",
            secret in "[A-Z]{12}",
            form in 0usize..3,
        ) {
            let text = match form {
                0 => format!("a = 1\n{key} = {secret}\nb = 2"),
                1 => format!("{key}: \"{secret}\""),
                _ => format!("{{\"x\": {{\"{key}\": \"{secret}\"}}}}"),
            };
            prop_assert!(!masked(&text).contains(&secret), "{text}");
        }

        #[test]
        fn law_arbitrary_text_is_no_panic(text in any::<String>()) {
            let _whatever_it_says = masked(&text);
        }
    }
}
