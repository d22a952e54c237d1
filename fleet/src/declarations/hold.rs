//! A hold: changes wait while it is there.

use guest_fleet_core::view::Hold;

use super::fields::{Context, Fields};
use super::tree::{Node, Value};
use super::values;

const ALLOWED: [&str; 6] = ["name", "select", "own_labels", "plugins", "reason", "until"];

const HINTS: [(&str, &str); 2] = [
    ("plugin", "write `plugins = [\"…\"]`"),
    ("by", "leave it out: the ledger keeps who applied it"),
];

/// Reads one hold; `None` when it has a problem. Who set it is empty: the ledger keeps that.
pub(crate) fn read(context: &mut Context<'_>, node: &Node) -> Option<(String, Hold)> {
    let fields = Fields::new(context, node, "hold", &ALLOWED, &HINTS)?;
    let name = values::name(context, &fields);
    let selector = values::selector(context, &fields);
    let plugins = values::plugins(context, &fields);
    let reason = fields.required_text(context, "reason").and_then(|(text, at)| {
        match values::check_reason(text) {
            Ok(()) => Some(text.to_owned()),
            Err(reason) => {
                context.problem(
                    at,
                    &fields.key("reason"),
                    reason,
                    "say in one line why changes wait",
                );
                None
            }
        }
    });
    let until = match fields.get("until") {
        None => Some(None),
        Some(node) => {
            // TOML has times of its own; one with an offset is as good as a text.
            let text = match &node.value {
                Value::Date(text) => Some(text.as_str()),
                _ => context.text(node, &fields.key("until")),
            };
            text.and_then(|text| match values::check_until(text) {
                Ok(until) => Some(Some(until)),
                Err(reason) => {
                    let fix = "write a time with its offset, such as \"2030-01-31T12:00:00Z\"";
                    context.problem(node.place, &fields.key("until"), reason, fix);
                    None
                }
            })
        }
    };
    let (selector, own_labels) = selector?;
    let hold =
        Hold { selector, own_labels, plugins, reason: reason?, by: String::new(), until: until? };
    Some((name?.0, hold))
}
