//! Changes the configuration: one decision of a person is one batch, with its audit entry.
//!
//! ```text
//!   audit-head, then the configuration at least up to it ─► plan (pure) ─► edits
//!        ▲                                                                  │ no edits: nothing is written
//!        └── conflict: read again, five times, with growing pauses ◄── one batch: records, entry, head
//! ```
//!
//! The batch asserts the revision of the head, so all changes happen one after the other and each is
//! planned on everything that happened before it. A write of which nobody knows whether it happened is
//! recognised by the id of its entry.

use std::time::Duration;

use bytes::Bytes;
use guest_agent_serve_kit::backoff::{Jitter, Schedule};
use guest_fleet_core::account::Decided;
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::View;
use guest_fleet_ledger::records::audit::{self, AUDIT_HEAD, AuditChange, AuditHead, AuditRecord};
use guest_fleet_ledger::records::rollout::{ROLLOUT, RolloutRecord, ended_key};
use guest_fleet_ledger::records::{self, RecordError, Versioned};
use guest_fleet_ledger::{Bucket, Ledger, ReadError, Record, Revision, Write, WriteError, bounds};
use jiff::Timestamp;
use prost::Message;
use thiserror::Error;
use uuid::Uuid;

use super::Configuration;
use crate::simulated::chance;

/// Most records that one decision may change: a batch has room for them, the entry, the head, an old
/// entry that goes and a lease.
pub const EDITS: usize = bounds::BATCH - 4;
/// Longest text in an entry, in bytes.
const TEXT_BYTES: usize = 1024;
/// How often a change is tried.
const TRIES: u32 = 5;
/// The first pause after a conflict; each further one is twice as long.
const PAUSES: Schedule =
    Schedule::doubling(Duration::from_millis(20), Duration::from_millis(1280), Jitter::None);

/// Who decided, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Who.
    pub who: String,
    /// From where: a program and a machine.
    pub from: String,
    /// What was asked, such as `apply`.
    pub what: String,
    /// Why; may be empty.
    pub why: String,
    /// When.
    pub at: Timestamp,
}

/// A change of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Key of the record.
    pub key: String,
    /// What it was, in words and without secrets; `None` where it was not there.
    pub before: Option<String>,
    /// What it will be, in words and without secrets; `None` where it is deleted.
    pub after: Option<String>,
    /// What becomes of the record.
    pub record: Becomes,
}

/// What becomes of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Becomes {
    /// It is created or replaced.
    Bytes(Bytes),
    /// It is deleted.
    Deleted,
    /// It is in another bucket, and is written after the entry: the entry tells the intention.
    Elsewhere,
}

/// What became of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed<T> {
    /// Number of the audit entry; `None` where there was nothing to change.
    pub entry: Option<u64>,
    /// Revision of the batch; `None` where there was nothing to change, and where the answer to the
    /// write was lost.
    pub revision: Option<Revision>,
    /// What the plan answered.
    pub answer: T,
}

