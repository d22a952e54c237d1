//! The same page in the text format 0.0.4: there a family has the name of its samples, there are no units,
//! and the end is where the text ends. Pure.

use super::catalogue::{Kind, METRICS};

/// Turns a page in OpenMetrics' text format into one in the format 0.0.4.
pub(super) fn plain(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    // Not `lines`: a carriage return is a part of whatever text it stands in.
    for line in page.split_terminator('\n') {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF" | "UNIT"), ..) => continue,
            (Some("#"), Some(word), Some(family), Some(rest)) => {
                let metric = METRICS.iter().find(|metric| metric.family() == family);
                let suffix = metric.map_or("", |metric| metric.suffix());
                let is_info = metric.map(|metric| metric.kind) == Some(Kind::Info);
                let rest = if word == "TYPE" && is_info { "gauge" } else { rest };
                for part in ["# ", word, " ", family, suffix, " ", rest] {
                    text.push_str(part);
                }
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}
