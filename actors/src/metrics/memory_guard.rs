//! Keeps a process to its memory limit by measuring it, where the kernel does not. Pure.
//!
//! One sample proves little: a plugin may need much memory for a moment. A plugin is ended only
//! after it was over its limit in this many samples in a row. If the kernel enforces the limit, no
//! plugin is ever over it, so the guard need not know whether it does.

use std::sync::Arc;

use crate::model::exit::ExitCause;
use std::time::Duration;

/// So many samples in a row over the limit end the process.
pub const LOOKS: u32 = 3;

/// The longest time between two samples, however seldom a plugin is measured.
pub const BEAT_MAX: Duration = Duration::from_secs(5);

/// The samples of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryGuard {
    /// In bytes.
    limit: u64,
    over: u32,
    /// The most that was seen, in bytes.
    peak: u64,
}

// === impl MemoryGuard ===

impl MemoryGuard {
    /// A guard without samples.
    #[must_use]
    pub const fn new(limit: u64) -> Self {
        Self { limit, over: 0, peak: 0 }
    }

    /// The same looks under another limit. What was within the old one may not be within the new
    /// one, and the other way round, so that counting begins anew.
    #[must_use]
    pub const fn with_limit(self, limit: u64) -> Self {
        if self.limit == limit { self } else { Self { peak: self.peak, ..Self::new(limit) } }
    }

    /// Takes one more look, and returns the reason to end the process, if there is one, with the most memory
    /// that it was seen to have, in bytes. When the caller does not end it, the same reason comes again after
    /// as many looks.
    pub fn look(&mut self, used: u64) -> Option<(Arc<str>, u64)> {
        self.peak = self.peak.max(used);
        if used <= self.limit {
            self.over = 0;
            return None;
        }
        self.over += 1;
        if self.over < LOOKS {
            return None;
        }
        self.over = 0;
        let how = ExitCause::OverMemoryLimit { peak: Some(self.peak) }.under(Some(self.limit));
        let reason = format!(
            "{how}, and {used} bytes in the last of {LOOKS} looks in a row, and the kernel does not \
             enforce the limit here"
        );
        Some((reason.into(), self.peak))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn law_only_looks_in_a_row_make_a_judgement(
            limit in 0u64..1000, looks in proptest::collection::vec(0u64..2000, 0..50)
        ) {
            let mut guard = MemoryGuard::new(limit);
            let mut in_a_row = 0;
            for used in looks {
                in_a_row = if used > limit { in_a_row + 1 } else { 0 };
                let judged = guard.look(used).is_some();
                prop_assert_eq!(judged, in_a_row > 0 && in_a_row % LOOKS == 0);
            }
        }
    }

    #[test]
    fn exactly_the_limit_is_within_it_and_another_limit_begins_anew() {
        let mut guard = MemoryGuard::new(10);
        assert!((0..9).all(|_| guard.look(10).is_none()));
        assert_eq!((guard.look(11), guard.look(11)), (None, None));
        let mut other = guard.with_limit(9);
        assert_eq!(other.look(11), None);
        assert_eq!(guard.with_limit(12).look(12), None);
        let (reason, peak) = guard.with_limit(10).look(11).expect("the third look");
        assert!(
            reason.contains("11 bytes in the last") && reason.contains("limit of 10 bytes"),
            "{reason}"
        );
        assert_eq!(peak, 11);
        let mut sinking = MemoryGuard::new(10);
        assert_eq!((sinking.look(40), sinking.look(11)), (None, None));
        let (reason, peak) = sinking.look(12).expect("the third look");
        assert!(
            reason.contains("it used 40 bytes at its peak, and 12 bytes in the last"),
            "{reason}"
        );
        assert_eq!(peak, 40);
    }
}
