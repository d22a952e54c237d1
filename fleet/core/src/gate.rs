//! The gate of a rollout: whether what its agents told is reason to stop it.
//!
//! Pure functions over counts. Fleets below [`SMALL`] targets are judged by counting, larger ones by
//! tests that may be looked at after every outcome without losing their error bound.
//!
//! **By counts** ([`by_counts`]). The first failure in the first wave halts. Later two failures in one
//! wave do, or one whose fingerprint was seen in an earlier wave.
//!
//! **By tests.** Each test keeps an *e-value*: a number whose expectation is at most one while the
//! release is good, whenever it is looked at. By Ville's inequality it reaches `1/α` with a
//! probability of at most `α`, over the whole rollout (Ramdas, Grünwald, Vovk, Shafer: *Game-theoretic
//! statistics and safe anytime-valid inference*, 2023). A rollout has three tests, and [`ALPHA`] is
//! divided between them:
//!
//! * [`Installs`]: installations that failed, against the rate that is tolerated. Agents that were not
//!   reached install nothing, so they are no control. The e-value is a mixture of likelihood ratios
//!   of Bernoulli trials (Robbins: *Statistical methods related to the law of the iterated
//!   logarithm*, 1970).
//! * [`Faults`]: crashes, returns and silence of reached agents against agents of the same zone that
//!   were not reached yet, over the same time. Which agents are reached first is drawn by a hash, so
//!   a good release leaves every choice of the failed ones among all equally likely; the e-value is
//!   the likelihood ratio of Fisher's noncentral hypergeometric distribution. It is the conditional
//!   form of the two-sample e-variable of Turner, Ly and Grünwald (*Generic E-variables for exact
//!   sequential k-sample tests that allow for optional stopping*, 2021), and holds also where the
//!   failures of a zone depend on each other: an outage fails both groups.
//! * [`BeforeAfter`]: where no control is left, the same agents before and after their order: a sign
//!   test with the mixture of likelihood ratios as above. Failures of one zone and one time count once,
//!   since an outage fails all of them.
//!
//! `tests/rollouts` holds all of it against fleets of which the truth is known, by way of the functions that
//! the controller calls; its figures are in `docs/fleet-gate.md`.

#[cfg(test)]
mod tests;

/// Fleets with fewer targets are judged by counting.
pub const SMALL: u32 = 200;

/// The probability that a good release is halted by the tests, over its whole rollout.
pub const ALPHA: f64 = 0.009;

/// The share of installations that may fail without a reason to stop: networks and disks fail, too.
pub const TOLERATED: f64 = 0.02;

/// The largest share that a plugin's history can make tolerated. Rollouts that were done raise it a little each,
/// so it needs an end.
pub const TOLERATED_MOST: f64 = 0.1;

/// The alternatives that [`Installs`] bets on: how many times the odds of a failure are higher than is
/// tolerated, and the weight of each. Most is on small ones: those need the most installations to be
/// told apart, and the others need few whatever their weight.
const RATES: [(f64, f64); 3] = [(1.8, 0.75), (5.0, 0.2), (40.0, 0.05)];

/// Those of [`BeforeAfter`], of equal weight: how many times likelier a failure is after the order.
const ODDS: [f64; 3] = [2.0, 5.0, 100.0];

/// The alternatives of [`Faults`]: the share of agents that fail in one block because of the release.
/// A bad release does not ask how often a zone fails of itself, so the odds follow from both.
const EXCESS: [f64; 6] = [0.000_5, 0.002, 0.008, 0.03, 0.1, 0.4];

/// The parts of [`ALPHA`] that the tests have. Installations get most: without controls they need
/// the most evidence.
const PARTS: [f64; 3] = [0.8, 0.1, 0.1];

/// A failure, as counting needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The wave of the agent, from 0.
    pub wave: usize,
    /// Its fingerprint: the same for failures of the same cause.
    pub fingerprint: String,
}

/// Why a rollout has to stop.
#[derive(Clone, Debug, PartialEq)]
pub enum Halt {
    /// An agent of the first wave failed.
    FirstWave {
        /// Fingerprint of the failure.
        fingerprint: String,
    },
    /// Two agents of one wave failed.
    TwoInAWave {
        /// The wave, from 0.
        wave: usize,
    },
    /// An agent failed as one of an earlier wave did.
    SeenBefore {
        /// Fingerprint of both failures.
        fingerprint: String,
    },
    /// More installations failed than is tolerated.
    Installs(Meter),
    /// Reached agents fail more often than those of their zones that were not reached.
    Faults(Meter),
    /// Agents fail more often than before their order.
    BeforeAfter(Meter),
}

