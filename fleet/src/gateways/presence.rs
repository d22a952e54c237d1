//! Which gateways there are: the records that they write with every heartbeat.
//!
//! ```text
//!   gateway/<id> in the configuration's bucket ─► list ─► people, drain
//!                                              └─► Roll ─► who leads, which records are dead
//! ```
//!
//! Clocks of machines differ, so whether a gateway lives is seen by whether its record changes. Only
//! where somebody looks once, as the command line does, the time in the record has to do.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use guest_fleet_core::listed;
use guest_fleet_core::presence::OLD_BEAT;
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::records::gateway::{GATEWAY, GatewayRecord};
use guest_fleet_ledger::records::{self, time};
use guest_fleet_ledger::{Bucket, Ledger, ReadError, Revision, bounds};
use tokio::time::Instant;

/// Age of a heartbeat from which on it is old. Gateways write one every two seconds.
pub const OLD: Duration = Duration::from_secs(OLD_BEAT);
/// How long a record may stay unchanged before its gateway is taken for dead.
const DEAD: Duration = Duration::from_secs(120);
/// Most gateways that are looked at; there are some dozens in the largest fleets.
pub(super) const GATEWAYS: usize = 10_000;

listed! {
    /// How a gateway serves.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Activity {
        /// It takes streams.
        Serving = "serving",
        /// It ends its streams and takes no more.
        Draining = "draining",
        /// It wrote no heartbeat for long: it died, was stopped, or does not reach the ledger.
        Silent = "silent",
    }
}

/// A gateway, as its record says.
#[derive(Clone, Debug, PartialEq)]
pub struct Presence {
    /// Key of the record.
    pub key: String,
    /// Revision of its last heartbeat.
    pub revision: Revision,
    /// The record.
    pub record: GatewayRecord,
}

/// All records of gateways, in the order of their keys. One that cannot be read is left out.
///
/// # Errors
/// The ledger cannot be read.
pub async fn list(ledger: &dyn Ledger) -> Result<Vec<Presence>, ReadError> {
    let mut found = BTreeMap::new();
    let mut next: Option<String> = None;
    loop {
        let page =
            ledger.scan(Bucket::Configuration, GATEWAY, next.as_deref(), bounds::PAGE).await?;
        for read in page.records {
            match records::decode(&read.key, &read.value) {
                Ok(record) => {
                    let (key, revision) = (read.key, read.revision);
                    found.insert(key.clone(), Presence { key, revision, record });
                }
                Err(error) => tracing::debug!(%error, "a gateway's record is not read"),
            }
        }
        next = page.next;
        if next.is_none() || found.len() >= GATEWAYS {
            return Ok(found.into_values().collect());
        }
    }
}

/// Whether another gateway takes streams now.
///
/// # Errors
/// The ledger cannot be read.
pub async fn has_others(
    ledger: &dyn Ledger,
    own: &str,
    now: SystemTime,
) -> Result<bool, ReadError> {
    let all = list(ledger).await?;
    Ok(all.iter().any(|it| it.key != own && !it.record.is_draining && it.is_fresh(now)))
}

// === impl Presence ===

impl Presence {
    /// Id of the gateway.
    #[must_use]
    pub fn id(&self) -> &str {
        self.key.strip_prefix(GATEWAY).unwrap_or(&self.key)
    }

    /// When the last heartbeat was, by the gateway's clock.
    #[must_use]
    pub fn last_beat(&self) -> Seconds {
        let beat = time(self.record.beat);
        let beat = beat.and_then(|beat| beat.duration_since(SystemTime::UNIX_EPOCH).ok());
        Seconds(beat.unwrap_or_default().as_secs())
    }

    /// How old the last heartbeat is, by the clocks of both machines; `None` where the record says
    /// nothing of it.
    #[must_use]
    pub fn age(&self, now: SystemTime) -> Option<Duration> {
        time(self.record.beat).map(|beat| now.duration_since(beat).unwrap_or_default())
    }

    /// Its activity, by the clocks of both machines.
    #[must_use]
    pub fn activity(&self, now: SystemTime) -> Activity {
        match (self.is_fresh(now), self.record.is_draining) {
            (false, _) => Activity::Silent,
            (true, true) => Activity::Draining,
            (true, false) => Activity::Serving,
        }
    }

