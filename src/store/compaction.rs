//! Keeps the database's file from growing far beyond what is in it.
//!
//! sled appends every change to its log, in segments of half a MiB, and uses a segment again when
//! no page has its latest state there. Pages that no write changes keep a segment in use. sled
//! rewrites one of them, so that its old segment loses it, for each page that it replaces, and it
//! replaces a page at every eleventh change. That is not enough where many small records come and
//! go: with five thousand of them, 0.3 MiB in all, the file grew to 15 MiB, most of its segments
//! kept by a few pages each. (sled's own thread for this would sync twice a second for ever.)
//!
//! So the store changes a page without meaning as often as necessary, in a tree of its own, while
//! the file is too large: a *step*, which costs some 30 µs and half a KiB of log.

use sled::{Db, Tree};

/// A file up to this size is left alone, in bytes: a dozen segments are in use at any time.
const LEFT_ALONE: u64 = 4 << 20;

/// How much larger than its records a file may be.
const TIMES_LIVE: u64 = 4;

/// For each such number of bytes that the file is too large, a durable commit makes one step.
const PER_STEP: u64 = 1 << 20;

/// Most steps at one commit.
const STEPS_MAX: u64 = 4;

/// After so many changes sled has replaced a page.
const CHANGES: u8 = 11;

/// The tree that the page is in. The records are in sled's default tree.
const TREE: &str = "tidy";

/// Makes sled compact its file.
#[derive(Debug, Default)]
pub(super) struct Tidy {
    /// `None` until it is needed for the first time.
    page: Option<Tree>,
}

impl Tidy {
    /// Makes as many steps as a file of `len` bytes with so many bytes of records needs.
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
                // sled would not write a value that the page already has.
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
