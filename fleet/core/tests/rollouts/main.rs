//! Rollouts in fleets of which the truth is known, and the pages that are made of them.
//!
//! `UPDATE_GENERATED=1 cargo test --workspace --test rollouts` writes the pages anew.

mod course;
mod diagram;
mod page;
mod random;
mod runs;
mod world;

use course::{Counting, run};
use runs::{Bad, FLEETS, bad, good, halted, within};
use world::Truth;

#[test]
fn what_progress_counts_is_what_changes_give() {
    let truth = Truth { install: 5_000, crash: 5_000, lose: 5_000, outage: true };
    for (targets, runs) in [(10, 40), (50, 40), (300, 20)] {
        for seed in 0..runs {
            run(targets, truth, seed, Counting::Compared);
        }
    }
}

#[test]
fn of_a_thousand_good_rollouts_at_most_one_in_a_hundred_is_halted() {
    for fleet in FLEETS.into_iter().filter(|fleet| fleet.targets >= 200) {
        for outage in [false, true] {
            let halted = halted(&good(fleet, outage));
            assert!(halted <= 1.0, "{halted} % of {}, outage: {outage}", fleet.targets);
        }
    }
}

#[test]
fn a_release_that_is_bad_on_three_in_a_hundred_touches_at_most_two_thousand() {
    let fleet = FLEETS[FLEETS.len() - 1];
    for how in Bad::ALL {
        let runs = bad(fleet, how, 30_000);
        assert!(halted(&runs) >= 95.0, "{how:?}: {} %", halted(&runs));
        let touched = within(&runs, 95, |run| run.touched);
        assert!(touched <= 2_000, "{touched} for {how:?}");
    }
}

#[test]
fn a_release_that_is_bad_on_half_touches_at_most_a_hundred() {
    for fleet in FLEETS {
        for how in Bad::ALL {
            let runs = bad(fleet, how, 500_000);
            assert!(halted(&runs) >= 95.0, "{} {how:?}: {} %", fleet.targets, halted(&runs));
            let touched = within(&runs, 95, |run| run.touched);
            assert!(touched <= 100, "{touched} of {} for {how:?}", fleet.targets);
        }
    }
}

#[test]
fn a_release_that_is_worse_is_halted_more_often() {
    for fleet in FLEETS {
        for how in Bad::ALL {
            let good = halted(&good(fleet, true));
            let [three, half] = [30_000, 500_000].map(|share| halted(&bad(fleet, how, share)));
            let fleet = fleet.targets;
            assert!(good < three && three <= half, "{good}, {three}, {half} of {fleet} {how:?}");
        }
    }
}
