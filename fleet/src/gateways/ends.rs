//! When gateways ended, so that it is known when their agents were seen last.
//!
//! ```text
//!   a gateway ends, or is found dead ─► gateway-ended/<id> ─┐
//!   gateway/<id> with its last beat ────────────────────────┴─► beats: which sessions go on
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use guest_fleet_core::presence::Beat;
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::records::gateway::{GATEWAY, GATEWAY_ENDED, GatewayEndRecord};
use guest_fleet_ledger::records::{self, Versioned};
use guest_fleet_ledger::{Bucket, Ledger, ReadError, Revision, Write, WriteError, bounds};
use prost::Message;
use thiserror::Error;

use super::presence;

/// How long an end is kept: an agent that is not seen for longer is archived.
const KEPT: Duration = Duration::from_secs(31 * 24 * 3600);
/// Most ends that are kept; the oldest go first. Agents of gateways that are not known count as offline.
pub(crate) const ENDS: usize = 1_000;

/// Why a gateway was not forgotten.
#[derive(Debug, Error)]
pub(crate) enum ForgetError {
    #[error("its end was not read")]
    Read(#[from] ReadError),
    #[error("its end was not written")]
    Write(#[from] WriteError),
}

/// Forgets a gateway whose last heartbeat was at `ended`, and keeps its end.
///
/// # Errors
/// The ledger cannot be read or did not take it, or the gateway beat again.
pub(crate) async fn forget(
    ledger: &dyn Ledger,
    (key, revision): (&str, Revision),
    ended: Seconds,
) -> Result<(), ForgetError> {
    let id = key.strip_prefix(GATEWAY).unwrap_or(key);
    let record = GatewayEndRecord { version: GatewayEndRecord::VERSION, ended: ended.0 };
    let end = format!("{GATEWAY_ENDED}{id}");
    // One that was taken for dead before, and went on, has an end already.
    let found = ledger.get(Bucket::Configuration, &end).await?;
    let expected = found.map_or(Revision::ABSENT, |found| found.revision);
    let writes = vec![
        Write { key: key.to_owned(), expected: revision, value: None },
        Write { key: end, expected, value: Some(record.encode_to_vec().into()) },
    ];
    ledger.write(Bucket::Configuration, writes).await?;
    Ok(())
}

/// The gateways that there are and those that ended, by id.
///
/// # Errors
/// The ledger cannot be read.
pub async fn beats(ledger: &dyn Ledger) -> Result<BTreeMap<String, Beat>, ReadError> {
    // In this order, so that one that ends meanwhile is in one of the two.
    let mut all = BTreeMap::new();
    for gateway in presence::list(ledger).await? {
        all.insert(gateway.id().to_owned(), Beat::Last(gateway.last_beat()));
    }
    for End { id, ended, .. } in ends(ledger).await? {
        // One that was taken for dead may go on.
        all.entry(id).or_insert(Beat::End(ended));
    }
    Ok(all)
}

/// The writes that delete ends which nobody needs any more.
pub(crate) async fn outdated(ledger: &dyn Ledger, now: Seconds) -> Result<Vec<Write>, ReadError> {
    let mut all = ends(ledger).await?;
    all.sort_by_key(|end| end.ended);
    let beyond = all.len().saturating_sub(ENDS);
    let is_outdated =
        |(at, end): &(usize, End)| *at < beyond || now.since(end.ended) > KEPT.as_secs();
    let outdated = all.into_iter().enumerate().filter(is_outdated).take(bounds::BATCH);
    let delete = |end: End| Write {
        key: format!("{GATEWAY_ENDED}{}", end.id),
        expected: end.revision,
        value: None,
    };
    Ok(outdated.map(|(_, end)| delete(end)).collect())
}

/// The end of a gateway.
struct End {
    id: String,
    ended: Seconds,
    revision: Revision,
}

async fn ends(ledger: &dyn Ledger) -> Result<Vec<End>, ReadError> {
    let mut found = Vec::new();
    let mut next: Option<String> = None;
    loop {
        let page = ledger.scan(Bucket::Configuration, GATEWAY_ENDED, next.as_deref(), bounds::PAGE);
        let page = page.await?;
        for read in page.records {
            let id = read.key.strip_prefix(GATEWAY_ENDED).unwrap_or(&read.key).to_owned();
            match records::decode::<GatewayEndRecord>(&read.key, &read.value) {
                Ok(record) => {
                    let (ended, revision) = (Seconds(record.ended), read.revision);
                    found.push(End { id, ended, revision });
                }
                Err(error) => tracing::debug!(%error, "the end of a gateway is not read"),
            }
        }
        next = page.next;
        if next.is_none() || found.len() >= presence::GATEWAYS {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use guest_fleet_ledger::MemoryLedger;
    use guest_fleet_ledger::records::gateway::GatewayRecord;

    async fn begin(ledger: &MemoryLedger, id: &str, beat: u64) -> Revision {
        let beat = SystemTime::UNIX_EPOCH + Duration::from_secs(beat);
        let record =
            GatewayRecord { version: 1, beat: Some(beat.into()), ..GatewayRecord::default() };
        let value = Some(record.encode_to_vec().into());
        let write = Write { key: format!("{GATEWAY}{id}"), expected: Revision::ABSENT, value };
        ledger.write(Bucket::Configuration, vec![write]).await.expect("written")
    }

    async fn end(ledger: &MemoryLedger, id: &str, revision: Revision, at: u64) {
        let key = format!("{GATEWAY}{id}");
        forget(ledger, (&key, revision), Seconds(at)).await.expect("it is forgotten");
    }

    #[tokio::test]
    async fn gateways_are_known_while_they_beat_and_after_their_end() {
        let ledger = MemoryLedger::new();
        begin(&ledger, "lives", 100).await;
        let died = begin(&ledger, "died", 50).await;
        end(&ledger, "died", died, 50).await;
        let found = beats(&ledger).await.expect("read");
        let lives = ("lives".to_owned(), Beat::Last(Seconds(100)));
        let died = ("died".to_owned(), Beat::End(Seconds(50)));
        assert_eq!(found, [died, lives].into());
        // It was only stopped, goes on, and ends after all.
        let on = begin(&ledger, "died", 90).await;
        let beat = |found: &BTreeMap<String, Beat>| found["died"];
        assert_eq!(beat(&beats(&ledger).await.expect("read")), Beat::Last(Seconds(90)));
        end(&ledger, "died", on, 95).await;
        assert_eq!(beat(&beats(&ledger).await.expect("read")), Beat::End(Seconds(95)));
    }

    #[tokio::test]
    async fn ends_that_nobody_needs_are_deleted_and_no_more_than_the_bound_are_kept() {
        let ledger = MemoryLedger::new();
        let month = KEPT.as_secs();
        for at in 0..ENDS + 2 {
            let (id, at) = (format!("g{at:05}"), u64::try_from(at).expect("a number"));
            let revision = begin(&ledger, &id, at).await;
            end(&ledger, &id, revision, at + 1).await;
        }
        let names = |writes: &[Write]| writes.iter().map(|it| it.key.clone()).collect::<Vec<_>>();
        let now = Seconds(month);
        let first = outdated(&ledger, now).await.expect("read");
        assert_eq!(names(&first), ["gateway-ended/g00000", "gateway-ended/g00001"]);
        ledger.write(Bucket::Configuration, first).await.expect("written");
        assert_eq!(outdated(&ledger, Seconds(month + 3)).await.expect("read"), []);
        let third = outdated(&ledger, Seconds(month + 4)).await.expect("read");
        assert_eq!(names(&third), ["gateway-ended/g00002"]);
    }
}
