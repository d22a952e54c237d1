//! Guards of the controller are needed: without one a law does not hold any more. That a view is new
//! enough when an order leaves is tried where orders are simulated, and that nothing is granted too
//! early in `core::rollout::model`.

use std::iter::once;

use super::run_seed;
use crate::orders::simulation::seeds::notice;
use crate::simulated::removed::Guard;

/// Seeds within which a missing guard is noticed.
const SEEDS: u64 = 500;

#[track_caller]
fn notices(guard: Guard, law: &str) {
    notice(guard, law, 0..SEEDS, run_seed);
}

#[test]
fn a_controller_that_lost_its_lease_and_moves_a_rollout_is_noticed() {
    // Few seeds notice it, and this one did. Where its run is another by now, the search goes on as ever.
    let seeds = once(103).chain(0..SEEDS);
    notice(Guard::LeaseOfRollouts, "has the lease", seeds, run_seed);
}

#[test]
fn a_change_that_overwrites_another_one_is_noticed() {
    notices(Guard::RevisionOfRollout, "no arrow leads");
}

#[test]
fn an_agent_that_is_never_passed_over_is_noticed() {
    notices(Guard::PassingOver, "it does not end");
}
