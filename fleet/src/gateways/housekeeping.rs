//! What one gateway at a time does for the fleet: archives silent agents, forgets dead gateways.
//!
//! ```text
//!   presence ─► Roll ─► leads? ─► one page of agents per beat ─► archive
//!                          └────► records of dead gateways ─► their ends, for some weeks
//! ```

use std::time::{Duration, SystemTime};

use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::{Bucket, Ledger, ReadError, SharedLedger};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ends;
use super::presence::{self, Presence, Roll};
use crate::chain::Chain;
use crate::enroll::archive;

/// How often the records of gateways are looked at.
const LOOK: Duration = Duration::from_secs(30);
/// Pause between two pages of agents: a million of them are looked at in 34 minutes.
const PAGE_PAUSE: Duration = Duration::from_secs(1);
/// Pause between two passes over all agents.
const PASS_PAUSE: Duration = Duration::from_secs(10 * 60);
/// How long a process serves before it archives anybody: after an outage of the control plane all
/// agents look silent, and come back within minutes.
const GRACE: Duration = Duration::from_secs(15 * 60);
/// How long an answer of the ledger is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Keeps house until `ending`. `own` is the key of this gateway's record of presence.
pub async fn run(ledger: SharedLedger, own: String, ending: CancellationToken) {
    let mut house = House {
        ledger,
        own,
        roll: Roll::default(),
        pass: Pass { next: None, at: Instant::now() + GRACE },
    };
    loop {
        let pause = match house.beat().await {
            Ok(pause) => pause,
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "the house is kept later");
                LOOK
            }
        };
        if ending.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
    }
}

struct House {
    ledger: SharedLedger,
    own: String,
    roll: Roll,
    pass: Pass,
}

/// Where a pass over all agents is.
struct Pass {
    next: Option<String>,
    /// When its next page, or the next pass, is due.
    at: Instant,
}

// === impl House ===

impl House {
    /// Does what is due; returns how long nothing else is.
    async fn beat(&mut self) -> Result<Duration, ReadError> {
        let found = presence::list(&*self.ledger).await?;
        let roles = self.roll.look(&self.own, &found, Instant::now());
        if !roles.leads {
            self.pass.next = None;
            return Ok(LOOK);
        }
        for (key, revision) in roles.dead {
            let found = found.iter().find(|it| it.key == key);
            let ended = found.map_or(Seconds(0), Presence::last_beat);
            // One that was only stopped writes its record anew.
            match ends::forget(&*self.ledger, (&key, revision), ended).await {
                Ok(()) => tracing::info!(gateway = %key, "a gateway that died is forgotten"),
                Err(error) => {
                    tracing::debug!(gateway = %key, error = %Chain(&error), "a gateway is forgotten later");
                }
            }
        }
        self.archive().await?;
        Ok(LOOK.min(self.pass.at.saturating_duration_since(Instant::now())))
    }

    async fn archive(&mut self) -> Result<(), ReadError> {
        if Instant::now() < self.pass.at {
            return Ok(());
        }
        let ledger: &dyn Ledger = &*self.ledger;
        let step = archive::step(ledger, self.pass.next.as_deref(), SystemTime::now());
        let Ok(stepped) = tokio::time::timeout(PATIENCE, step).await else {
            self.pass.at = Instant::now() + LOOK;
            return Ok(());
        };
        let stepped = stepped?;
        if stepped.archived > 0 {
            tracing::info!(agents = stepped.archived, "silent agents were archived");
        }
        if stepped.next.is_none() {
            self.forget_ends().await?;
        }
        let pause = if stepped.next.is_some() { PAGE_PAUSE } else { PASS_PAUSE };
        self.pass = Pass { next: stepped.next, at: Instant::now() + pause };
        Ok(())
    }

