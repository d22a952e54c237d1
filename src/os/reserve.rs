//! Descriptors that are kept so that a plugin can be started when the agent has no other left.
//!
//! Connections, downloads and followers may use up all descriptors that the agent may have. A plugin
//! that crashed then must come back all the same. So some are kept open on nothing, and a launch has
//! them closed for as long as it opens its own.

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// As many as a launch opens at a time, and as some that run beside it.
const KEPT: usize = 24;

/// The descriptors that are kept.
#[derive(Debug)]
pub(crate) struct Reserve(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    spare: Vec<File>,
    loans: usize,
}

/// While it lives, the reserve is free to be used.
#[derive(Debug)]
pub(crate) struct Loan(Arc<Reserve>);

// === impl Reserve ===

impl Reserve {
    /// A full reserve, or as much of it as can be had now.
    pub(crate) fn new() -> Arc<Self> {
        let mut kept = Kept::default();
        kept.fill();
        Arc::new(Self(Mutex::new(kept)))
    }

    /// Frees the reserve until the loan, and every other, is over.
    pub(crate) fn lend(self: &Arc<Self>) -> Loan {
        let mut kept = self.kept();
        kept.loans += 1;
        kept.spare.clear();
        Loan(Arc::clone(self))
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Kept ===

impl Kept {
    fn fill(&mut self) {
        while self.spare.len() < KEPT {
            // Short of descriptors, the next loan that ends fills it.
            let Ok(file) = File::open("/dev/null") else { return };
            self.spare.push(file);
        }
    }
}

// === impl Loan ===

impl Drop for Loan {
    fn drop(&mut self) {
        let mut kept = self.0.kept();
        kept.loans = kept.loans.saturating_sub(1);
        if kept.loans == 0 {
            kept.fill();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_free_while_anybody_has_a_loan_and_full_again_afterwards() {
        let reserve = Reserve::new();
        let spare = || reserve.kept().spare.len();
        assert_eq!(spare(), KEPT);
        let first = reserve.lend();
        let second = reserve.lend();
        assert_eq!(spare(), 0);
        drop(first);
        assert_eq!(spare(), 0, "another launch needs it");
        drop(second);
        assert_eq!(spare(), KEPT);
    }
}
