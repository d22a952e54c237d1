//! The archive: agents that were silent for so long that no count includes them.
//!
//! One gateway at a time looks at all agents, a page after the other. Each record is archived by a
//! compare-and-swap on what was read: an agent that connects meanwhile is not archived.

use std::time::SystemTime;

use guest_fleet_core::archive::{Heard, Life, is_due};
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::records::agent::AgentRecord;
use guest_fleet_ledger::records::{self, time};
use guest_fleet_ledger::{Bucket, Ledger, ReadError, Write, WriteError};
use prost::Message;
use prost_types::Timestamp;

use crate::chain::Chain;

/// Most agents that one step looks at, and archives.
pub const STEP: usize = 500;

/// What a step did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stepped {
    /// Agents that it archived.
    pub archived: usize,
    /// Where the next step begins; `None` after the last page.
    pub next: Option<String>,
}

/// Archives those of one page of agents that are due.
///
/// # Errors
/// The page cannot be read. A record that cannot be read or written is left for the next time.
pub async fn step(
    ledger: &dyn Ledger,
    next: Option<&str>,
    now: SystemTime,
) -> Result<Stepped, ReadError> {
    let page = ledger.scan(Bucket::Agents, "", next, STEP).await?;
    let mut archived = 0;
    for found in page.records {
        let agent = match records::decode::<AgentRecord>(&found.key, &found.value) {
            Ok(agent) => agent,
            Err(error) => {
                tracing::debug!(%error, "an agent is not looked at");
                continue;
            }
        };
        if agent.archived.is_some() || !is_silent(&agent, now) {
            continue;
        }
        let value = AgentRecord { archived: Some(now.into()), ..agent }.encode_to_vec().into();
        let write = Write { key: found.key, expected: found.revision, value: Some(value) };
        match ledger.write(Bucket::Agents, vec![write]).await {
            Ok(_) => archived += 1,
            Err(WriteError::Conflict { .. }) => {}
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "an agent was not archived");
            }
        }
    }
    Ok(Stepped { archived, next: page.next })
}

fn is_silent(agent: &AgentRecord, now: SystemTime) -> bool {
    let life = if agent.is_ephemeral { Life::Short } else { Life::Lasting };
    let heard = Heard {
        since: seconds(agent.since),
        seen: seconds(agent.seen),
        unarchived: seconds(agent.unarchived),
    };
    seconds(Some(now.into())).is_some_and(|now| is_due(life, heard, now))
}

fn seconds(stamp: Option<Timestamp>) -> Option<Seconds> {
    let since = time(stamp)?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(Seconds(since.as_secs()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::enroll::AgentId;
    use crate::enroll::agents;
    use guest_fleet_ledger::{MemoryLedger, Revision};

    const HOUR: Duration = Duration::from_secs(3600);
    const DAY: Duration = Duration::from_secs(24 * 3600);

    async fn put(ledger: &MemoryLedger, agent: &AgentRecord) {
        let value = Some(agent.encode_to_vec().into());
        let write = Write { key: agent.id.clone(), expected: Revision::ABSENT, value };
        ledger.write(Bucket::Agents, vec![write]).await.expect("written");
    }

    async fn is_archived(ledger: &MemoryLedger, id: &str) -> bool {
        let found = ledger.get(Bucket::Agents, id).await.expect("read").expect("an agent");
        let agent: AgentRecord = records::decode(id, &found.value).expect("a record");
        agent.archived.is_some()
    }

    async fn pass(ledger: &MemoryLedger, now: SystemTime) -> (usize, usize) {
        let (mut steps, mut archived, mut next) = (0, 0, None);
        loop {
            let stepped = step(ledger, next.as_deref(), now).await.expect("a step");
            assert!(stepped.archived <= STEP);
            steps += 1;
            archived += stepped.archived;
            next = stepped.next;
            if next.is_none() {
                return (steps, archived);
            }
        }
    }

    #[tokio::test]
    async fn silent_agents_are_archived_a_page_at_a_time_and_others_are_not() {
        let (ledger, now) = (MemoryLedger::new(), SystemTime::now());
        let seen = |id: &str, ago: Duration, is_ephemeral| AgentRecord {
            seen: Some((now - ago).into()),
            is_ephemeral,
            ..AgentRecord::new(id)
        };
        for number in 0..STEP {
            put(&ledger, &seen(&format!("old-{number:04}"), 31 * DAY, false)).await;
        }
        put(&ledger, &seen("new", 29 * DAY, false)).await;
        put(&ledger, &seen("short", 2 * HOUR, true)).await;
        put(&ledger, &seen("short-new", HOUR / 2, true)).await;
        let (steps, archived) = pass(&ledger, now).await;
        assert!(steps >= 2);
        assert_eq!(archived, STEP + 1);
        assert!(is_archived(&ledger, "old-0007").await && is_archived(&ledger, "short").await);
        assert!(!is_archived(&ledger, "new").await && !is_archived(&ledger, "short-new").await);
        assert_eq!(pass(&ledger, now).await.1, 0, "a second pass finds nothing");
    }

    #[tokio::test]
    async fn what_an_operator_takes_out_of_the_archive_stays_out_of_it_for_as_long_again() {
        let (ledger, now) = (MemoryLedger::new(), SystemTime::now());
        let id: AgentId = "a-1".parse().expect("an id");
        put(
            &ledger,
            &AgentRecord { seen: Some((now - 60 * DAY).into()), ..AgentRecord::new("a-1") },
        )
        .await;
        assert_eq!(pass(&ledger, now).await.1, 1);
        assert!(agents::unarchive(&ledger, &id, now).await.expect("taken out"));
        assert!(!agents::unarchive(&ledger, &id, now).await.expect("it is out"));
        assert_eq!(pass(&ledger, now + 29 * DAY).await.1, 0);
        assert_eq!(pass(&ledger, now + 30 * DAY).await.1, 1);
        assert!(!agents::archive(&ledger, &id, now).await.expect("it is in"));
    }
}
