//! Reads `config/prometheus-alerts.yml` and `config/prometheus-fleet-alerts.yml`, line by line: every key of an alert
//! stands on one line.
//!
//! Tests of the documentation use it, and tests that have promtool look at real series.

use std::path::{Path, PathBuf};

/// One alert, as the file has it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alert {
    pub(crate) name: String,
    pub(crate) expression: String,
    /// How long the expression has to hold.
    pub(crate) lasts: String,
    pub(crate) severity: String,
    pub(crate) summary: String,
    pub(crate) description: String,
    pub(crate) runbook: String,
}

/// Where a file of alerts is.
pub(crate) fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// All alerts of a file, in its order.
///
/// # Panics
/// A line has a form that this reader does not know.
pub(crate) fn all(file: &str) -> Vec<Alert> {
    let path = path(file);
    let text = std::fs::read_to_string(&path);
    let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut alerts: Vec<Alert> = Vec::new();
    for line in text.lines().map(str::trim) {
        let Some((key, value)) = line.split_once(':') else {
            assert!(line.is_empty() || line.starts_with('#'), "no key and value: {line}");
            continue;
        };
        let value = unquoted(value.trim());
        if key == "- alert" {
            alerts.push(Alert { name: value, ..Alert::default() });
            continue;
        }
        let field = alerts.last_mut().and_then(|alert| match key {
            "expr" => Some(&mut alert.expression),
            "for" => Some(&mut alert.lasts),
            "severity" => Some(&mut alert.severity),
            "summary" => Some(&mut alert.summary),
            "description" => Some(&mut alert.description),
            "runbook_url" => Some(&mut alert.runbook),
            _ => None,
        });
        let is_of_no_alert = ["groups", "- name", "rules", "labels", "annotations"].contains(&key);
        match field {
            Some(field) => {
                assert!(field.is_empty(), "{key} stands twice: {line}");
                *field = value;
            }
            None => assert!(is_of_no_alert || line.starts_with('#'), "an unknown key: {line}"),
        }
    }
    alerts
}

/// A value without the quotes around it. There are no escapes in the file.
fn unquoted(value: &str) -> String {
    let bare = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    assert!(bare.is_none_or(|text| !text.contains(['"', '\\'])), "an escape: {value}");
    bare.unwrap_or(value).to_owned()
}
