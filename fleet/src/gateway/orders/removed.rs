//! Guards that a test can remove, to see that the simulation notices when one is missing.

/// A guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), expect(dead_code, reason = "only tests remove one"))]
pub(super) enum Guard {
    /// No order leaves on an old view.
    ViewAge,
    /// A session that was replaced writes nothing into the journal.
    Fence,
}

#[cfg(test)]
thread_local! {
    static REMOVED: std::cell::Cell<Option<Guard>> = const { std::cell::Cell::new(None) };
}

/// Removes a guard on this thread.
#[cfg(test)]
pub(super) fn remove(guard: Option<Guard>) {
    REMOVED.set(guard);
}

/// Whether the guard is removed.
#[cfg(test)]
pub(super) fn is(guard: Guard) -> bool {
    REMOVED.get() == Some(guard)
}

/// Whether the guard is removed: never, outside of tests.
#[cfg(not(test))]
pub(super) const fn is(_guard: Guard) -> bool {
    false
}
