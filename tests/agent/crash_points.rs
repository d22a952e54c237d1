//! Kills the agent at every point where it saves something or carries something out.
//!
//! The binary under test has a hook that the released one has not
//! (`docs/decisions/0006-crash-points-are-compiled-only-for-tests.md`). One run of a fixed scenario
//! lists the points; then the scenario is played once per point, the agent dies there, is started
//! again, and in the end everything has to be as it would have been, and nothing may be left
//! behind. Further plays kill the agent a second time, at a point of its recovery.
//!
//! `run` plays one scenario, `checks` has what must hold. One play by hand, with the agent's log:
//!
//! ```text
//! CRASH_AT='begin launch (p) #2' tests/run soak crash-points
//! CRASH_AT='begin launch (p) #2, 7' …    dies again at the 7th point of the second life
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use run::Played;

mod checks;
mod run;

/// Plays at a time. Most of a play is waiting.
const PLAYERS: usize = 6;

/// So often a point is tried that was not reached, because work beside each other came in another
/// order.
const TRIES: u32 = 3;

/// A scenario reaches at least this many points; fewer mean that the hook is gone from somewhere.
const FEWEST_POINTS: usize = 150;

/// How many points of a second life count as its recovery.
const RECOVERY: usize = 30;

/// Kinds of points that must be among those found, without subject and number.
const KINDS: [&str; 54] = [
    "before save Inbox",
    "after save Inbox",
    "before delete Inbox",
    "after delete Inbox",
    "before save Plugins",
    "after save Plugins",
    "before delete Plugins",
    "after delete Plugins",
    "before delete Outbox",
    "after delete Outbox",
    "before save Facts",
    "after save Facts",
    "before acknowledgement",
    "after acknowledgement",
    "before delivery",
    "after delivery",
    "begin install",
    "end install",
    "after staging",
    "after unpacking",
    "before record",
    "before publication",
    "after publication",
    "begin launch",
    "end launch",
    "before current swap",
    "before spawn",
    "after spawn",
    "before start",
    "begin apply",
    "end apply",
    "begin stop",
    "end stop",
    "after asking to stop",
    "before socket removal",
    "begin watch",
    "end watch",
    "begin unwatch",
    "end unwatch",
    "begin discard",
    "end discard",
    "before setting aside",
    "after setting aside",
    "before destruction",
    "begin remove",
    "end remove",
    "after files removal",
    "after state removal",
    "begin retire",
    "end retire",
    "after bind",
    "end load",
    "before begin",
    "before ready",
];

/// What is left to be played, and what came of it.
#[derive(Default)]
struct Suite {
    queue: VecDeque<Plan>,
    /// Every point that was reached by a first life.
    found: BTreeSet<String>,
    /// Every point that an agent died at.
    died_at: BTreeSet<String>,
    /// Points of recoveries, each with the death that led there.
    recoveries: BTreeMap<String, Vec<String>>,
    failures: Vec<String>,
    plays: usize,
}

/// One play: where the agent dies, life by life.
#[derive(Clone, Debug)]
struct Plan {
    deaths: Vec<String>,
    tries: u32,
}

#[test]
#[ignore = "takes minutes: `tests/run soak crash-points`"]
fn crash_points_lose_nothing_and_leave_nothing() {
    let began = Instant::now();
    if let Ok(wanted) = std::env::var("CRASH_AT") {
        let deaths = wanted.split(", ").map(str::to_owned).collect();
        let played = play(&Plan { deaths, tries: 0 });
        println!("{:?} in {:?}", played.deaths, began.elapsed());
        return;
    }
    let counted = play(&Plan { deaths: Vec::new(), tries: 0 });
    let points = &counted.lives[0];
    check_kinds(points);

    let mut suite = Suite::default();
    suite.find(points);
    let suite = play_all(suite);
    let never: Vec<_> = suite.found.difference(&suite.died_at).collect();
    assert!(suite.failures.is_empty() && never.is_empty(), "{}", story(&suite, &never));

    let died_once = suite.plays;
    let second = play_all(suite.second_deaths());
    assert!(second.failures.is_empty(), "{}", story(&second, &[]));
    println!(
        "{} points; {died_once} plays with one death and {} with two in {:?}",
        suite.found.len(),
        second.plays,
        began.elapsed()
    );
}

