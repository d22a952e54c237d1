//! Presence: whether an agent has a stream, to which gateway, and when it was seen last.
//!
//! ```text
//!   session of the agent ─┐                 ┌─► Link: connected, or lost since when
//!   beats of gateways ────┴─► Links::of ────┤
//!                                           └─► Presence at a time
//! ```
//!
//! A session is recorded when it begins, and when its gateway sees it end. A gateway that dies sees nothing: then its
//! last heartbeat is the end. Presence decides no order and no rollout, which have deadlines of their own.

use std::collections::BTreeMap;

use crate::listed;
use crate::time::{Seconds, rounded};

/// For how long an agent may have no stream before it is offline, in seconds, unless the fleet is set up for
/// another time.
pub const OFFLINE_AFTER: u64 = 120;

/// Age of a heartbeat from which on its gateway counts as dead, in seconds. Gateways write one every two seconds.
pub const OLD_BEAT: u64 = 15;

/// The last session of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Id of the gateway that has it.
    pub gateway: String,
    /// When it began.
    pub begun: Seconds,
    /// When the gateway saw its end; `None` while it goes on, or where the gateway died first.
    pub ended: Option<Seconds>,
}

/// The last sign of life of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// Its last heartbeat. More may follow.
    Last(Seconds),
    /// It ended then.
    End(Seconds),
}

/// The gateways of a fleet, and when an agent is offline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Links {
    /// By id.
    pub gateways: BTreeMap<String, Beat>,
    /// For how long an agent may have no stream before it is offline, in seconds.
    pub offline_after: u64,
}

/// Whether an agent has a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// It has one, and was seen then.
    Up(Seconds),
    /// It has none since then.
    Down(Seconds),
    /// It never had one.
    Never,
}

listed! {
    /// How present an agent is.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum Presence {
        /// It has a stream.
        Connected = "connected",
        /// It has had no stream for a short while.
        Disconnected = "disconnected",
        /// It has had no stream for longer than `serve --offline-after` says.
        Offline = "offline",
        /// It is recorded and never connected.
        NeverSeen = "never_seen",
        /// Two machines use its identity, so it gets no orders.
        Quarantined = "quarantined",
        /// It was silent for so long that no count includes it.
        Archived = "archived",
    }
}

// === impl Links ===

impl Default for Links {
    fn default() -> Self {
        Self { gateways: BTreeMap::new(), offline_after: OFFLINE_AFTER }
    }
}

impl Links {
    /// Whether an agent has a stream now, by its last session. `seen` is when it was seen last by its record,
    /// which says more only where there is no session, or nobody knows its gateway any more.
    #[must_use]
    pub fn of(&self, session: Option<&Session>, seen: Option<Seconds>, now: Seconds) -> Link {
        let Some(session) = session else { return seen.map_or(Link::Never, Link::Down) };
        if let Some(ended) = session.ended {
            return Link::Down(ended.max(session.begun));
        }
        let last = self.gateways.get(&session.gateway);
        match last {
            Some(Beat::Last(at)) if now.since(*at) < OLD_BEAT => Link::Up((*at).max(session.begun)),
            Some(Beat::Last(at) | Beat::End(at)) => Link::Down((*at).max(session.begun)),
            None => Link::Down(session.begun.max(seen.unwrap_or_default())),
        }
    }

    /// How present an agent is whose stream is known, and that is neither archived nor in quarantine.
    #[must_use]
    pub fn presence(&self, link: Link, now: Seconds) -> Presence {
        match link {
            Link::Up(_) => Presence::Connected,
            Link::Down(since) if now >= rounded(since, self.offline_after) => Presence::Offline,
            Link::Down(_) => Presence::Disconnected,
            Link::Never => Presence::NeverSeen,
        }
    }
}

// === impl Link ===

impl Link {
    /// When the agent was seen last.
    #[must_use]
    pub fn seen(self) -> Option<Seconds> {
        match self {
            Self::Up(at) | Self::Down(at) => Some(at),
            Self::Never => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGUN: Seconds = Seconds(1000);

    fn links(beat: Option<Beat>) -> Links {
        let gateways = beat.map(|beat| ("g".to_owned(), beat)).into_iter().collect();
        Links { gateways, ..Links::default() }
    }

    fn session(ended: Option<u64>) -> Session {
        Session { gateway: "g".to_owned(), begun: BEGUN, ended: ended.map(Seconds) }
    }

    #[track_caller]
    fn check(beat: Option<Beat>, ended: Option<u64>, now: u64, expected: (Link, Presence)) {
        let (links, now) = (links(beat), Seconds(now));
        let link = links.of(Some(&session(ended)), Some(Seconds(1100)), now);
        assert_eq!((link, links.presence(link, now)), expected);
    }

    #[test]
    fn an_agent_is_connected_while_the_gateway_of_its_session_beats() {
        let (down, up) = (|at| Link::Down(Seconds(at)), |at| Link::Up(Seconds(at)));
        let last = |at| Some(Beat::Last(Seconds(at)));
        check(last(1200), None, 1202, (up(1200), Presence::Connected));
        check(last(1200), None, 1214, (up(1200), Presence::Connected));
        check(last(1200), None, 1215, (down(1200), Presence::Disconnected));
        check(last(1200), None, 1319, (down(1200), Presence::Disconnected));
        check(last(1200), None, 1320, (down(1200), Presence::Offline));
        // Its clock may be ahead.
        check(last(1300), None, 1202, (up(1300), Presence::Connected));
        // The session began after the last beat.
        check(last(990), None, 1001, (up(1000), Presence::Connected));
        check(Some(Beat::End(Seconds(1200))), None, 1201, (down(1200), Presence::Disconnected));
        check(Some(Beat::End(Seconds(990))), None, 2000, (down(1000), Presence::Offline));
    }

    #[test]
    fn the_end_of_a_session_says_more_than_its_gateway() {
        let last = Some(Beat::Last(Seconds(1200)));
        check(last, Some(1150), 1201, (Link::Down(Seconds(1150)), Presence::Disconnected));
        check(None, Some(1150), 1270, (Link::Down(Seconds(1150)), Presence::Offline));
        // Nobody knows the gateway any more: what the record says stays.
        check(None, None, 1101, (Link::Down(Seconds(1100)), Presence::Disconnected));
    }

    #[test]
    fn an_agent_without_a_session_is_known_by_its_record() {
        let (links, now) = (Links::default(), Seconds(1000));
        let of = |seen| links.presence(links.of(None, seen, now), now);
        assert_eq!(of(None), Presence::NeverSeen);
        assert_eq!(of(Some(Seconds(900))), Presence::Disconnected);
        assert_eq!(of(Some(Seconds(880))), Presence::Offline);
    }
}
