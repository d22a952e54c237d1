//! Guards that a test can remove, to see that the simulation notices when one is missing.

/// A guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guard {
    /// Nothing is recorded on an old view.
    ViewAgeBeforeJournal,
    /// Nothing waits for the transport on a view that grew old while the journal was written.
    ViewAgeAfterJournal,
    /// Nothing is handed to the transport on an old view.
    ViewAgeAtHandOver,
    /// A session that was replaced writes nothing into the journal.
    Fence,
    /// What is not wanted any more is not sent again.
    Supersede,
    /// An order is recorded before it leaves.
    JournalFirst,
    /// An event is acknowledged when it is recorded, and not before.
    EventRecorded,
    /// A removal is ordered only of what is there.
    RemoveWhatIsThere,
    /// A change of a rollout is written together with the lease of its controller.
    LeaseOfRollouts,
    /// A change of a rollout is written over the record that was counted, and over no other.
    RevisionOfRollout,
    /// Agents that do not take up a grant are passed over for a while.
    PassingOver,
    /// Generations go on above the highest that an agent reports.
    AboveReported,
    /// An agent that lacks something is looked at twice before that counts as drift.
    SecondLook,
    /// A drifted agent is ordered again only with the fleet's leave.
    LeaveToRepair,
    /// Nothing is ordered where an agent reports a generation that the journal does not know.
    LedgerWentBack,
    /// What a person on the machine changed is not undone. Removed where reports are read.
    OwnersChange,
    /// An event that comes again under its id is recorded once. Removed in the simulated ledger.
    #[cfg_attr(not(test), expect(dead_code, reason = "the simulation removes it"))]
    SameId,
    /// An agent ignores orders that are older than one it took. Removed on the simulated stream.
    #[cfg_attr(not(test), expect(dead_code, reason = "the simulation removes it"))]
    Generations,
    /// An agent does not start what its owner stopped. Removed in the simulated agent.
    #[cfg_attr(not(test), expect(dead_code, reason = "the simulation removes it"))]
    OwnerStopped,
}

#[cfg(test)]
thread_local! {
    static REMOVED: std::cell::Cell<Option<Guard>> = const { std::cell::Cell::new(None) };
}

/// Removes a guard on this thread.
#[cfg(test)]
pub(crate) fn remove(guard: Option<Guard>) {
    REMOVED.set(guard);
}

/// Whether the guard is removed.
#[cfg(test)]
pub(crate) fn is(guard: Guard) -> bool {
    REMOVED.get() == Some(guard)
}

/// Whether the guard is removed: never, outside of tests.
#[cfg(not(test))]
pub(crate) const fn is(_guard: Guard) -> bool {
    false
}

/// Whether a guard of the view's age is removed: a wait for a younger view would hide that.
pub(crate) fn is_view_age() -> bool {
    let guards =
        [Guard::ViewAgeBeforeJournal, Guard::ViewAgeAfterJournal, Guard::ViewAgeAtHandOver];
    guards.into_iter().any(is)
}
