//! What verbs read from the index: how old it is, and counts in words.

use std::collections::BTreeMap;

use guest_fleet_core::fold::{Declared, Doors, Presence, Row, Word, count};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::context::Context;
use super::document::Time;
use super::failure::{Exit, Failure};
use super::standing::State;
use super::text::counted;
use crate::configuration::{Configuration, words};
use crate::fold::patience::patience;
use crate::fold::reader::{Counts, Index, IndexError};
use crate::ledger::bounds;

/// Oldest index that is shown without a remark, in seconds. Owners renew it every few seconds.
const OLD: u64 = 60;

/// How old the index is from which an answer was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IndexJson {
    /// Seconds since then.
    pub age_seconds: u64,
    /// Everything that was written until then is in the answer.
    #[schemars(with = "Time")]
    pub as_of: String,
    /// Whether it is so old that nobody seems to fold it.
    pub old: bool,
}

/// How many agents stand at one point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StateCountJson {
    /// How many.
    pub agents: u64,
    /// Where they stand.
    pub state: State,
}

/// How many agents stand where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StandingsJson {
    /// All of them, without those that are archived.
    pub agents: u64,
    /// By where they stand.
    pub states: Vec<StateCountJson>,
}

/// Opens the index; `None` where it was never whole. Remarks when it is old.
pub(crate) async fn open<'a>(
    context: &mut Context<'a>,
) -> Result<Option<(Index<'a>, IndexJson)>, Failure> {
    let Some(index) = Index::open(context.ledger).await? else { return Ok(None) };
    let Some(as_of) = index.as_of() else { return Ok(None) };
    let age = context.seconds().since(as_of);
    let age_json = IndexJson { age_seconds: age, as_of: words::time(as_of), old: age > OLD };
    tell_age(&age_json, context)?;
    Ok(Some((index, age_json)))
}

/// Remarks that an index is old, where it is.
///
/// # Errors
/// It cannot be printed.
pub(crate) fn tell_age(age: &IndexJson, context: &mut Context<'_>) -> Result<(), Failure> {
    if age.old {
        context.remark(format_args!(
            "the index is from {}, {} ago: no `guest-fleet serve` keeps it up to date",
            age.as_of,
            ago(age.age_seconds)
        ))?;
    }
    Ok(())
}

/// How many of the agents that the caller sees stand where; `None` where the index was never whole.
pub(crate) async fn counts(
    context: &mut Context<'_>,
) -> Result<Option<(Counts, IndexJson)>, Failure> {
    let Some((mut index, age)) = open(context).await? else { return Ok(None) };
    let (now, zones) = (context.seconds(), context.zones);
    if context.sees.is_all() {
        return Ok(Some((index.counts(now, zones), age)));
    }
    // The counts that are kept are those of all agents.
    let configuration = Configuration::load(context.ledger).await?;
    let declared = Declared::new(configuration.view(), patience);
    let (holds, windows) = index.hours();
    let doors = Doors { holds: &holds, windows: &windows, zones };
    let mut counts = Counts::default();
    let mut after: Option<String> = None;
    loop {
        let sees = &context.sees;
        let page = index.page(after.as_deref(), bounds::PAGE, |_, row| sees.row(row)).await?;
        let rows: BTreeMap<String, Row> = page.rows.into_iter().collect();
        counts.add(count(&rows, &declared, now).at(now), now, &doors);
        after = page.next;
        if after.is_none() {
            return Ok(Some((counts, age)));
        }
    }
}

/// `5 seconds`, `3 minutes`, `2 days`.
pub(crate) fn ago(seconds: u64) -> String {
    let (count, unit) = match seconds {
        0..120 => (seconds, "second"),
        120..7200 => (seconds / 60, "minute"),
        7200..172_800 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    counted(usize::try_from(count).unwrap_or(usize::MAX), unit)
}

/// `12 done, 3 held, 1 failed`.
pub(crate) fn sentence(standings: &StandingsJson) -> String {
    let all = standings.states.iter();
    let all = all.map(|one| format!("{} {}", one.agents, one.state.text()));
    all.collect::<Vec<_>>().join(", ")
}

/// How present agents are, in a word.
pub(crate) fn presence(presence: Presence) -> &'static str {
    match presence {
        Presence::Present => "present",
        Presence::Away => "away",
        Presence::NeverSeen => "never seen",
        Presence::Quarantined => "quarantined",
        Presence::Archived => "archived",
    }
}

// === impl StandingsJson ===

impl From<&BTreeMap<Word, u64>> for StandingsJson {
    fn from(counts: &BTreeMap<Word, u64>) -> Self {
        let states = counts.iter().map(|(word, agents)| (State::from(*word), *agents));
        let archived = counts.get(&Word::Archived).copied().unwrap_or(0);
        Self {
            agents: counts.values().sum::<u64>().saturating_sub(archived),
            states: states.map(|(state, agents)| StateCountJson { agents, state }).collect(),
        }
    }
}

impl From<IndexError> for Failure {
    fn from(error: IndexError) -> Self {
        let exit = match error {
            IndexError::Read(_) => Exit::Unreachable,
            IndexError::Record(_) | IndexError::Moving => Exit::Failed,
        };
        Failure::of(exit, &error).hint("`guest-fleet agents --scan` reads the agents themselves")
    }
}
