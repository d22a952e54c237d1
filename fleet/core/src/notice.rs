//! Notices: happenings in a fleet that no plugin reports, and of which somebody wants to know.
//!
//! ```text
//!   audit record ──────────────► rollouts, orders that stopped ─┐
//!   presence of agents ─► Told::step ─► agents ─────────────────┼─► log of events ─► people, webhooks
//!   certificates ───────────────► how soon they end ────────────┘
//! ```
//!
//! A notice of a trouble is followed by one of its end, so that a receiver can close what it opened.

use std::collections::{BTreeMap, BTreeSet};

use crate::listed;
use crate::presence::Presence;

/// Most agents that are known by name in each state. While more are in it, single ones are not noticed.
pub const NAMED: usize = 1000;

/// Most agents of one look that have a notice each; more have one together.
pub const SINGLE: usize = 20;

listed! {
    /// A kind of notice.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Kind {
        /// An agent has had no stream for longer than the fleet waits for one.
        AgentOffline = "AGENT_OFFLINE",
        /// An agent that was offline has a stream again.
        AgentConnected = "AGENT_CONNECTED",
        /// An agent that was offline is counted no longer: it was silent for too long, or a person took it out.
        AgentArchived = "AGENT_ARCHIVED",
        /// Two machines use the identity of an agent. It gets no orders.
        AgentQuarantined = "AGENT_QUARANTINED",
        /// An agent left its quarantine.
        AgentReleased = "AGENT_RELEASED",
        /// A rollout began; it took the place of the one before it.
        RolloutBegan = "ROLLOUT_BEGAN",
        /// A rollout halted.
        RolloutHalted = "ROLLOUT_HALTED",
        /// A rollout waits for a person to approve its next wave.
        RolloutWaits = "ROLLOUT_WAITS",
        /// A person let a rollout go on.
        RolloutResumed = "ROLLOUT_RESUMED",
        /// The agents of a rollout have the former target again.
        RolloutRolledBack = "ROLLOUT_ROLLED_BACK",
        /// A person ended a rollout where it was.
        RolloutAborted = "ROLLOUT_ABORTED",
        /// A rollout is done.
        RolloutDone = "ROLLOUT_DONE",
        /// Orders of an assignment stopped by themselves: many agents drifted, or the ledger went back.
        OrdersPaused = "ORDERS_PAUSED",
        /// Orders of an assignment are given again.
        OrdersResumed = "ORDERS_RESUMED",
        /// A certificate ends soon, or has ended.
        CertificateEnds = "CERTIFICATE_ENDS",
        /// A certificate was renewed in time, or after all.
        CertificateRenewed = "CERTIFICATE_RENEWED",
    }
}

/// The agents in one state that were noticed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Noticed {
    /// By name.
    pub agents: BTreeSet<String>,
    /// The most that there were since they became more than [`NAMED`]; 0 while they are not. Then none has a name here.
    pub beyond: u64,
}

/// The agents whose state was noticed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The agents that are offline.
    pub offline: Noticed,
    /// The agents in quarantine.
    pub quarantined: Noticed,
}

/// Agents that came into a state, or left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The kind of their notice.
    pub kind: Kind,
    /// Their ids; of more than [`SINGLE`] the first ones.
    pub agents: Vec<String>,
    /// How many they are.
    pub count: u64,
}

// === impl Told ===

impl Told {
    /// The changes since the last look. `now` has the presence of each agent that is offline or in quarantine now,
    /// and of each that [`Self::names`] and has a record.
    pub fn step(&mut self, now: &BTreeMap<String, Presence>) -> Vec<Change> {
        let with = |presence: Presence| -> BTreeSet<String> {
            let with = now.iter().filter(|(_, one)| **one == presence);
            with.map(|(id, _)| id.clone()).collect()
        };
        let mut changes = Vec::new();
        let quarantined = with(Presence::Quarantined);
        let (entered, left) = self.offline.step(with(Presence::Offline));
        let mut back = Vec::new();
        let mut gone = Vec::new();
        for id in left.agents {
            match now.get(&id) {
                // Its quarantine is the news.
                Some(Presence::Quarantined) => {}
                None | Some(Presence::Archived) => gone.push(id),
                Some(_) => back.push(id),
            }
        }
        group(Kind::AgentConnected, back, left.more, &mut changes);
        group(Kind::AgentArchived, gone, 0, &mut changes);
        let (isolated, released) = self.quarantined.step(quarantined);
        group(Kind::AgentReleased, released.agents, released.more, &mut changes);
        group(Kind::AgentQuarantined, isolated.agents, isolated.more, &mut changes);
        group(Kind::AgentOffline, entered.agents, entered.more, &mut changes);
        changes
    }

