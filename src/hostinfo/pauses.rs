//! The port `Pauses`: when this machine, or the agent with its plugins, stood still.
//!
//! ```text
//!  every second, and when a timer is over ─► look: two clocks of the kernel, and the stolen time
//!     BOOTTIME went on and MONOTONIC did not ─► suspended   (timers stood still as well)
//!     MONOTONIC went on and nobody looked    ─► stopped, or stolen where the kernel counts it so
//! ```
//!
//! A timer that comes due in a pause fires when it ends, often before the look that was due in that second: so
//! every question looks as well. A thread that works for seconds without a
//! break looks like a pause too; what is decided by it is only to wait a little longer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use guest_agent_actors::model::pause::{Pause, PauseKind};
use guest_agent_actors::ports::Pauses;
use rustix::time::{ClockId, Timespec, clock_gettime};
use tokio::sync::watch;
use tracing::warn;

/// How often the clocks are looked at.
const BEAT: Duration = Duration::from_secs(1);

/// The clocks of a machine that was not suspended differ by less than this from one look to the next.
const SUSPENDED_MIN: Duration = Duration::from_secs(1);

/// Every how many looks the stolen time is read: the kernel counts for long to say it.
const STOLEN_LOOKS: u32 = 30;

/// A look that comes later than this after its time was held up by more than a busy machine.
const STOPPED_MIN: Duration = Duration::from_secs(5);

/// What the kernel says at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reading {
    /// Time that the machine was up and not suspended.
    monotonic: Duration,
    /// Time that it was up.
    boottime: Duration,
}

/// Finds pauses in readings. Pure.
#[derive(Debug)]
struct Detector {
    last: Reading,
    lost: Duration,
    /// The stolen time as it was read last, and how many looks ago.
    stolen: (Duration, u32),
}

/// This machine's pauses.
#[derive(Debug)]
pub struct MachinePauses {
    detector: Mutex<Detector>,
    newest: watch::Sender<Option<Pause>>,
    read: fn() -> Reading,
    /// Time that the host gave to other machines, of each processor on average.
    stolen: fn() -> Duration,
}

// === impl Detector ===

impl Detector {
    const fn since(last: Reading, stolen: Duration) -> Self {
        Self { last, lost: Duration::ZERO, stolen: (stolen, 0) }
    }

    /// The pause that a reading shows, if it shows one.
    fn look(
        &mut self,
        now: Reading,
        stolen: impl FnOnce() -> Duration,
    ) -> Option<(PauseKind, Duration)> {
        let last = std::mem::replace(&mut self.last, now);
        let ran = now.monotonic.saturating_sub(last.monotonic);
        let suspended = now.boottime.saturating_sub(last.boottime).saturating_sub(ran);
        let late = Some(ran.saturating_sub(BEAT)).filter(|late| *late >= STOPPED_MIN);
        let late = late.unwrap_or_default();
        self.lost = self.lost.saturating_add(late);
        if suspended >= SUSPENDED_MIN {
            return Some((PauseKind::Suspended, suspended.saturating_add(late)));
        }
        let (before, looks) = self.stolen;
        if late.is_zero() {
            let looks = looks.saturating_add(1);
            self.stolen = if looks < STOLEN_LOOKS { (before, looks) } else { (stolen(), 0) };
            return None;
        }
        let newest = stolen();
        self.stolen = (newest, 0);
        let is_stolen = newest.saturating_sub(before) >= late / 2;
        Some((if is_stolen { PauseKind::Stolen } else { PauseKind::Stopped }, late))
    }
}

// === impl MachinePauses ===

impl MachinePauses {
    /// Looks at the clocks from now on, every second, until the last one that has it lets it go.
    #[must_use]
    pub fn watched() -> Arc<Self> {
        let pauses = Arc::new(Self::reading(read, stolen));
        let watched = Arc::downgrade(&pauses);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(BEAT).await;
                let Some(pauses) = watched.upgrade() else { return };
                pauses.look();
            }
        });
        pauses
    }

    fn reading(read: fn() -> Reading, stolen: fn() -> Duration) -> Self {
        let detector = Mutex::new(Detector::since(read(), stolen()));
        Self { detector, newest: watch::Sender::new(None), read, stolen }
    }

    fn look(&self) -> Duration {
        // A reading and what it changes belong together, so that no two look at once.
        let mut detector = self.detector.lock().unwrap_or_else(PoisonError::into_inner);
        let found = detector.look((self.read)(), self.stolen);
        let lost = detector.lost;
        drop(detector);
        if let Some((kind, lasted)) = found {
            let seconds = lasted.as_secs();
            warn!(
                kind = kind.name(),
                seconds, "the machine stood still; what timers counted meanwhile does not count"
            );
            let ended = SystemTime::now();
            self.newest.send_replace(Some(Pause { kind, lasted, ended }));
        }
        lost
    }
}

impl Pauses for MachinePauses {
    fn lost(&self) -> Duration {
        self.look()
    }

    fn watch(&self) -> watch::Receiver<Option<Pause>> {
        self.newest.subscribe()
    }
}

