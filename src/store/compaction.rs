//! Keeps the database's file from growing far beyond what is in it.
//!
//! sled writes every change behind the last one, into segments of half a MiB, and uses a segment
//! again when no page has its latest state there. What stands in the way are pages that nobody
//! changes. sled rewrites one of them, so that its old segment loses it, for each page that it
//! replaces, and a page is replaced at every eleventh change. That is not enough where many small
//! records come and go: with five thousand of them, 0.3 MiB in all, the file grew to 15 MiB, most
//! of its segments kept by a few pages each. (Its own thread for that would sync twice a second for
//! ever.)
//!
//! So a page of no meaning is changed as often as it takes, in a tree of its own, while the file is
//! larger than it need be: a *step*, which costs some 30 µs and half a KiB of log.

use sled::{Db, Tree};

/// A file of this size is left alone, in bytes: a dozen segments are in use at any time.
const LEFT_ALONE: u64 = 4 << 20;

/// So much larger than the records in it a file may be beside.
const TIMES_LIVE: u64 = 4;

/// For so much that the file is too large there is a step at each durable commit, in bytes.
const PER_STEP: u64 = 1 << 20;

/// Most steps at one commit.
const STEPS_MAX: u64 = 4;

/// After so many changes of a page sled has replaced it.
const CHANGES: u8 = 11;

/// The tree that the page is in. The records are in sled's default tree.
const TREE: &str = "tidy";

/// Makes sled put its file in order.
#[derive(Debug, Default)]
pub(super) struct Tidy {
    /// Not there until it is needed for the first time.
    page: Option<Tree>,
}

impl Tidy {
    /// Takes as many steps as a file of `len` bytes with so many bytes of records needs.
    pub(super) fn work(&mut self, db: &Db, len: u64, live: u64) -> sled::Result<()> {
        let steps = steps(len, live);
        if steps == 0 {
            return Ok(());
        }
        let page = match &mut self.page {
            Some(page) => page,
            none => none.insert(db.open_tree(TREE)?),
        };
        for _ in 0..steps {
            for change in 0..CHANGES {
                // What is there already would not be written again.
                page.insert(b"", &[change])?;
            }
        }
        Ok(())
    }
}

fn steps(len: u64, live: u64) -> u64 {
    let allowed = live.saturating_mul(TIMES_LIVE).saturating_add(LEFT_ALONE);
    len.saturating_sub(allowed).div_ceil(PER_STEP).min(STEPS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_file_is_put_in_order_the_more_the_further_it_is_beyond_what_it_may_have() {
        assert_eq!(steps(0, 0), 0);
        assert_eq!(steps(4 * MIB, 0), 0);
        assert_eq!(steps(8 * MIB, MIB), 0);
        assert_eq!(steps(8 * MIB + 1, MIB), 1);
        assert_eq!(steps(10 * MIB, MIB), 2);
        assert_eq!(steps(500 * MIB, MIB), STEPS_MAX);
        assert_eq!(steps(u64::MAX, 0), STEPS_MAX);
        assert_eq!(steps(MIB, u64::MAX), 0);
    }
}