/// What a test says, in numbers that people can hold against each other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Meter {
    /// How many failed.
    pub failed: u64,
    /// How many would have failed of themselves.
    pub expected: f64,
    /// Natural logarithm of the e-value.
    pub evidence: f64,
    /// The evidence at which the rollout halts.
    pub limit: f64,
}

/// Installations that ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Installs {
    /// Those that succeeded.
    pub succeeded: u64,
    /// Those that failed.
    pub failed: u64,
    /// The share that may fail: set when the rollout starts, see [`tolerated`].
    pub tolerated: f64,
}

/// One zone during one stretch of time: agents that were whole at its beginning, and how many of
/// them failed until its end. An agent that failed is in no later block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Agents that have the release.
    pub reached: u32,
    /// Those of them that failed.
    pub reached_failed: u32,
    /// Agents that the rollout did not reach yet.
    pub waiting: u32,
    /// Those of them that failed.
    pub waiting_failed: u32,
}

/// What all blocks of a rollout say so far. The order of blocks does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    logarithms: [f64; EXCESS.len()],
    failed: u64,
    expected: f64,
}

/// Times at which agents failed in a stretch of time after their order, or in one as long before it. Agents
/// that failed in both or in neither are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BeforeAfter {
    /// Those that failed only after it.
    pub after: u64,
    /// Those that failed only before it.
    pub before: u64,
}

/// Judges a rollout of a small fleet by its failures, oldest first.
#[must_use]
pub fn by_counts(failures: &[Failure]) -> Option<Halt> {
    failures.iter().enumerate().find_map(|(at, failure)| {
        let fingerprint = failure.fingerprint.clone();
        if failure.wave == 0 {
            return Some(Halt::FirstWave { fingerprint });
        }
        let earlier = failures.get(..at).unwrap_or_default();
        if earlier.iter().any(|other| other.wave == failure.wave) {
            return Some(Halt::TwoInAWave { wave: failure.wave });
        }
        let is_known = earlier.iter().any(|other| other.fingerprint == failure.fingerprint);
        is_known.then_some(Halt::SeenBefore { fingerprint })
    })
}

/// Judges a rollout of a large fleet; the first test that reached its limit decides.
#[must_use]
pub fn by_tests(installs: &Installs, faults: &Faults, own: &BeforeAfter) -> Option<Halt> {
    let halts = [
        (installs.meter(), Halt::Installs as fn(Meter) -> Halt),
        (faults.meter(), Halt::Faults),
        (own.meter(), Halt::BeforeAfter),
    ];
    halts.into_iter().find(|(meter, _)| meter.is_over()).map(|(meter, halt)| halt(meter))
}

/// The share of installations that may fail, by what the plugin's earlier rollouts saw. Few earlier
/// installations say little, so they count as if the tolerated share of another hundred had failed.
#[must_use]
pub fn tolerated(succeeded: u64, failed: u64) -> f64 {
    let (succeeded, failed) = (as_float(succeeded), as_float(failed));
    let share = (failed + 100.0 * TOLERATED) / (succeeded + failed + 100.0);
    share.clamp(TOLERATED, TOLERATED_MOST)
}

/// Logarithm of the sum of numbers, each times its weight, that are given by their logarithms.
fn mixture(weighted: impl IntoIterator<Item = (f64, f64)>) -> f64 {
    let mut sum = Sum::default();
    for (logarithm, weight) in weighted {
        sum.add(logarithm + weight.ln());
    }
    sum.logarithm()
}

/// The same with equal weights.
fn mean(logarithms: &[f64]) -> f64 {
    let weight = 1.0 / as_float(logarithms.len() as u64);
    mixture(logarithms.iter().map(|logarithm| (*logarithm, weight)))
}

/// Loses digits above 2^53, which no fleet has agents for.
#[expect(clippy::cast_precision_loss, reason = "counts of agents are far below 2^53")]
fn as_float(count: u64) -> f64 {
    count as f64
}

/// How many times the odds of a failure are higher where `excess` fails beside the `share` that does
/// so of itself; `None` where hardly anything is left that could.
fn odds(share: f64, excess: f64) -> Option<f64> {
    let both = share + excess;
    (both < 0.99).then(|| both / (1.0 - both) * (1.0 - share) / share)
}