    /// Whether the state of an agent was noticed.
    #[must_use]
    pub fn names(&self, id: &str) -> bool {
        self.offline.agents.contains(id) || self.quarantined.agents.contains(id)
    }
}

/// Agents by name, and how many without one.
#[derive(Debug, Default)]
struct Moved {
    agents: Vec<String>,
    more: u64,
}

// === impl Noticed ===

impl Noticed {
    /// Agents that came into the state, and agents that left it.
    fn step(&mut self, now: BTreeSet<String>) -> (Moved, Moved) {
        let count = |agents: &BTreeSet<String>| u64::try_from(agents.len()).unwrap_or(u64::MAX);
        let (is_beyond, was_beyond) = (now.len() > NAMED, self.beyond > 0);
        let (mut entered, mut left) = (Moved::default(), Moved::default());
        if is_beyond {
            if !was_beyond {
                entered.agents = now.difference(&self.agents).cloned().collect();
                left.agents = self.agents.difference(&now).cloned().collect();
            }
            *self = Self { agents: BTreeSet::new(), beyond: self.beyond.max(count(&now)) };
        } else if was_beyond {
            left.more = self.beyond.saturating_sub(count(&now));
            *self = Self { agents: now, beyond: 0 };
        } else {
            entered.agents = now.difference(&self.agents).cloned().collect();
            left.agents = self.agents.difference(&now).cloned().collect();
            self.agents = now;
        }
        (entered, left)
    }
}