    /// Forgets ends of gateways that no agent needs any more.
    async fn forget_ends(&self) -> Result<(), ReadError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let outdated = ends::outdated(&*self.ledger, Seconds(now.as_secs())).await?;
        if !outdated.is_empty() {
            // Those that stay go with the next pass.
            drop(self.ledger.write(Bucket::Configuration, outdated).await);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prost::Message;

    use super::*;
    use guest_fleet_ledger::records::agent::AgentRecord;
    use guest_fleet_ledger::records::gateway::GatewayRecord;
    use guest_fleet_ledger::records::{self, Versioned};
    use guest_fleet_ledger::{MemoryLedger, Revision, Write};

    async fn put(ledger: &MemoryLedger, bucket: Bucket, key: &str, value: Vec<u8>) {
        let expected = ledger.get(bucket, key).await.expect("read");
        let expected = expected.map_or(Revision::ABSENT, |found| found.revision);
        let write = Write { key: key.to_owned(), expected, value: Some(value.into()) };
        ledger.write(bucket, vec![write]).await.expect("written");
    }

    async fn is_archived(ledger: &MemoryLedger) -> bool {
        let found = ledger.get(Bucket::Agents, "a-1").await.expect("read").expect("an agent");
        records::decode::<AgentRecord>("a-1", &found.value).expect("a record").archived.is_some()
    }

    /// A gateway that lives writes its record every so often.
    async fn lives(ledger: Arc<MemoryLedger>, key: &'static str) {
        for agents in 0.. {
            let version = GatewayRecord::VERSION;
            let beat = Some(SystemTime::now().into());
            let record = GatewayRecord { version, agents, beat, ..GatewayRecord::default() };
            put(&ledger, Bucket::Configuration, key, record.encode_to_vec()).await;
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_gateway_archives_after_a_grace_and_another_takes_over_when_it_dies() {
        let ledger = Arc::new(MemoryLedger::new());
        let shared: SharedLedger = ledger.clone();
        let old = SystemTime::now() - Duration::from_secs(40 * 24 * 3600);
        let agent = AgentRecord { seen: Some(old.into()), ..AgentRecord::new("a-1") };
        put(&ledger, Bucket::Agents, "a-1", agent.encode_to_vec()).await;
        let ending = CancellationToken::new();
        let first = tokio::spawn(lives(ledger.clone(), "gateway/a"));
        let _second = tokio::spawn(lives(ledger.clone(), "gateway/b"));
        let keeps = run(shared, "gateway/b".to_owned(), ending.clone());
        let keeps = tokio::spawn(keeps);
        // The other one leads, and does nothing in this test.
        tokio::time::sleep(GRACE + LOOK + LOOK).await;
        assert!(!is_archived(&ledger).await);
        first.abort();
        tokio::time::sleep(Duration::from_secs(200)).await;
        assert!(is_archived(&ledger).await);
        let dead = ledger.get(Bucket::Configuration, "gateway/a").await.expect("read");
        assert_eq!(dead, None, "the record of the dead one is gone");
        let ended = ledger.get(Bucket::Configuration, "gateway-ended/a").await.expect("read");
        assert!(ended.is_some(), "its end is kept");
        ending.cancel();
        keeps.await.expect("it ends");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_archived_in_the_first_minutes_of_a_process() {
        let ledger = Arc::new(MemoryLedger::new());
        let old = SystemTime::now() - Duration::from_secs(40 * 24 * 3600);
        let agent = AgentRecord { seen: Some(old.into()), ..AgentRecord::new("a-1") };
        put(&ledger, Bucket::Agents, "a-1", agent.encode_to_vec()).await;
        let _lives = tokio::spawn(lives(ledger.clone(), "gateway/a"));
        let _keeps =
            tokio::spawn(run(ledger.clone(), "gateway/a".into(), CancellationToken::new()));
        tokio::time::sleep(GRACE - LOOK).await;
        assert!(!is_archived(&ledger).await);
        tokio::time::sleep(LOOK + LOOK).await;
        assert!(is_archived(&ledger).await);
    }
}