    fn is_fresh(&self, now: SystemTime) -> bool {
        self.age(now).is_some_and(|age| age < OLD)
    }
}

/// The others' records as a gateway saw them, on its own clock. Pure: the caller says what time it
/// is.
#[derive(Debug, Default)]
pub struct Roll {
    seen: BTreeMap<String, (Revision, Instant)>,
}

/// The conclusions from a look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// Whether this gateway does the work that one gateway at a time does.
    pub leads: bool,
    /// Keys and revisions of records that no gateway writes any more.
    pub dead: Vec<(String, Revision)>,
}

// === impl Roll ===

impl Roll {
    /// Looks at all records. The living gateway with the first key leads. Two that lead for a moment
    /// do no harm: what they do is compare-and-swap.
    pub fn look(&mut self, own: &str, found: &[Presence], now: Instant) -> Roles {
        self.seen.retain(|key, _| found.iter().any(|it| it.key == *key));
        let mut roles = Roles::default();
        let mut first: Option<&str> = None;
        for it in found {
            let seen = self.seen.entry(it.key.clone()).or_insert((it.revision, now));
            if seen.0 != it.revision {
                *seen = (it.revision, now);
            }
            let is_alive = it.key == own || now.duration_since(seen.1) < DEAD;
            if is_alive {
                first = first.filter(|first| *first <= it.key.as_str()).or(Some(&it.key));
            } else {
                roles.dead.push((it.key.clone(), it.revision));
            }
        }
        // Without a record of its own a gateway cannot write to the ledger.
        roles.leads = first == Some(own);
        roles
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presence(key: &str, revision: u64) -> Presence {
        let record = GatewayRecord { version: 1, ..GatewayRecord::default() };
        Presence { key: key.to_owned(), revision: Revision(revision), record }
    }

    #[tokio::test]
    async fn others_are_those_that_beat_lately_and_do_not_drain() {
        use prost::Message;

        use guest_fleet_ledger::{MemoryLedger, Write};

        let now = SystemTime::now();
        let ago = |seconds| Some((now - Duration::from_secs(seconds)).into());
        let base = GatewayRecord { version: 1, beat: ago(2), ..GatewayRecord::default() };
        for (name, record, expected) in [
            ("gateway/own", base.clone(), false),
            ("gateway/other", base.clone(), true),
            ("gateway/drains", GatewayRecord { is_draining: true, ..base.clone() }, false),
            ("gateway/died", GatewayRecord { beat: ago(60), ..base.clone() }, false),
            ("gateway/old-program", GatewayRecord { beat: None, ..base }, false),
        ] {
            let ledger = MemoryLedger::new();
            let value = Some(record.encode_to_vec().into());
            let write = Write { key: name.to_owned(), expected: Revision::ABSENT, value };
            ledger.write(Bucket::Configuration, vec![write]).await.expect("written");
            let found = has_others(&ledger, "gateway/own", now).await.expect("read");
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn the_first_gateway_that_lives_leads_and_records_that_stay_as_they_are_are_dead() {
        let (mut roll, start) = (Roll::default(), Instant::now());
        let mut look = |found: &[Presence], after: u64| {
            roll.look("gateway/b", found, start + Duration::from_secs(after))
        };
        let both = |a, b| [presence("gateway/a", a), presence("gateway/b", b)];
        assert!(!look(&both(1, 2), 0).leads, "the other one may live");
        assert!(!look(&both(3, 4), 60).leads);
        assert!(!look(&both(3, 5), 179).leads, "it changed 119 seconds ago");
        let roles = look(&both(3, 6), 180);
        assert!(roles.leads);
        assert_eq!(roles.dead, [("gateway/a".to_owned(), Revision(3))]);
        // It was stopped and goes on.
        assert!(!look(&both(7, 8), 190).leads);
        assert!(look(&[presence("gateway/b", 9)], 200).leads);
        assert!(!look(&[], 210).leads, "it cannot write");
    }

    #[test]
    fn a_gateway_never_takes_itself_for_dead() {
        let (mut roll, start) = (Roll::default(), Instant::now());
        for after in [0, 1000] {
            let now = start + Duration::from_secs(after);
            let roles = roll.look("gateway/b", &[presence("gateway/b", 1)], now);
            assert_eq!(roles, Roles { leads: true, dead: Vec::new() });
        }
    }
}
