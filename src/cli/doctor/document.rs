//! What `doctor` prints for scripts. Field names never change.

use guest_agent_proto::local::{LeftPlugin, LostRecord, SweepFate, SweepItem, SweepResponse};
use schemars::JsonSchema;
use serde::Serialize;

use super::super::format::rfc3339;
use super::super::json::{self, NameOf, Time};
use crate::doctor::{self, Agent, Finding, Host};

/// What is wrong on this machine.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Examination<'a> {
    /// The agent; null where it does not answer this user.
    agent: Option<json::Agent<'a>>,
    /// What was looked at.
    checked: Vec<&'static str>,
    /// What was found, the worst first.
    findings: &'a [Finding],
    /// Plugins of a lost store that the agent did not adopt.
    left_plugins: Vec<Left<'a>>,
    /// Records of the store that were set aside, the oldest first.
    lost_records: Vec<Lost<'a>>,
    /// Paths of whole stores that were set aside, the oldest first.
    lost_stores: &'a [String],
    /// Subjects that the caller may not look at, and about which the findings say nothing.
    not_looked_at: Vec<&'a str>,
}

/// A plugin of a lost store that the agent did not adopt.
#[derive(Debug, Serialize, JsonSchema)]
struct Left<'a> {
    /// Its name.
    name: &'a str,
    /// Why the agent did not adopt it.
    reason: &'a str,
}

/// A record of the store that was set aside.
#[derive(Debug, Serialize, JsonSchema)]
struct Lost<'a> {
    /// When it was set aside.
    #[schemars(with = "Option<Time>")]
    at: Option<String>,
    /// Its key, escaped where it is not text.
    key: &'a str,
    /// What is wrong with it.
    reason: &'a str,
    /// The table that it was in.
    table: &'a str,
}

/// What `doctor --sweep` prints: files that nothing refers to.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Sweep<'a> {
    /// What was found.
    items: Vec<Item<'a>>,
    /// Whether there is more than one run looks at.
    unfinished: bool,
}

/// A file or a folder that nothing refers to.
#[derive(Debug, Serialize, JsonSchema)]
struct Item<'a> {
    /// What becomes of it.
    #[schemars(with = "NameOf<SweepFate>")]
    fate: &'a str,
    /// Its path.
    path: &'a str,
    /// Why.
    why: &'a str,
}

/// What `doctor --clear-quarantine` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Cleared {
    /// How many records were forgotten.
    pub(super) records: u64,
}

/// What `doctor --forget` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Forgotten<'a> {
    /// The names of the plugins whose removal was begun.
    pub(super) forgotten: Vec<&'a str>,
}

/// The subjects that the caller may not look at.
pub(super) fn unseen(findings: &[Finding]) -> impl Iterator<Item = &str> {
    findings.iter().filter_map(|finding| finding.not_looked_at.as_deref())
}

// === impl Examination ===

impl<'a> Examination<'a> {
    pub(super) fn of(host: &Host<'a>, findings: &'a [Finding]) -> Self {
        let checked = doctor::CHECKS.iter().map(|check| check.about).collect();
        let itself = match host.agent {
            Agent::Answers { itself, .. } => Some(&**itself),
            Agent::Hidden { .. } | Agent::Silent { .. } => None,
        };
        Self {
            agent: itself.and_then(|itself| itself.agent.as_ref()).map(json::Agent::from),
            checked,
            findings,
            left_plugins: itself
                .map_or(&[][..], |it| &it.left_plugins)
                .iter()
                .map(Left::from)
                .collect(),
            lost_records: itself.map_or(&[][..], |it| &it.records).iter().map(Lost::from).collect(),
            lost_stores: itself.map_or(&[], |it| &it.stores),
            not_looked_at: unseen(findings).collect(),
        }
    }
}

impl<'a> From<&'a LeftPlugin> for Left<'a> {
    fn from(plugin: &'a LeftPlugin) -> Self {
        Self { name: &plugin.name, reason: &plugin.reason }
    }
}

impl<'a> From<&'a LostRecord> for Lost<'a> {
    fn from(lost: &'a LostRecord) -> Self {
        let at = rfc3339(lost.at.as_ref());
        Self { at, key: &lost.key, reason: &lost.reason, table: &lost.table }
    }
}

// === impl Sweep ===

impl<'a> From<&'a SweepResponse> for Sweep<'a> {
    fn from(report: &'a SweepResponse) -> Self {
        let items = report.items.iter().map(Item::from).collect();
        Self { items, unfinished: report.unfinished }
    }
}

impl<'a> From<&'a SweepItem> for Item<'a> {
    fn from(item: &'a SweepItem) -> Self {
        Self { fate: &item.fate, path: &item.path, why: &item.why }
    }
}
