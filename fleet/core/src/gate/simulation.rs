//! The gate against simulated truth.
//!
//! A fleet of unequal zones, whose agents crash of themselves, gets a release that is good or bad. One
//! installation in a hundred fails whatever is installed, and a zone goes away for a while. Agents
//! are reached in waves; "touched" counts those that are in flight when the gate says halt.

use super::{BeforeAfter, Block, Failure, Faults, Installs, SMALL, TOLERATED, by_counts, by_tests};

/// Shares of the zones, in a thousand, and how often an agent there fails of itself in one stretch of
/// time, in a million.
const ZONES: [(u32, u32); 5] = [(500, 200), (250, 500), (150, 1_000), (70, 3_000), (30, 10_000)];
/// Installations that fail whatever is installed, in a million.
const UNAVOIDABLE: u32 = 10_000;
/// Stretches of time that an agent is on probation.
const PROBATION: u32 = 3;

/// A release, by how often it fails, in a million.
#[derive(Clone, Copy, Debug)]
struct Truth {
    /// Installations that fail, beside those that always do.
    install: u32,
    /// Agents that crash during their probation, beside those that always do.
    crash: u32,
}

const GOOD: Truth = Truth { install: 0, crash: 0 };

/// Numbers that follow from a seed: SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// How many of so many happen, each in so many cases of a million. Exact: gaps between those that
    /// happen are geometric, so that rare ones among many cost little.
    fn of(&mut self, count: u32, millionths: u32) -> u32 {
        let share = f64::from(millionths) / 1e6;
        if share <= 0.0 || count == 0 {
            return 0;
        }
        let (mut happened, mut at) = (0, 0.0);
        loop {
            at += ((1.0 - self.unit()).ln() / (1.0 - share).ln()).floor() + 1.0;
            if at > f64::from(count) {
                return happened;
            }
            happened += 1;
        }
    }
}

/// What became of a rollout.
#[derive(Clone, Copy, Debug)]
struct Ended {
    is_halted: bool,
    touched: u32,
    failed: u32,
}

#[derive(Clone, Copy, Default)]
struct Zone {
    /// Whole agents that wait for the release.
    waiting: u32,
    /// Agents that have it: whole ones by how many stretches they had it.
    on_probation: [u32; PROBATION as usize],
    /// Whole agents that have it and passed.
    passed: u32,
}

/// The waves that a fleet of this size has when nobody says otherwise.
fn waves(targets: u32) -> Vec<u32> {
    let mut waves = Vec::new();
    let mut left = targets;
    let mut next = if targets < SMALL { 1 } else { 10 };
    let most = (targets / 4).max(1);
    while left > 0 {
        let wave = next.min(most).min(left);
        waves.push(wave);
        left -= wave;
        next *= if targets < SMALL { 2 } else { 4 };
    }
    waves
}

/// The most agents in flight when nobody says otherwise.
fn budget(targets: u32) -> u32 {
    (targets / 200).clamp(10, 500)
}

/// How many of each zone are next, where every order of the agents is equally likely.
fn drawn(zones: &[Zone], reach: u32, random: &mut Random) -> Vec<u32> {
    let mut drawn = vec![0; zones.len()];
    let mut left: Vec<u32> = zones.iter().map(|zone| zone.waiting).collect();
    for _ in 0..reach {
        let all: u32 = left.iter().sum();
        let mut at =
            u32::try_from(random.next() % u64::from(all.max(1))).expect("it is below a u32");
        let zone = left.iter().position(|&waiting| {
            let is_here = at < waiting;
            at = at.saturating_sub(waiting);
            is_here
        });
        let zone = zone.expect("somebody waits");
        left[zone] -= 1;
        drawn[zone] += 1;
    }
    drawn
}

