//! The record by which an agent that has lost its store adopts the plugin: when it is written.

use super::serial_queue::SerialQueue;
use super::snapshot::Beside;
use crate::model::id::{RevisionId, Sha256Digest};

/// The record beside the files of the current revision.
#[derive(Default)]
pub(super) struct RecordBeside {
    /// Writes come one after the other.
    pub(super) turns: SerialQueue,
    /// The revision and the digest of the record that were handed to the installer last; no digest
    /// where the records were to be deleted.
    last: Option<(RevisionId, Option<Sha256Digest>)>,
}

/// What the installer gets: a record, or none where the records are to be deleted.
pub(super) type Change = Option<Vec<u8>>;

// === impl RecordBeside ===

impl RecordBeside {
    /// What has to be done for this revision; `None` if the installer has it already.
    pub(super) fn change(&mut self, revision: &RevisionId, beside: Beside) -> Option<Change> {
        let before = self.last.as_ref().filter(|(of, _)| of == revision);
        let record = match beside {
            Beside::Keep(record) => Some(record),
            Beside::KeepFirst(record) if before.is_none() => Some(record),
            Beside::Delete => None,
            Beside::KeepFirst(_) | Beside::Unchanged => return None,
        };
        // A configuration may be large, so the record itself is not kept.
        let digest = record.as_deref().map(Sha256Digest::of);
        if before.is_some_and(|(_, before)| *before == digest) {
            return None;
        }
        self.last = Some((revision.clone(), digest));
        Some(record)
    }

    /// The installer could not do it.
    pub(super) fn failed(&mut self) {
        self.last = None;
    }
}