/// Why a change did not happen, or may not have.
#[derive(Debug, Error)]
pub enum ChangeError<E: std::error::Error + 'static> {
    /// The plan refused.
    #[error(transparent)]
    Refused(E),
    /// It changes more than one batch holds.
    #[error("it changes {0} records, and {EDITS} can change at once; do a part of it at a time")]
    TooMuch(usize),
    /// A record that it would replace is of a newer program, or the audit head is damaged.
    #[error("a record that would be replaced cannot be read")]
    Record(#[source] RecordError),
    /// The ledger cannot be read.
    #[error("the ledger cannot be read; nothing was changed")]
    Read(#[source] ReadError),
    /// The ledger did not take the write.
    #[error("the ledger did not take the change; nothing was changed")]
    Write(#[source] WriteError),
    /// Others wrote meanwhile, every time.
    #[error("others changed the configuration meanwhile, {TRIES} times; try again")]
    Contended,
    /// It may have happened or not.
    #[error(
        "it is not known whether the change happened; look at `guest-fleet audit`, then try again"
    )]
    Unknown(#[source] WriteError),
}

/// Plans on the newest configuration, and writes what the plan wants. The plan is called again when
/// somebody else wrote meanwhile.
///
/// # Errors
/// See [`ChangeError`].
pub async fn change<T, E, P>(
    ledger: &dyn Ledger,
    decision: &Decision,
    plan: P,
) -> Result<Changed<T>, ChangeError<E>>
where
    E: std::error::Error + 'static,
    P: FnMut(&Configuration) -> Result<(Vec<Edit>, T), E>,
{
    change_under(ledger, decision, None, &mut Configuration::default(), plan).await
}

/// The same under a lease: its renewal is written in the same batch, so that nothing is written once
/// another process has the lease. `configuration` is what the caller follows; what it lacks is read.
///
/// # Errors
/// See [`ChangeError`].
pub async fn change_under<T, E, P>(
    ledger: &dyn Ledger,
    decision: &Decision,
    lease: Option<&Write>,
    configuration: &mut Configuration,
    mut plan: P,
) -> Result<Changed<T>, ChangeError<E>>
where
    E: std::error::Error + 'static,
    P: FnMut(&Configuration) -> Result<(Vec<Edit>, T), E>,
{
    let id = Uuid::new_v4().to_string();
    let mut doubtful = Doubtful::default();
    for attempt in 0..TRIES {
        if attempt > 0 {
            pause(attempt).await;
        }
        let head = read(ledger, configuration).await?;
        // Before the plan, which would find its own work and refuse to do it twice.
        if let Some(changed) = doubtful.happened(ledger, &id).await.map_err(ChangeError::Read)? {
            return Ok(changed);
        }
        let (edits, answer) = plan(configuration).map_err(ChangeError::Refused)?;
        if edits.is_empty() {
            return Ok(Changed { entry: None, revision: None, answer });
        }
        let (number, mut batch) = batch(ledger, decision, &id, &head, configuration, edits).await?;
        batch.extend(lease.cloned());
        match ledger.write(Bucket::Configuration, batch).await {
            Ok(revision) => {
                ledger.wake(Bucket::Configuration);
                return Ok(Changed { entry: Some(number), revision: Some(revision), answer });
            }
            Err(WriteError::Conflict { .. }) => {}
            Err(error @ WriteError::Ambiguous(_)) => {
                doubtful.numbers.push(number);
                doubtful.answer.get_or_insert(answer);
                doubtful.error = Some(error);
            }
            Err(error) => return Err(ChangeError::Write(error)),
        }
    }
    if let Some(changed) = doubtful.happened(ledger, &id).await.map_err(ChangeError::Read)? {
        return Ok(changed);
    }
    Err(doubtful.error.map_or(ChangeError::Contended, ChangeError::Unknown))
}

/// Tries of which nobody knows whether they happened.
struct Doubtful<T> {
    numbers: Vec<u64>,
    answer: Option<T>,
    error: Option<WriteError>,
}

/// The head as it was read.
struct Head {
    revision: Revision,
    record: AuditHead,
}

/// Waits before another try: longer each time, and not in step with others.
async fn pause(attempt: u32) {
    tokio::time::sleep(chance::jittered(PAUSES.longest(attempt))).await;
}

/// The head first: what happens between the two reads moves it, so the write then fails.
async fn read<E: std::error::Error + 'static>(
    ledger: &dyn Ledger,
    configuration: &mut Configuration,
) -> Result<Head, ChangeError<E>> {
    let found = ledger.get(Bucket::Configuration, AUDIT_HEAD).await.map_err(ChangeError::Read)?;
    let head = match found {
        None => Head { revision: Revision::ABSENT, record: AuditHead::default() },
        Some(Record { revision, value, .. }) => {
            let record = records::decode(AUDIT_HEAD, &value).map_err(ChangeError::Record)?;
            Head { revision, record }
        }
    };
    configuration.catch_up(ledger, head.revision).await.map_err(ChangeError::Read)?;
    Ok(head)
}