fn roll_out(targets: u32, truth: Truth, seed: u64) -> Ended {
    let mut random = Random(seed);
    let mut zones = ZONES.map(|(share, _)| Zone {
        waiting: targets / 1_000 * share + targets % 1_000 * share / 1_000,
        ..Zone::default()
    });
    zones[0].waiting += targets - zones.iter().map(|zone| zone.waiting).sum::<u32>();
    // A zone is away during some stretches, early or late in the rollout.
    let away = (random.next() % 40, usize::try_from(random.next() % 5).unwrap());
    let mut installs = Installs { succeeded: 0, failed: 0, tolerated: TOLERATED };
    let (mut faults, mut own) = (Faults::default(), BeforeAfter::default());
    let mut failures: Vec<Failure> = Vec::new();
    let (mut touched, mut failed) = (0, 0);
    let mut stretch = 0_u64;
    for (wave, size) in waves(targets).into_iter().enumerate() {
        let mut to_reach = size;
        loop {
            let in_flight: u32 = zones.iter().flat_map(|zone| zone.on_probation).sum();
            if to_reach == 0 && in_flight == 0 {
                break;
            }
            let reach = to_reach.min(budget(targets).saturating_sub(in_flight));
            to_reach -= reach;
            touched += reach;
            let mut told: Vec<&str> = Vec::new();
            let reached_of = drawn(&zones, reach, &mut random);
            for (zone, reached) in zones.iter_mut().zip(reached_of) {
                zone.waiting -= reached;
                let broken = random.of(reached, truth.install);
                let unavoidable = random.of(reached - broken, UNAVOIDABLE);
                installs.failed += u64::from(broken + unavoidable);
                installs.succeeded += u64::from(reached - broken - unavoidable);
                failed += broken + unavoidable;
                told.extend((0..broken).map(|_| "the release"));
                told.extend((0..unavoidable).map(|_| "a network"));
                zone.on_probation[0] = reached - broken - unavoidable;
            }
            for (at, zone) in zones.iter_mut().enumerate() {
                let of_itself =
                    if away.0 == stretch && away.1 == at { 1_000_000 } else { ZONES[at].1 };
                let mut block = Block { waiting: zone.waiting, ..Block::default() };
                block.waiting_failed = random.of(zone.waiting, of_itself);
                // Who crashed of itself comes back, and is as it was.
                block.reached = zone.passed;
                block.reached_failed = random.of(zone.passed, of_itself);
                for group in &mut zone.on_probation {
                    block.reached += *group;
                    let of_itself = random.of(*group, of_itself);
                    let broken = random.of(*group - of_itself, truth.crash / PROBATION);
                    block.reached_failed += of_itself + broken;
                    failed += of_itself + broken;
                    told.extend((0..of_itself).map(|_| "of itself"));
                    told.extend((0..broken).map(|_| "the release"));
                    if zone.waiting == 0 {
                        own.before += u64::from(random.of(*group, ZONES[at].1));
                        own.after += u64::from(of_itself + broken);
                    }
                    *group -= of_itself + broken;
                }
                faults.observe(&block);
                zone.passed += zone.on_probation[PROBATION as usize - 1];
                zone.on_probation.rotate_right(1);
                zone.on_probation[0] = 0;
            }
            stretch += 1;
            failures.extend(
                told.into_iter().map(|told| Failure { wave, fingerprint: told.to_owned() }),
            );
            let halt = if targets < SMALL {
                by_counts(&failures)
            } else {
                by_tests(&installs, &faults, &own)
            };
            if halt.is_some() {
                return Ended { is_halted: true, touched, failed };
            }
        }
    }
    Ended { is_halted: false, touched, failed }
}

fn many(targets: u32, truth: Truth, runs: u64) -> Vec<Ended> {
    (0..runs).map(|seed| roll_out(targets, truth, seed)).collect()
}

/// Share of the runs that were halted, in percent.
fn halted(runs: &[Ended]) -> f64 {
    runs.iter().filter(|run| run.is_halted).count() as f64 * 100.0 / runs.len() as f64
}

/// The number that this share of the runs, in percent, does not exceed.
fn within(runs: &[Ended], share: usize, number: impl Fn(&Ended) -> u32) -> u32 {
    let mut sorted: Vec<u32> = runs.iter().map(number).collect();
    sorted.sort_unstable();
    sorted[(sorted.len() - 1) * share / 100]
}

const CRASHES: Truth = Truth { install: 0, crash: 30_000 };
const BREAKS: Truth = Truth { install: 30_000, crash: 0 };
const HALF_CRASH: Truth = Truth { install: 0, crash: 500_000 };
const HALF_BREAK: Truth = Truth { install: 500_000, crash: 0 };

#[test]
fn of_a_thousand_good_rollouts_at_most_one_in_a_hundred_is_halted() {
    for (targets, runs) in [(200, 1_000), (1_000, 1_000), (100_000, 1_000)] {
        let halted = halted(&many(targets, GOOD, runs));
        assert!(halted <= 1.0, "{halted} % of {targets}");
    }
}

#[test]
fn a_release_that_is_bad_on_three_in_a_hundred_touches_at_most_two_thousand() {
    for truth in [CRASHES, BREAKS] {
        let runs = many(100_000, truth, 400);
        assert!(halted(&runs) >= 95.0, "{truth:?}");
        let touched = within(&runs, 95, |run| run.touched);
        assert!(touched <= 2_000, "{touched} for {truth:?}");
    }
}

#[test]
fn a_release_that_is_bad_on_half_touches_at_most_a_hundred() {
    for truth in [HALF_CRASH, HALF_BREAK] {
        for targets in [10, 30, 50, 200, 1_000, 100_000] {
            let runs = many(targets, truth, 400);
            assert!(halted(&runs) >= 95.0, "{targets} {truth:?}");
            let touched = within(&runs, 95, |run| run.touched);
            assert!(touched <= 100, "{touched} of {targets} for {truth:?}");
        }
    }
}

/// Tables of the book are made of these lines; see them with `--nocapture`.
#[test]
fn a_release_that_is_worse_is_halted_more_often() {
    for targets in [10, 30, 50, 200, 1_000] {
        let runs = [GOOD, CRASHES, HALF_CRASH].map(|truth| many(targets, truth, 400));
        for runs in &runs {
            println!(
                "{targets:>6} targets: {:>5.1} % halted, touched {:>5} (95 %: {:>5}), failed {:>4} (95 %: {:>4})",
                halted(runs),
                within(runs, 50, |run| run.touched),
                within(runs, 95, |run| run.touched),
                within(runs, 50, |run| run.failed),
                within(runs, 95, |run| run.failed),
            );
        }
        let [good, crashes, half] = runs.map(|runs| halted(&runs));
        assert!(good < crashes && crashes < half, "{good}, {crashes}, {half} of {targets}");
    }
}
