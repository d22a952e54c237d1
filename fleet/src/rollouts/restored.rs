//! A ledger that is restored from a copy: rollouts wait for a person.
//!
//! A copy is older than what agents did since. A controller that went on from it would give turns
//! that were given, and a halt that came after the copy would be forgotten. So rollouts are halted
//! while the copy is brought into its place, before anybody can open the ledger.

use std::convert::Infallible;
use std::path::Path;

use bytes::Bytes;
use guest_fleet_core::rollout::{Cause, State};
use guest_fleet_ledger::records::rollout::{ROLLOUT, RolloutRecord, rollout_key};
use guest_fleet_ledger::{Bucket, Ledger, records};
use prost::Message;

use crate::configuration::change::{Becomes, ChangeError, Decision, EDITS, Edit, change};
use crate::configuration::{Configuration, words};

/// What audit entries of a restore have as the key of the ledger itself.
const LEDGER: &str = "ledger";

/// What becomes of a record of a copy that is restored; `None` where it stays as it is.
#[must_use]
pub fn amend(bucket: Bucket, key: &str, value: &[u8]) -> Option<Bytes> {
    if bucket != Bucket::Configuration || !key.starts_with(ROLLOUT) {
        return None;
    }
    // A record that cannot be read holds its assignment already.
    let record: RolloutRecord = records::decode(key, value).ok()?;
    let mut found = record.rollout(key).ok()?;
    found.rollout.restore().then(|| RolloutRecord::of(&found).encode_to_vec().into())
}

/// Writes into the audit record of a restored ledger that it was restored, and which rollouts wait
/// for a person because of that; their names.
///
/// # Errors
/// The ledger cannot be read or written. It is restored all the same.
pub async fn record(
    ledger: &dyn Ledger,
    decision: &Decision,
    from: &Path,
) -> Result<Vec<String>, ChangeError<Infallible>> {
    let changed = change(ledger, decision, |configuration| Ok(plan(configuration, from))).await?;
    Ok(changed.answer)
}

fn plan(configuration: &Configuration, from: &Path) -> (Vec<Edit>, Vec<String>) {
    let mut names = Vec::new();
    let mut edits = vec![Edit {
        key: LEDGER.to_owned(),
        before: None,
        after: Some(format!("restored from {}", from.display())),
        record: Becomes::Elsewhere,
    }];
    for (assignment, found) in &configuration.view().rollouts {
        if found.rollout.state == State::Halted(Cause::Restored) {
            names.push(found.name.clone());
            edits.push(Edit {
                key: rollout_key(assignment),
                before: None,
                after: Some(words::rollout(found)),
                record: Becomes::Elsewhere,
            });
        }
    }
    // The entry has room for no more, and the records say it themselves.
    edits.truncate(EDITS);
    (edits, names)
}

#[cfg(test)]
mod tests;