fn read() -> Reading {
    let clock = |of| {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(of);
        let (seconds, nanos) = (u64::try_from(tv_sec), u32::try_from(tv_nsec));
        Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
    };
    // The monotonic clock first: a suspend between the two is part of this look or of the next.
    let monotonic = clock(ClockId::Monotonic);
    let boottime = clock(ClockId::Boottime);
    Reading { monotonic, boottime }
}

/// The stolen time; none where the kernel does not say it.
fn stolen() -> Duration {
    let stat = std::fs::read_to_string("/proc/stat").ok();
    stat.and_then(|stat| stolen_in(&stat)).unwrap_or_default()
}

/// The stolen time in `/proc/stat`, of each processor on average. The kernel counts it in hundredths of a
/// second there, whatever its own clock is.
fn stolen_in(stat: &str) -> Option<Duration> {
    let is_processor = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let processors = u64::try_from(stat.lines().filter(is_processor).count()).ok()?;
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let hundredths: u64 = all.split_ascii_whitespace().nth(7)?.parse().ok()?;
    Some(Duration::from_millis(hundredths.saturating_mul(10) / processors.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(monotonic: u64, boottime: u64) -> Reading {
        let of = Duration::from_secs;
        Reading { monotonic: of(monotonic), boottime: of(boottime) }
    }

    fn fresh() -> Detector {
        Detector::since(Reading::default(), Duration::ZERO)
    }

    #[test]
    fn a_pause_is_told_by_the_clock_that_stood_still() {
        let of = Duration::from_secs;
        let (suspended, stopped) = (PauseKind::Suspended, PauseKind::Stopped);
        let rows = [
            ("a beat", seconds(1, 1), 0, None, 0),
            ("a late beat", seconds(5, 5), 0, None, 0),
            ("a suspend", seconds(1, 61), 0, Some((suspended, 60)), 0),
            ("a suspend within a second", seconds(0, 9), 0, Some((suspended, 9)), 0),
            ("stopped processes", seconds(31, 31), 0, Some((stopped, 30)), 30),
            ("a stopped machine", seconds(31, 31), 5, Some((stopped, 30)), 30),
            ("a host that is too busy", seconds(31, 31), 20, Some((PauseKind::Stolen, 30)), 30),
            ("stolen time that held nothing up", seconds(1, 1), 1, None, 0),
            ("both", seconds(11, 71), 0, Some((suspended, 70)), 10),
        ];
        for (what, reading, stolen, found, lost) in rows {
            let mut detector = fresh();
            let found = found.map(|(kind, lasted)| (kind, of(lasted)));
            assert_eq!(detector.look(reading, || of(stolen)), found, "{what}");
            assert_eq!(detector.lost, of(lost), "{what}");
            assert_eq!(detector.look(reading, || of(stolen)), None, "{what}, which is found once");
        }
    }

    #[test]
    fn what_was_lost_adds_up() {
        let mut detector = fresh();
        for at in [11, 12, 33] {
            detector.look(seconds(at, at), || Duration::ZERO);
        }
        assert_eq!(detector.lost, Duration::from_secs(30));
    }

    #[test]
    fn time_that_was_stolen_long_before_a_pause_did_not_cause_it() {
        let mut detector = fresh();
        let stolen = || Duration::from_secs(100);
        for at in 1..=u64::from(STOLEN_LOOKS) {
            assert_eq!(detector.look(seconds(at, at), stolen), None);
        }
        let found = detector.look(seconds(100, 100), stolen);
        assert_eq!(found.map(|(kind, _)| kind), Some(PauseKind::Stopped));
    }

    #[test]
    fn the_stolen_time_is_that_of_each_processor() {
        let stat = "cpu  1 2 3 4 5 6 7 800 9 10\ncpu0 1 2 3 4 5 6 7 300 9 10\n\
                    cpu1 1 2 3 4 5 6 7 500 9 10\nintr 1\n";
        assert_eq!(stolen_in(stat), Some(Duration::from_secs(4)));
        assert_eq!(stolen_in("cpu 1 2 3\n"), None);
        assert_eq!(stolen_in(""), None);
    }

    #[test]
    fn the_kernel_has_these_clocks() {
        let (before, after) = (read(), read());
        assert!(before.monotonic > Duration::ZERO && before.boottime >= before.monotonic);
        assert!(after.monotonic >= before.monotonic);
        let pauses = MachinePauses::reading(read, stolen);
        assert_eq!((pauses.lost(), *pauses.watch().borrow()), (Duration::ZERO, None));
    }

    #[test]
    fn a_question_finds_a_pause_that_has_only_just_ended() {
        let mut pauses = MachinePauses::reading(Reading::default, || Duration::ZERO);
        pauses.read = || seconds(21, 21);
        let watch = pauses.watch();
        assert_eq!(pauses.lost(), Duration::from_secs(20));
        let newest = watch.borrow().expect("a pause");
        assert_eq!((newest.kind, newest.lasted), (PauseKind::Stopped, Duration::from_secs(20)));
        assert_eq!(pauses.lost(), Duration::from_secs(20));
    }
}
