//! Masks secrets in configurations, by the names of their keys. One filter for whatever shows a
//! configuration to a person.
//!
//! It knows JSON, and lines of the form `key = value` or `key: value`. A secret under a harmless name
//! is not recognized: what is shown stays for those who may see the configuration.

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
        Value::String(text) => *text = without_userinfo(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn line(text: &str) -> String {
    let split = text.find(['=', ':']).filter(|at| !text[*at..].starts_with("://"));
    let Some(at) = split else { return without_userinfo(text) };
    let (key, rest) = text.split_at(at);
    let key = key.trim().trim_start_matches("export ").trim_matches(['"', '\'', '-', ' ']);
    if is_secret(key) && rest.len() > 1 {
        format!("{}{} {MASK}", &text[..at], &rest[..1])
    } else {
        without_userinfo(text)
    }
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
        check("export AWS_SECRET_ACCESS_KEY=abc", "export AWS_SECRET_ACCESS_KEY= ***");
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
