//! The end of a session, in the agent's journal: until it is there, the agent looks connected.

use std::sync::Arc;
use std::time::Duration;

use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::records::journal::JournalRecord;
use guest_fleet_ledger::records::{self, RecordError};
use guest_fleet_ledger::{Bucket, Ledger, ReadError, Revision, Write, WriteError};
use prost::Message;
use thiserror::Error;
use tokio::time::Instant;

use crate::chain::Chain;
use crate::orders::shared::Shared;

/// How long after its end a session is recorded as ended, where no other one began meanwhile.
const PAUSE: Duration = Duration::from_secs(8);

/// Longest pause between two tries to record it.
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// How long a journal is read again that is older than the session, or cannot be read.
const UNREADABLE: Duration = Duration::from_secs(3600);

/// A session whose end is to be recorded.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) agent: String,
    /// Id of the session.
    pub(super) session: String,
    /// The last revision of the journal that the session knows; an older one is a stale answer.
    pub(super) revision: Revision,
}

/// Why the end was not recorded.
#[derive(Debug, Error)]
enum EndError {
    #[error("the journal was not read")]
    Read(#[from] ReadError),
    #[error("the journal that was read is older than the session")]
    Stale,
    #[error("the journal cannot be read")]
    Record(#[from] RecordError),
    #[error("the journal was not written")]
    Write(#[from] WriteError),
}

// === impl Ending ===

impl Ending {
    /// Records that the session ended now, however long the ledger does not take it; until the gateway ends, which is
    /// the end of all its sessions.
    ///
    /// Many streams end together, and most agents are back within seconds; their next session says more. So this waits
    /// a moment, and few are written at a time.
    pub(super) async fn record(self, shared: Arc<Shared>) {
        let recorded = self.try_until_recorded(&shared);
        shared.ending.run_until_cancelled(recorded).await;
    }

    async fn try_until_recorded(&self, shared: &Shared) {
        let environment = &shared.settings.environment;
        let now = environment.wall();
        let (mut pause, deadline) = (PAUSE, Instant::now() + UNREADABLE);
        loop {
            tokio::time::sleep(environment.jittered(pause)).await;
            // The semaphore is never closed.
            let Ok(_permit) = shared.endings.acquire().await else { return };
            match self.try_record(&*shared.ledger, now).await {
                Ok(()) => return,
                // Such as a ledger that was restored from an older copy.
                Err(EndError::Stale | EndError::Record(_)) if Instant::now() >= deadline => return,
                Err(error) => {
                    let agent = &self.agent;
                    tracing::debug!(agent, error = %Chain(&error), "the end of a session is recorded later");
                }
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn try_record(&self, ledger: &dyn Ledger, now: Seconds) -> Result<(), EndError> {
        let found = ledger.get(Bucket::Journal, &self.agent).await?;
        if found.is_none() && self.revision == Revision::ABSENT {
            return Ok(());
        }
        let found = found.filter(|found| found.revision >= self.revision).ok_or(EndError::Stale)?;
        let record: JournalRecord = records::decode(&self.agent, &found.value)?;
        if record.session != self.session || record.ended != 0 {
            return Ok(());
        }
        let ended = now.0.max(record.begun);
        let value = Some(JournalRecord { ended, ..record }.encode_to_vec().into());
        let write = Write { key: self.agent.clone(), expected: found.revision, value };
        ledger.write(Bucket::Journal, vec![write]).await?;
        Ok(())
    }
}
