//! Values as TOML writes them on one line.

use serde_json::Value;

/// A basic string. What JSON escapes is escaped in TOML in the same way.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

pub(super) fn key(name: &str) -> String {
    let is_bare = !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if is_bare { name.to_owned() } else { quoted(name) }
}

/// A value on one line. TOML has no null: what would be null is left out.
pub(super) fn inline(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let members = members.iter().filter(|(_, value)| !value.is_null());
            let pairs: Vec<_> =
                members.map(|(name, value)| format!("{} = {}", key(name), inline(value))).collect();
            format!("{{ {} }}", pairs.join(", ")).replace("{  }", "{}")
        }
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(inline).collect();
            format!("[{}]", items.join(", "))
        }
        Value::String(text) => quoted(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_back_as_they_were() {
        let value = serde_json::json!({
            "a b": [1, 2.5, true, "x\"y\n", {}],
            "deep": { "more": { "none": null, "empty": [] } },
        });
        let text = format!("v = {}", inline(&value));
        let read: toml_edit::DocumentMut = text.parse().expect("it is TOML");
        assert_eq!(read["v"]["a b"][3].as_str(), Some("x\"y\n"));
        assert_eq!(read["v"]["a b"][1].as_float(), Some(2.5));
        assert!(read["v"]["deep"]["more"].get("none").is_none());
        assert!(read["v"]["deep"]["more"]["empty"].is_array());
    }
}
