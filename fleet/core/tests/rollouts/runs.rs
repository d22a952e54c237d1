//! Many rollouts, each from its own seed. Every set is run once, and the tests that need it share the outcome.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use crate::course::{Counting, Ended, run};
use crate::world::Truth;

/// Fleets of one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fleet {
    pub(crate) targets: u32,
    /// How many good rollouts are run: such a one goes to the end, and takes long in a large fleet.
    pub(crate) good: u64,
    /// How many are run that are bad on 3 %.
    pub(crate) bad: u64,
}

pub(crate) const FLEETS: [Fleet; 7] = [
    Fleet { targets: 10, good: 1_000, bad: 1_000 },
    Fleet { targets: 30, good: 1_000, bad: 1_000 },
    Fleet { targets: 50, good: 1_000, bad: 1_000 },
    Fleet { targets: 200, good: 1_000, bad: 1_000 },
    Fleet { targets: 1_000, good: 1_000, bad: 400 },
    Fleet { targets: 10_000, good: 60, bad: 200 },
    Fleet { targets: 100_000, good: 3, bad: 200 },
];

/// How a release is bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Bad {
    /// Its installation fails.
    Install,
    /// It crashes some minutes later.
    Crash,
    /// Its machine is never heard of again.
    Lose,
}

type Set = Arc<OnceLock<Vec<Ended>>>;
type Key = (u32, Option<(Bad, u64)>, bool);

static SETS: LazyLock<Mutex<BTreeMap<Key, Set>>> = LazyLock::new(Mutex::default);

/// What becomes of a good release.
pub(crate) fn good(fleet: Fleet, outage: bool) -> Vec<Ended> {
    let truth = Truth { outage, ..Truth::default() };
    set((fleet.targets, None, outage), fleet.good, truth)
}

/// What becomes of a release that is bad on so many agents in a million, while a zone goes away.
pub(crate) fn bad(fleet: Fleet, how: Bad, share: u64) -> Vec<Ended> {
    let truth = Truth { outage: true, ..Truth::default() };
    let truth = match how {
        Bad::Install => Truth { install: share, ..truth },
        Bad::Crash => Truth { crash: share, ..truth },
        Bad::Lose => Truth { lose: share, ..truth },
    };
    set((fleet.targets, Some((how, share)), true), runs(fleet, share), truth)
}

/// How many rollouts of a bad release are run. What is bad on more is halted sooner, and differs less.
pub(crate) fn runs(fleet: Fleet, share: u64) -> u64 {
    if share > 30_000 { fleet.bad / 2 } else { fleet.bad }
}

fn set(key: Key, runs: u64, truth: Truth) -> Vec<Ended> {
    let set = Arc::clone(SETS.lock().expect("no test failed in here").entry(key).or_default());
    let all = || (0..runs).map(|seed| run(key.0, truth, seed, Counting::Changes)).collect();
    set.get_or_init(all).clone()
}

/// Share of the runs that were halted, in percent.
pub(crate) fn halted(runs: &[Ended]) -> f64 {
    runs.iter().filter(|run| run.is_halted).count() as f64 * 100.0 / runs.len() as f64
}

/// The number that this share of the runs, in percent, does not exceed.
pub(crate) fn within(runs: &[Ended], share: usize, number: impl Fn(&Ended) -> u32) -> u32 {
    let mut sorted: Vec<u32> = runs.iter().map(number).collect();
    sorted.sort_unstable();
    sorted[(sorted.len() * share).div_ceil(100).max(1) - 1]
}

// === impl Bad ===

impl Bad {
    pub(crate) const ALL: [Self; 3] = [Self::Install, Self::Crash, Self::Lose];
}