async fn batch<E: std::error::Error + 'static>(
    ledger: &dyn Ledger,
    decision: &Decision,
    id: &str,
    head: &Head,
    configuration: &Configuration,
    edits: Vec<Edit>,
) -> Result<(u64, Vec<Write>), ChangeError<E>> {
    let kept = kept(configuration, &edits, decision.decided().at);
    if edits.len() + kept.len() > EDITS {
        return Err(ChangeError::TooMuch(edits.len() + kept.len()));
    }
    let newer = edits.iter().filter_map(|edit| configuration.problem(&edit.key));
    if let Some(error) = newer.into_iter().find(|error| matches!(error, RecordError::Newer { .. }))
    {
        return Err(ChangeError::Record(error.clone()));
    }
    let number = head.record.number.saturating_add(1);
    let entry = entry(decision, id, number, &head.record.digest, &edits).encode_to_vec();
    let after = AuditHead { version: AuditHead::VERSION, number, digest: audit::digest(&entry) };
    let mut batch: Vec<Write> = edits
        .into_iter()
        .filter_map(|Edit { key, record, .. }| {
            let value = match record {
                Becomes::Bytes(bytes) => Some(bytes),
                Becomes::Deleted => None,
                Becomes::Elsewhere => return None,
            };
            Some(Write { expected: configuration.revision(&key), key, value })
        })
        .collect();
    batch.extend(kept);
    batch.push(Write {
        key: audit::key(number),
        expected: Revision::ABSENT,
        value: Some(entry.into()),
    });
    batch.push(Write {
        key: AUDIT_HEAD.to_owned(),
        expected: head.revision,
        value: Some(after.encode_to_vec().into()),
    });
    if let Some(oldest) = number.checked_sub(audit::KEPT).filter(|oldest| *oldest > 0) {
        let key = audit::key(oldest);
        let found = ledger.get(Bucket::Configuration, &key).await.map_err(ChangeError::Read)?;
        batch.extend(found.map(|found| Write { key, expected: found.revision, value: None }));
    }
    Ok((number, batch))
}

/// Writes that keep the rollouts whose place these edits take.
fn kept(configuration: &Configuration, edits: &[Edit], now: Seconds) -> Vec<Write> {
    edits.iter().filter_map(|edit| kept_one(configuration.view(), edit, now)).collect()
}

fn kept_one(view: &View, edit: &Edit, now: Seconds) -> Option<Write> {
    let assignment = edit.key.strip_prefix(ROLLOUT)?;
    let Becomes::Bytes(bytes) = &edit.record else { return None };
    let after = RolloutRecord::decode(bytes.as_ref()).ok()?;
    let before = view.rollouts.get(assignment)?;
    if (&before.name, before.number) == (&after.name, after.number) {
        return None;
    }
    let mut before = before.clone();
    if before.rollout.state.is_live() {
        before.account.replaced_by = Some(after.name);
    }
    let value = RolloutRecord::of(&before).encode_to_vec().into();
    let key = ended_key(assignment, before.number, now);
    Some(Write { key, expected: Revision::ABSENT, value: Some(value) })
}

fn entry(
    decision: &Decision,
    id: &str,
    number: u64,
    previous: &[u8],
    edits: &[Edit],
) -> AuditRecord {
    AuditRecord {
        version: AuditRecord::VERSION,
        number,
        at: Some(prost_types::Timestamp {
            seconds: decision.at.as_second(),
            nanos: decision.at.subsec_nanosecond(),
        }),
        who: bounded(&decision.who),
        from: bounded(&decision.from),
        what: bounded(&decision.what),
        why: bounded(&decision.why),
        changes: edits
            .iter()
            .map(|edit| AuditChange {
                key: edit.key.clone(),
                before: bounded(edit.before.as_deref().unwrap_or_default()),
                after: bounded(edit.after.as_deref().unwrap_or_default()),
            })
            .collect(),
        previous: previous.to_vec(),
        id: id.to_owned(),
    }
}

fn bounded(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES)].to_owned()
}

// === impl Decision ===

impl Decision {
    /// As the account of a rollout keeps it.
    #[must_use]
    pub fn decided(&self) -> Decided {
        Decided {
            who: self.who.clone(),
            what: self.what.clone(),
            why: self.why.clone(),
            at: Seconds(u64::try_from(self.at.as_second()).unwrap_or(0)),
        }
    }
}

// === impl Doubtful ===

impl<T> Default for Doubtful<T> {
    fn default() -> Self {
        Self { numbers: Vec::new(), answer: None, error: None }
    }
}

impl<T> Doubtful<T> {
    /// What one of the tries did.
    async fn happened(
        &mut self,
        ledger: &dyn Ledger,
        id: &str,
    ) -> Result<Option<Changed<T>>, ReadError> {
        for number in &self.numbers {
            let key = audit::key(*number);
            let found = ledger.get(Bucket::Configuration, &key).await?;
            let entry =
                found.and_then(|found| records::decode::<AuditRecord>(&key, &found.value).ok());
            if entry.is_some_and(|entry| entry.id == id) {
                let done = |answer| Changed { entry: Some(*number), revision: None, answer };
                return Ok(self.answer.take().map(done));
            }
        }
        Ok(None)
    }
}
