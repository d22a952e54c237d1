//! What verbs read from the index: how old it is, and counts in words.

use std::collections::BTreeMap;

use guest_fleet_core::fold::Word;
use guest_fleet_server::configuration::words;
use guest_fleet_server::fold::reader::{Index, IndexError};
use guest_fleet_server::gateways::ends;
use schemars::JsonSchema;
use serde::Serialize;

use super::by_name::ByName;
use super::context::Context;
use super::document::Time;
use super::failure::{Exit, Failure};
use super::standing;
use super::text::ago;

/// Oldest index that is shown without a remark, in seconds. Owners renew it every few seconds.
const OLD: u64 = 60;

/// How old the index is from which an answer was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StateCountJson {
    /// How many.
    pub agents: u64,
    /// Where they stand.
    pub state: ByName<Word>,
}

/// How many agents stand where.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
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
    let Some(mut index) = Index::open(context.ledger).await? else { return Ok(None) };
    index.set_gateways(ends::beats(context.ledger).await?);
    let Some(as_of) = index.as_of() else { return Ok(None) };
    let age = context.seconds().since(as_of);
    let age_json = IndexJson { age_seconds: age, as_of: words::time(as_of), old: age > OLD };
    if age_json.old {
        context.remark(format_args!(
            "the index is from {}, {} ago: no `guest-fleet serve` keeps it up to date",
            age_json.as_of,
            ago(age)
        ))?;
    }
    Ok(Some((index, age_json)))
}

/// `12 done, 3 held, 1 failed`.
pub(crate) fn sentence(standings: &StandingsJson) -> String {
    let all = standings.states.iter();
    let all = all.map(|one| format!("{} {}", one.agents, standing::text(one.state.0)));
    all.collect::<Vec<_>>().join(", ")
}

// === impl StandingsJson ===

impl From<&BTreeMap<Word, u64>> for StandingsJson {
    fn from(counts: &BTreeMap<Word, u64>) -> Self {
        let states = counts.iter();
        let states =
            states.map(|(word, agents)| StateCountJson { agents: *agents, state: ByName(*word) });
        let archived = counts.get(&Word::Archived).copied().unwrap_or(0);
        Self {
            agents: counts.values().sum::<u64>().saturating_sub(archived),
            states: states.collect(),
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
