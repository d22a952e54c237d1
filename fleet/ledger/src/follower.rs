//! Keeps up with the changes of one bucket, and knows when what its user keeps is not to be trusted
//! any more.
//!
//! A bucket forgets its oldest deletions. A reader that was away while that happened would keep
//! records that are gone. A `Follower` finds out and begins again; its user then forgets what it
//! has ([`Update::is_reset`]).

use super::{Bucket, Change, Ledger, ReadError, Revision};

/// A place in the changes of a bucket. The user keeps what the updates say, the follower keeps how
/// far that is.
#[derive(Clone, Copy, Debug)]
pub struct Follower {
    bucket: Bucket,
    through: Revision,
    /// What the ledger had forgotten at the page before; `None` when there was no page yet.
    forgotten: Option<Revision>,
}

/// What changed since the update before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// Whether the user has to forget what it kept, before it takes the changes. The first update
    /// is one.
    pub is_reset: bool,
    /// One change per key, oldest first.
    pub changes: Vec<Change>,
    /// Everything up to this revision was handed out, when `more` does not hold.
    pub through: Revision,
    /// Whether the next update has more, without waiting.
    pub more: bool,
}

// === impl Follower ===

impl Follower {
    /// A follower that has read nothing yet.
    #[must_use]
    pub fn new(bucket: Bucket) -> Self {
        Self { bucket, through: Revision::ABSENT, forgotten: None }
    }

    /// A follower that goes on where one was whose user kept what its updates said: [`Follower::through`]
    /// and [`Follower::forgotten`] of that moment.
    #[must_use]
    pub fn resumed(bucket: Bucket, through: Revision, forgotten: Revision) -> Self {
        Self { bucket, through, forgotten: Some(forgotten) }
    }

    /// What the ledger had forgotten at the last update; `None` before the first.
    #[must_use]
    pub fn forgotten(&self) -> Option<Revision> {
        self.forgotten
    }

    /// Everything up to this revision was handed out.
    #[must_use]
    pub fn through(&self) -> Revision {
        self.through
    }

    /// The next page of what changed. `at_least` as in [`Ledger::changes`].
    ///
    /// # Errors
    /// The ledger cannot answer; the next call asks for the same again.
    pub async fn next(
        &mut self,
        ledger: &dyn Ledger,
        at_least: Revision,
    ) -> Result<Update, ReadError> {
        let mut page = ledger.changes(self.bucket, self.through, at_least).await?;
        // Deletions after `through` are all there where none of them was forgotten, or where none
        // was forgotten since the page before.
        let is_whole = page.forgotten <= self.through || self.forgotten == Some(page.forgotten);
        let is_first = self.forgotten.is_none();
        if !is_whole && !is_first {
            page = ledger.changes(self.bucket, Revision::ABSENT, at_least).await?;
        }
        self.through = page.through;
        self.forgotten = Some(page.forgotten);
        Ok(Update {
            is_reset: is_first || !is_whole,
            changes: page.changes,
            through: page.through,
            more: page.more,
        })
    }
}
