//! `agent label`: labels that an operator gives an agent.
//!
//! The agent is in another bucket than the audit record, and no write spans two. So the entry is
//! written first: it may tell of a label that was not set after all, but no label is set without one.

use std::collections::BTreeMap;
use std::str::FromStr;

use clap::Args;
use guest_fleet_core::labels::OWN_PREFIX;
use guest_fleet_core::selector::Selector;
use guest_fleet_ledger::records::agent::AgentRecord;
use guest_fleet_ledger::{Bucket, records};
use guest_fleet_server::configuration::change::{self, Becomes, Edit};
use guest_fleet_server::enroll::write::{self, ChangeError, Step};

use super::context::Context;
use super::document::ChangeJson;
use super::facts::unknown;
use super::failure::{Exit, Failure};

/// Most labels that an operator gives one agent.
const LABELS: usize = 64;
/// Longest key, and longest value, in bytes.
const BYTES: usize = 128;

/// The options of `agent label`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Id of the agent.
    pub id: String,
    /// `key=value` sets a label, `key-` takes it away.
    #[arg(required = true, value_name = "LABEL")]
    pub labels: Vec<Wish>,
    /// Why, for the audit record.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub reason: String,
}

/// What should become of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    key: String,
    /// `None` takes it away.
    value: Option<String>,
}

/// Runs the verb.
///
/// # Errors
/// There is no such agent, it would have too many labels, or the ledger did not take it.
pub async fn run(options: &Options, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let key = options.id.as_str();
    let before = read(context, key).await?;
    let after = wished(&before.operator_labels, &options.labels)?;
    if after == before.operator_labels {
        ChangeJson::of(None, &[]).print(context)?;
        return Ok(Exit::Done);
    }
    let edit = Edit {
        key: format!("agent/{key}"),
        before: Some(shown(&before.operator_labels)),
        after: Some(shown(&after)),
        record: Becomes::Elsewhere,
    };
    let decision = context.decision("agent label", &options.reason);
    let changed =
        change::change(context.ledger, &decision, |_| Ok::<_, Failure>((vec![edit.clone()], ())))
            .await?;
    write(context, key, &options.labels).await?;
    ChangeJson::of(changed.entry, &[edit]).print(context)?;
    Ok(Exit::Done)
}

async fn read(context: &Context<'_>, key: &str) -> Result<AgentRecord, Failure> {
    let found = context.ledger.get(Bucket::Agents, key).await?.ok_or_else(|| unknown(key))?;
    Ok(records::decode(key, &found.value)?)
}

/// Gateways write the record as well, so it is read again when it changed.
async fn write(context: &Context<'_>, key: &str, wishes: &[Wish]) -> Result<(), Failure> {
    write::change(context.ledger, Bucket::Agents, key, |found: Option<AgentRecord>| {
        let mut record = found.ok_or_else(|| unknown(key))?;
        let after = wished(&record.operator_labels, wishes)?;
        if after == record.operator_labels {
            // An earlier try happened.
            return Ok(Step::Leave(()));
        }
        record.operator_labels = after;
        Ok(Step::Write(record, ()))
    })
    .await
}

impl From<ChangeError> for Failure {
    fn from(error: ChangeError) -> Self {
        Self::of(Exit::Failed, &error).hint("it may be as it was: try again")
    }
}

fn wished(
    labels: &BTreeMap<String, String>,
    wishes: &[Wish],
) -> Result<BTreeMap<String, String>, Failure> {
    let mut labels = labels.clone();
    for Wish { key, value } in wishes {
        match value {
            Some(value) => drop(labels.insert(key.clone(), value.clone())),
            None => drop(labels.remove(key)),
        }
    }
    if labels.len() > LABELS {
        return Err(Failure::failed(format_args!(
            "the agent would have {} labels, and {LABELS} are allowed",
            labels.len()
        ))
        .hint("take some away with `KEY-`"));
    }
    Ok(labels)
}

fn shown(labels: &BTreeMap<String, String>) -> String {
    if labels.is_empty() {
        return "no labels".to_owned();
    }
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

// === impl Wish ===

impl Wish {
    /// Key and value of a label that is to be set.
    pub(super) fn set(&self) -> Option<(&str, &str)> {
        Some((&self.key, self.value.as_deref()?))
    }
}

impl FromStr for Wish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = match (text.split_once('='), text.strip_suffix('-')) {
            (Some((key, value)), _) => (key, Some(value)),
            (None, Some(key)) => (key, None),
            (None, None) => return Err("write `key=value`, or `key-` to take it away".to_owned()),
        };
        if key.starts_with(OWN_PREFIX) {
            return Err(format!("`{OWN_PREFIX}` labels are the machine's own; choose another key"));
        }
        // What no selector can name is of no use as a label.
        let can_be_named = Selector::parse(&format!("{key} exists")).is_ok();
        if key.len() > BYTES || !can_be_named || key.contains(char::is_whitespace) {
            return Err(format!(
                "the key is 1 to {BYTES} letters, digits and `._/:-`, and no word of selectors"
            ));
        }
        let is_fine = |value: &str| {
            value.len() <= BYTES && !value.chars().any(|c| c.is_control() || c == '"')
        };
        if !value.is_none_or(is_fine) {
            return Err(format!(
                "the value has at most {BYTES} bytes, no quotes and no control characters"
            ));
        }
        Ok(Self { key: key.to_owned(), value: value.map(str::to_owned) })
    }
}
