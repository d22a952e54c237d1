//! The file that `serve --policies` names: rules about changes, which declarations cannot set aside.
//!
//! ```toml
//! [[policy]]
//! name = "prod-by-rollout"
//! select = "env = prod"
//! at_once = false            # no change reaches these agents by `apply --at-once`
//! undo_owner_changes = true  # agents are brought back from what people on the machine changed
//! ```
//!
//! It is a file of the machine and not a declaration: who may declare could allow itself everything
//! otherwise. A server that starts writes it into the ledger, where everybody who plans a change reads it.

use std::collections::BTreeMap;
use std::path::Path;

use guest_fleet_core::view::{Policy, View};
use guest_fleet_ledger::records::configuration::{POLICY, PolicyRecord};
use prost::Message;

use super::fields::{Context, Fields};
use super::own_files::{self, Kind};
use super::problem::Problems;
use super::tree::Node;
use super::values;
use crate::configuration::change::{Becomes, Edit};
use crate::configuration::words;

/// Most policies.
pub const POLICIES: usize = 64;

const KIND: Kind = Kind {
    key: "policy",
    many: "policies",
    most: POLICIES,
    fewer: "let one selector be about more agents",
};

const ALLOWED: [&str; 4] = ["name", "select", "at_once", "undo_owner_changes"];
const HINTS: [(&str, &str); 1] =
    [("own_labels", "leave it out: labels that machines claim themselves loosen no rule")];

/// Reads the file. Blocks.
///
/// # Errors
/// It cannot be read, or has problems; then nothing of it is used.
pub fn read(path: &Path) -> Result<BTreeMap<String, Policy>, Problems> {
    own_files::read(path, &KIND, one).map(|found| found.into_iter().collect())
}

/// Reads the text of a file.
///
/// # Errors
/// All problems of it.
pub fn parse(file: &str, text: &str) -> Result<BTreeMap<String, Policy>, Problems> {
    own_files::parse(file, text, &KIND, one).map(|found| found.into_iter().collect())
}

fn one(context: &mut Context<'_>, node: &Node) -> Option<(String, Policy)> {
    let fields = Fields::new(context, node, "policy", &ALLOWED, &HINTS)?;
    let name = values::name(context, &fields);
    let selector = values::selector(context, &fields);
    let by_rollout = fields.get("at_once").is_some() && !fields.flag(context, "at_once");
    let undoes_owners = fields.flag(context, "undo_owner_changes");
    if !by_rollout && !undoes_owners {
        let reason = "the policy forbids nothing";
        let fix = "write `at_once = false` or `undo_owner_changes = true`, or leave the policy out";
        context.problem(node.place, &fields.key("at_once"), reason, fix);
        return None;
    }
    // `own_labels` is no key of a policy, and has been named as unknown where it is there.
    let (selector, _) = selector?;
    Some((name?.0, Policy { selector, by_rollout, undoes_owners }))
}

/// The edits that make the policies of a ledger those of a file.
#[must_use]
pub fn difference(view: &View, policies: &BTreeMap<String, Policy>) -> Vec<Edit> {
    let key = |name: &str| format!("{POLICY}{name}");
    let new = policies.iter().filter(|(name, policy)| view.policies.get(*name) != Some(policy));
    let new = new.map(|(name, policy)| Edit {
        key: key(name),
        before: view.policies.get(name).map(words::policy),
        after: Some(words::policy(policy)),
        record: Becomes::Bytes(PolicyRecord::of(policy).encode_to_vec().into()),
    });
    let gone = view.policies.iter().filter(|(name, _)| !policies.contains_key(*name));
    let gone = gone.map(|(name, policy)| Edit {
        key: key(name),
        before: Some(words::policy(policy)),
        after: None,
        record: Becomes::Deleted,
    });
    new.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[[policy]]\nname = \"prod\"\nselect = \"env = prod\"\nat_once = false\n";

    #[test]
    fn policies_are_read_and_compared_with_what_the_ledger_has() {
        let policies = parse("p.toml", GOOD).expect("it is right");
        assert_eq!(policies["prod"].selector.to_string(), "env = prod");
        let mut view = View::default();
        let edits = difference(&view, &policies);
        assert_eq!((edits.len(), edits[0].key.as_str()), (1, "policy/prod"));
        assert_eq!(edits[0].after.as_deref(), Some("no change at once on env = prod"));
        view.policies = policies.clone();
        assert!(difference(&view, &policies).is_empty());
        let gone = difference(&view, &BTreeMap::new());
        assert_eq!((gone.len(), &gone[0].record), (1, &Becomes::Deleted));
        assert_eq!(parse("p.toml", "").expect("nothing is right, too").len(), 0);
        let undo = GOOD.replace("at_once = false", "undo_owner_changes = true");
        let policies = parse("p.toml", &undo).expect("it is right");
        let rules = (policies["prod"].by_rollout, policies["prod"].undoes_owners);
        assert_eq!(rules, (false, true));
    }

    #[test]
    fn mistakes_in_policies_are_named() {
        let wrong = [
            ("name = \"prod\"\nselect = \"env = prod\"", "forbids nothing"),
            ("name = \"prod\"\nselect = \"all\"\nat_once = true", "forbids nothing"),
            ("name = \"p\"\nselect = \"all\"\nundo_owner_changes = 1", "undo_owner_changes"),
            ("name = \"p_\"\nselect = \"all\"\nat_once = false", "is not a name"),
            ("name = \"p\"\nselect = \"=\"\nat_once = false", "not a selector"),
            ("name = \"p\"\nselect = \"self.a = b\"\nat_once = false", "self"),
            (
                "name = \"p\"\nselect = \"all\"\nat_once = false\nown_labels = true",
                "loosen no rule",
            ),
        ];
        for (lines, expected) in wrong {
            let problems = parse("p.toml", &format!("[[policy]]\n{lines}\n")).expect_err(lines);
            let text: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
            assert!(text.join("\n").contains(expected), "{lines}: {text:?}");
        }
        assert!(parse("p.toml", &(GOOD.to_owned() + GOOD)).is_err());
        assert!(parse("p.toml", "[[policies]]\n").is_err());
    }
}
