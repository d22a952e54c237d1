//! Notices: what happens in a fleet and no plugin reports, in the log of events beside what plugins report.
//!
//! ```text
//!   audit record ─► decisions ─┐ under one lease
//!   index ─► presence ─────────┴─► append ─► log of events ─► `guest-fleet events`, webhooks
//!   certificates of a process ───────┘
//! ```
//!
//! One process looks, whichever has the lease. A change of agents and its notices are recorded with one write, and then
//! appended; a decision is appended, and then the process records how far it came. A process that was killed between the
//! two appends again, and the last entry of the subject has the same id where it is there already.

mod append;
mod certificates;
mod decisions;
mod presence;
mod teller;
#[cfg(test)]
mod tests;

use std::time::Duration;

use data_encoding::HEXLOWER;
use guest_fleet_core::notice::Kind;
use guest_fleet_core::presence::OFFLINE_AFTER;
use guest_fleet_ledger::bounds;
use guest_fleet_ledger::records::event::{NoticePart, PendingNoticePart};
use guest_fleet_ledger::records::{Numbered, event};
use sha2::{Digest, Sha256};

use crate::fold::{Jitter, Wall, by_chance, by_clock};

pub use certificates::run as run_certificates;
pub use teller::run;

/// How it is looked for notices.
#[derive(Clone)]
pub struct Settings {
    /// The time of day.
    pub wall: Wall,
    /// So that processes do not act together.
    pub jittered: Jitter,
    /// How often it is looked.
    pub look: Duration,
    /// For how long agents may try to connect after an outage before those without a stream are noticed, where an
    /// agent is offline sooner.
    pub settle: Duration,
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        let (look, settle) = (Duration::from_secs(5), Duration::from_secs(OFFLINE_AFTER));
        Self { wall: by_clock(), jittered: by_chance(), look, settle }
    }
}

/// A notice, and where it belongs.
#[derive(Clone, Debug, PartialEq)]
struct Notice {
    subject: String,
    id: String,
    part: NoticePart,
}

// === impl Notice ===

impl Notice {
    /// A notice about an agent.
    fn of_agent(agent: &str, id: &str, kind: Kind, text: String, fix: String) -> Self {
        let subject = event::notice_subject(agent, "");
        if subject.len() > bounds::KEY_BYTES {
            // Escaped, some ids are longer than subjects may be.
            let id = format!("{id}-{}", short(agent));
            let mut notice = Self::of_fleet("", &id, kind, text, fix);
            (notice.part.agents, notice.part.count) = (vec![agent.to_owned()], 1);
            return notice;
        }
        Self { subject, id: id.to_owned(), part: part(kind, text, fix) }
    }

    /// A notice about an assignment or a certificate, by its name; about many agents where the name is empty.
    fn of_fleet(name: &str, id: &str, kind: Kind, text: String, fix: String) -> Self {
        let subject = event::notice_subject("", name);
        Self { subject, id: id.to_owned(), part: part(kind, text, fix) }
    }

    /// A notice that was kept until the log has it.
    fn of_pending(pending: &PendingNoticePart) -> Self {
        let PendingNoticePart { subject, id, notice } = pending.clone();
        Self { subject, id, part: notice.unwrap_or_default() }
    }

    fn pending(&self) -> PendingNoticePart {
        let Self { subject, id, part } = self.clone();
        PendingNoticePart { subject, id, notice: Some(part) }
    }
}

/// A text that no other agent's id has, for all that is likely.
fn short(agent: &str) -> String {
    let digest = Sha256::digest(agent);
    HEXLOWER.encode(&digest[..8])
}

fn part(kind: Kind, text: String, fix: String) -> NoticePart {
    NoticePart { kind: kind.number(), text, fix, ..NoticePart::default() }
}