/// A change for each of few agents, or one for many.
fn group(kind: Kind, mut agents: Vec<String>, more: u64, changes: &mut Vec<Change>) {
    let count = u64::try_from(agents.len()).unwrap_or(u64::MAX).saturating_add(more);
    if more == 0 && agents.len() <= SINGLE {
        let each = agents.into_iter();
        changes.extend(each.map(|agent| Change { kind, agents: vec![agent], count: 1 }));
    } else {
        agents.truncate(SINGLE);
        changes.push(Change { kind, agents, count });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids(numbers: impl IntoIterator<Item = usize>) -> impl Iterator<Item = String> {
        numbers.into_iter().map(|number| format!("a{number:05}"))
    }

    fn with(
        presence: Presence,
        numbers: impl IntoIterator<Item = usize>,
    ) -> BTreeMap<String, Presence> {
        ids(numbers).map(|id| (id, presence)).collect()
    }

    fn one(kind: Kind, number: usize) -> Change {
        Change { kind, agents: ids([number]).collect(), count: 1 }
    }

    #[test]
    fn an_agent_is_noticed_when_it_goes_and_when_it_comes_back() {
        let mut told = Told::default();
        let offline = with(Presence::Offline, [1]);
        assert_eq!(told.step(&offline), [one(Kind::AgentOffline, 1)]);
        assert_eq!(told.step(&offline), []);
        let connected = with(Presence::Connected, [1]);
        assert_eq!(told.step(&connected), [one(Kind::AgentConnected, 1)]);
        assert_eq!(told.step(&connected), []);
        assert_eq!(told, Told::default());
    }

    #[test]
    fn an_agent_that_is_counted_no_longer_is_not_back() {
        for gone in [BTreeMap::new(), with(Presence::Archived, [1])] {
            let mut told = Told::default();
            told.step(&with(Presence::Offline, [1]));
            assert_eq!(told.step(&gone), [one(Kind::AgentArchived, 1)]);
        }
    }

    #[test]
    fn a_quarantine_takes_the_place_of_an_absence() {
        let mut told = Told::default();
        told.step(&with(Presence::Offline, [1]));
        let quarantined = with(Presence::Quarantined, [1]);
        assert_eq!(told.step(&quarantined), [one(Kind::AgentQuarantined, 1)]);
        let expected = [one(Kind::AgentReleased, 1), one(Kind::AgentOffline, 1)];
        assert_eq!(told.step(&with(Presence::Offline, [1])), expected);
    }

    #[test]
    fn many_agents_have_one_notice() {
        let mut told = Told::default();
        let expected =
            |kind, count: u64| [Change { kind, agents: ids(0..SINGLE).collect(), count }];
        let many = 0..SINGLE + 1;
        let count = 21;
        let went = told.step(&with(Presence::Offline, many.clone()));
        assert_eq!(went, expected(Kind::AgentOffline, count));
        let back = told.step(&with(Presence::Connected, many));
        assert_eq!(back, expected(Kind::AgentConnected, count));
    }

    #[test]
    fn beyond_the_names_single_agents_are_not_noticed() {
        let mut told = Told::default();
        told.step(&with(Presence::Offline, [0]));
        let mut many = with(Presence::Offline, 1..NAMED + 2);
        many.extend(with(Presence::Connected, [0]));
        let went = told.step(&many);
        let agents: Vec<String> = ids(1..=SINGLE).collect();
        let gone = Change { kind: Kind::AgentOffline, agents, count: 1001 };
        assert_eq!(went, [one(Kind::AgentConnected, 0), gone]);
        assert_eq!(told.step(&with(Presence::Offline, 5..NAMED + 50)), []);
        assert!(told.offline.agents.is_empty());
        let back = told.step(&with(Presence::Offline, 0..NAMED));
        assert_eq!(back, [Change { kind: Kind::AgentConnected, agents: Vec::new(), count: 45 }]);
        assert_eq!(told.step(&with(Presence::Offline, 1..NAMED)), [one(Kind::AgentArchived, 0)]);
    }

    #[test]
    fn names_are_those_of_their_kinds() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of_name(kind.name()), Some(kind));
        }
        assert_eq!(Kind::of_name("AGENT"), None);
    }

    proptest! {
        /// Notices of a state and of its end take turns for each agent, whatever the looks find.
        #[test]
        fn law_each_trouble_is_followed_by_its_end(
            looks in prop::collection::vec(prop::collection::btree_map(0_usize..6, 0_usize..5, 0..6), 0..12)
        ) {
            let presences = [
                Presence::Connected, Presence::Disconnected, Presence::Offline, Presence::Quarantined, Presence::Archived,
            ];
            let (mut told, mut open) = (Told::default(), BTreeMap::<String, Kind>::new());
            for look in looks {
                let now: BTreeMap<String, Presence> = look
                    .iter()
                    .map(|(number, at)| (ids([*number]).collect(), presences[*at]))
                    .collect();
                for change in told.step(&now) {
                    prop_assert_eq!(change.count, 1);
                    let id = change.agents[0].clone();
                    let before = open.get(&id).copied();
                    let allowed = match change.kind {
                        Kind::AgentOffline => before.is_none(),
                        Kind::AgentQuarantined => before != Some(Kind::AgentQuarantined),
                        Kind::AgentReleased => before == Some(Kind::AgentQuarantined),
                        _ => before == Some(Kind::AgentOffline),
                    };
                    prop_assert!(allowed, "{:?} after {:?}", change.kind, before);
                    match change.kind {
                        Kind::AgentOffline | Kind::AgentQuarantined => drop(open.insert(id, change.kind)),
                        _ => drop(open.remove(&id)),
                    }
                }
                for (id, presence) in &now {
                    let expected = match presence {
                        Presence::Offline => Some(Kind::AgentOffline),
                        Presence::Quarantined => Some(Kind::AgentQuarantined),
                        _ => None,
                    };
                    prop_assert_eq!(open.get(id).copied(), expected);
                }
            }
        }
    }
}
