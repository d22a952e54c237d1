//! An assignment: which agents should run which release, or should be without a plugin, and how changes
//! of that go.

use guest_fleet_core::rollout::Strategy;
use guest_fleet_core::view::{Assignment, Target};

use super::fields::{Context, Fields};
use super::tree::Node;
use super::{strategy, values};

const ALLOWED: [&str; 8] =
    ["name", "plugin", "revision", "absent", "select", "own_labels", "priority", "rollout"];

const HINTS: [(&str, &str); 4] = [
    ("strategy", "write `[assignment.rollout]`"),
    ("selector", "write `select`"),
    ("labels", "write `select = \"key = value\"`"),
    ("attempt", "leave it out: `guest-fleet retry NAME` raises it"),
];

/// Reads one assignment; `None` when it has a problem. Its attempt is 0: the ledger keeps that.
pub(crate) fn read(context: &mut Context<'_>, node: &Node) -> Option<(String, Assignment)> {
    let fields = Fields::new(context, node, "assignment", &ALLOWED, &HINTS)?;
    let name = values::name(context, &fields);
    let plugin = values::plugin(context, &fields);
    let target = target(context, &fields);
    let selector = values::selector(context, &fields);
    let priority = match fields.integer(context, "priority") {
        None if fields.get("priority").is_some() => None,
        None => Some(0),
        Some((number, at)) => {
            let priority = i32::try_from(number).ok();
            if priority.is_none() {
                let reason = format!("{number} is not a priority");
                let fix = "write a whole number between -2147483648 and 2147483647";
                context.problem(at, &fields.key("priority"), reason, fix);
            }
            priority
        }
    };
    let strategy = match fields.get("rollout") {
        Some(node) => strategy::read(context, node, &fields.key("rollout")),
        None => Some(Strategy::default()),
    };
    let (selector, own_labels) = selector?;
    let assignment = Assignment {
        plugin: plugin?,
        target: target?,
        selector,
        own_labels,
        priority: priority?,
        attempt: 0,
        strategy: strategy?,
        declared: None,
    };
    Some((name?.0, assignment))
}

fn target(context: &mut Context<'_>, fields: &Fields<'_>) -> Option<Target> {
    let is_absent = fields.flag(context, "absent");
    match (fields.get("revision"), is_absent) {
        (Some(_), false) => {
            let (text, at) = fields.text(context, "revision")?;
            let revision = values::revision(context, text, at, &fields.key("revision"))?;
            Some(Target::Revision(revision))
        }
        (None, true) => Some(Target::Absent),
        (Some(node), true) => {
            let reason = "there is a revision, and `absent = true`";
            let fix = "remove one: a revision installs, `absent = true` removes the plugin from the machines";
            context.problem(node.place, &fields.key("revision"), reason, fix);
            None
        }
        (None, false) => {
            let reason = "it says neither which revision nor that the plugin should be absent";
            context.problem(
                fields.place(),
                "assignment",
                reason,
                "add `revision` or `absent = true`",
            );
            None
        }
    }
}