/// Logarithm of the expectation of `odds` to the power of how many of the failed ones are reached
/// ones, where all choices of them are equally likely.
fn generating(block: &Block, odds: f64) -> f64 {
    let [reached, waiting] = [block.reached, block.waiting].map(u64::from);
    let failed = u64::from(block.reached_failed) + u64::from(block.waiting_failed);
    if failed == 1 {
        // Most blocks have one failure.
        return ((as_float(waiting) + as_float(reached) * odds) / as_float(waiting + reached)).ln();
    }
    let (least, most) = (failed.saturating_sub(waiting), failed.min(reached));
    // The terms of both sums relative to their first: each follows from the one before, since
    // C(a, j+1) C(b, k-j-1) / (C(a, j) C(b, k-j)) = (a-j)(k-j) / ((j+1)(b-k+j+1)).
    let mut term = 0.0;
    let (mut plain, mut tilted) = (Sum::default(), Sum::default());
    for chosen in least..=most {
        plain.add(term);
        tilted.add(term + as_float(chosen) * odds.ln());
        let left = as_float((reached - chosen) * (failed - chosen));
        let right = as_float((chosen + 1) * (waiting + chosen + 1 - failed));
        term += (left / right).ln();
    }
    tilted.logarithm() - plain.logarithm()
}

/// A sum of numbers that are given by their logarithms.
struct Sum {
    highest: f64,
    /// The sum, divided by the highest.
    scaled: f64,
}

// === impl Sum ===

impl Default for Sum {
    fn default() -> Self {
        Self { highest: f64::NEG_INFINITY, scaled: 0.0 }
    }
}

impl Sum {
    fn add(&mut self, logarithm: f64) {
        if logarithm > self.highest {
            self.scaled = self.scaled * (self.highest - logarithm).exp() + 1.0;
            self.highest = logarithm;
        } else if logarithm.is_finite() {
            self.scaled += (logarithm - self.highest).exp();
        }
    }

    fn logarithm(&self) -> f64 {
        self.highest + self.scaled.ln()
    }
}

// === impl Meter ===

impl Meter {
    fn new(failed: u64, expected: f64, evidence: f64, part: f64) -> Self {
        Self { failed, expected, evidence, limit: -(part * ALPHA).ln() }
    }

    /// Whether the rollout has to stop.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.evidence >= self.limit
    }
}

// === impl Installs ===

impl Default for Installs {
    fn default() -> Self {
        Self { succeeded: 0, failed: 0, tolerated: TOLERATED }
    }
}

impl Installs {
    /// What they say.
    #[must_use]
    pub fn meter(&self) -> Meter {
        let [succeeded, failed] = [self.succeeded, self.failed].map(as_float);
        let tolerated = self.tolerated.clamp(TOLERATED, 0.99);
        let ratios = RATES.map(|(odds, weight)| {
            // The share that fails where the odds are so many times higher.
            let share = odds * tolerated / (1.0 - tolerated + odds * tolerated);
            let ratio = [share / tolerated, (1.0 - share) / (1.0 - tolerated)].map(f64::ln);
            (failed * ratio[0] + succeeded * ratio[1], weight)
        });
        Meter::new(self.failed, (succeeded + failed) * tolerated, mixture(ratios), PARTS[0])
    }
}

// === impl Faults ===

impl Faults {
    /// Takes in a block. One without a failure, or without one of the two groups, says nothing.
    pub fn observe(&mut self, block: &Block) {
        let failed = u64::from(block.reached_failed) + u64::from(block.waiting_failed);
        self.failed += u64::from(block.reached_failed);
        let is_possible =
            block.reached_failed <= block.reached && block.waiting_failed <= block.waiting;
        if !is_possible || failed == 0 || block.reached == 0 || block.waiting == 0 {
            return;
        }
        let [reached, all] =
            [u64::from(block.reached), u64::from(block.reached) + u64::from(block.waiting)]
                .map(as_float);
        self.expected += as_float(failed) * reached / all;
        for (logarithm, excess) in self.logarithms.iter_mut().zip(EXCESS) {
            // The test holds for every way to choose the odds by what all of the block did.
            let Some(odds) = odds(as_float(failed) / all, excess) else { continue };
            *logarithm += f64::from(block.reached_failed) * odds.ln() - generating(block, odds);
        }
    }

    /// What they say.
    #[must_use]
    pub fn meter(&self) -> Meter {
        Meter::new(self.failed, self.expected, mean(&self.logarithms), PARTS[1])
    }
}

// === impl BeforeAfter ===

impl BeforeAfter {
    /// What they say.
    #[must_use]
    pub fn meter(&self) -> Meter {
        let [after, before] = [self.after, self.before].map(as_float);
        let ratios = ODDS.map(|odds| {
            after * (2.0 * odds / (1.0 + odds)).ln() + before * (2.0 / (1.0 + odds)).ln()
        });
        Meter::new(self.after, before, mean(&ratios), PARTS[2])
    }
}