/// Plays a plan on a thread of its own kind of time: one runtime per play.
fn play(plan: &Plan) -> Played {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(run::play(&plan.deaths))
}

fn play_all(suite: Suite) -> Suite {
    let suite = Mutex::new(suite);
    let lock = || suite.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for _ in 0..PLAYERS {
            scope.spawn(|| {
                loop {
                    let Some(plan) = lock().queue.pop_front() else { return };
                    let result = catch_unwind(AssertUnwindSafe(|| play(&plan)));
                    lock().note(plan, result);
                }
            });
        }
    });
    suite.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn check_kinds(points: &[String]) {
    let found: BTreeSet<&str> = points.iter().map(|point| kind_of(point)).collect();
    let missing: Vec<_> = KINDS.iter().filter(|kind| !found.contains(*kind)).collect();
    assert!(missing.is_empty(), "no such points were reached: {missing:?}; but {found:?}");
    assert!(points.len() >= FEWEST_POINTS, "only {} points", points.len());
}

/// A point without its subject and number.
fn kind_of(point: &str) -> &str {
    point.split(" (").next().unwrap_or(point)
}

/// A point without its number.
fn name_of(point: &str) -> &str {
    point.split(" #").next().unwrap_or(point)
}

fn story(suite: &Suite, never: &[&String]) -> String {
    let failures = suite.failures.join("\n");
    format!(
        "{} of {} plays failed:\n{failures}\nnever died at: {never:?}",
        suite.failures.len(),
        suite.plays
    )
}

// === impl Suite ===

impl Suite {
    /// Takes points up that were not known, to die at each.
    fn find(&mut self, points: &[String]) {
        for point in points {
            if self.found.insert(point.clone()) {
                self.queue.push_back(Plan { deaths: vec![point.clone()], tries: 0 });
            }
        }
    }

    fn note(&mut self, mut plan: Plan, result: Result<Played, Box<dyn std::any::Any + Send>>) {
        self.plays += 1;
        let played = match result {
            Ok(played) => played,
            Err(panic) => {
                let reason = panic.downcast_ref::<String>().cloned();
                let reason = reason.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).into()));
                self.failures.push(format!("{:?}: {}", plan.deaths, reason.unwrap_or_default()));
                return;
            }
        };
        self.died_at.extend(played.deaths.iter().cloned());
        let is_single = plan.deaths.len() == 1;
        if is_single {
            self.find(&played.lives[0]);
        }
        if let (true, [death, ..], [_, second, ..]) =
            (is_single, &played.deaths[..], &played.lives[..])
        {
            for point in second.iter().take(RECOVERY) {
                let name = name_of(point).to_owned();
                // As the number of the death that it follows; the point itself is the second death.
                self.recoveries.entry(name).or_default().push(format!("{death}\n{point}"));
            }
        }
        if played.deaths.len() < plan.deaths.len() && plan.tries + 1 < TRIES {
            plan.tries += 1;
            self.queue.push_back(plan);
        }
    }

    /// For every name of a point that some recovery reached: two plays that die there again.
    fn second_deaths(&self) -> Self {
        let pairs = self.recoveries.values().enumerate().flat_map(|(index, pairs)| {
            // Not always the same first death.
            let chosen = BTreeSet::from([index * 7 % pairs.len(), index * 13 % pairs.len()]);
            chosen.into_iter().map(|chosen| &pairs[chosen])
        });
        let queue = pairs
            .map(|pair| Plan { deaths: pair.split('\n').map(str::to_owned).collect(), tries: 0 });
        Self { queue: queue.collect(), ..Self::default() }
    }
}
