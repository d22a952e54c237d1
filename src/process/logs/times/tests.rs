use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1000;

/// A log without a log: only its length and the time pass.
struct Bed {
    _dir: tempfile::TempDir,
    paths: Paths,
    name: PluginName,
    clocks: Clocks,
    length: u64,
    now: u64,
}

impl Bed {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths {
            log: dir.path().join("p.log"),
            mark: dir.path().join("p.log.mark"),
            times: dir.path().join("p.log.times"),
        };
        std::fs::write(&paths.log, "").unwrap();
        let bed = Self {
            _dir: dir,
            paths,
            name: "p".parse().unwrap(),
            clocks: Clocks::default(),
            length: 0,
            now: 1_000_000 * SECOND,
        };
        bed.look();
        bed
    }

    fn look(&self) {
        self.look_after_cut(None);
    }

    fn look_after_cut(&self, cut: Option<u64>) {
        let look = Look { length: self.length, written: self.now, cut };
        self.clocks.note(&self.name, || self.paths.clone(), look, self.now).unwrap();
    }

    /// The plugin writes so many bytes, and is looked at.
    fn write(&mut self, bytes: u64) {
        self.length += bytes;
        self.look();
    }

    fn times(&self) -> Times {
        Times::read(&self.paths.times)
    }

    /// Seconds since the beginning at which a byte was written at the earliest.
    #[track_caller]
    fn at(&self, position: u64) -> Option<u64> {
        let of = self.times().of(position, position + 1);
        assert_eq!(of.len(), 1);
        of[0].1.map(|at| (millis(at) - 1_000_000 * SECOND) / SECOND)
    }

    fn since(&self, seconds: u64) -> u64 {
        let at = UNIX_EPOCH + Duration::from_millis((1_000_000 + seconds) * SECOND);
        self.times().since(at)
    }
}

#[test]
fn lines_have_the_second_in_which_they_were_written() {
    let mut bed = Bed::new();
    for second in 0..5 {
        for _ in 0..3 {
            bed.write(10);
            bed.now += 300;
        }
        bed.now = (1_000_000 + (second + 1) * 10) * SECOND;
    }
    assert_eq!([0, 29, 30, 59, 60, 149].map(|at| bed.at(at)), [0, 0, 10, 10, 20, 40].map(Some));
    assert_eq!(bed.times().0.len(), 5, "one span for each second with output");
    assert_eq!([0, 1, 5, 32, 40].map(|at| bed.since(at)), [0, 0, 30, 120, 120]);
    assert_eq!(bed.since(42), u64::MAX, "nothing is that new");
}

#[test]
fn a_part_has_the_times_of_all_its_lines() {
    let mut bed = Bed::new();
    bed.write(10);
    bed.now += 5 * SECOND;
    bed.write(10);
    let seconds = |parts: Vec<(u64, Option<SystemTime>)>| -> Vec<(u64, u64)> {
        parts.into_iter().map(|(at, time)| (at, millis(time.unwrap()) / SECOND)).collect()
    };
    assert_eq!(seconds(bed.times().of(3, 15)), [(3, 1_000_000), (10, 1_000_005)]);
    assert_eq!(bed.times().of(5, 5), []);
}

#[test]
fn what_was_written_before_times_were_kept_has_none_but_is_found() {
    let mut bed = Bed::new();
    bed.clocks = Clocks::default();
    bed.length = 500;
    bed.look();
    assert_eq!(bed.at(7), None);
    bed.now += 60 * SECOND;
    bed.write(10);
    assert_eq!((bed.at(499), bed.at(500)), (None, Some(60)));
    assert_eq!((bed.since(0), bed.since(30)), (0, 500));
}

/// Nothing that was written while nobody looked is hidden from one who asks for it.
#[test]
fn another_process_goes_on_and_loses_no_line() {
    let mut bed = Bed::new();
    bed.write(10);
    bed.now += 100 * SECOND;
    bed.length += 10;
    bed.clocks = Clocks::default();
    bed.look();
    assert_eq!(bed.since(90), 0, "the lines since then are somewhere in this span");
    bed.now += 10 * SECOND;
    bed.write(10);
    assert_eq!((bed.at(20), bed.since(105)), (Some(110), 20));
    assert_eq!(bed.times().0.len(), 2);
}

#[test]
fn cuts_move_nothing() {
    let mut bed = Bed::new();
    bed.write(1000);
    bed.now += 10 * SECOND;
    bed.write(500);
    bed.length = 600;
    bed.look_after_cut(Some(900));
    bed.now += 10 * SECOND;
    bed.write(1);
    assert_eq!((bed.at(1000), bed.at(1500)), (Some(10), Some(20)));
    assert_eq!(bed.times().0.len(), 3);
}

#[test]
fn a_log_that_somebody_emptied_begins_anew() {
    let mut bed = Bed::new();
    bed.write(1000);
    bed.now += 10 * SECOND;
    bed.write(1000);
    bed.length = 5;
    bed.now += 10 * SECOND;
    bed.look();
    assert_eq!((bed.at(0), bed.times().0.len()), (Some(20), 1));
}

#[test]
fn a_clock_that_is_set_back_hides_nothing() {
    let mut bed = Bed::new();
    bed.write(10);
    bed.now -= 500 * SECOND;
    bed.write(10);
    bed.now += 501 * SECOND;
    bed.write(10);
    assert_eq!(bed.times().0.len(), 3);
    assert_eq!(bed.since(0), 0);
}

#[test]
fn the_file_is_bounded_and_old_times_become_coarser() {
    let mut bed = Bed::new();
    let seconds = 5 * SPANS_MAX as u64;
    for _ in 0..seconds {
        bed.write(1);
        bed.now += 2 * SECOND;
        assert!(bed.paths.times.metadata().unwrap().len() <= (SPANS_MAX * RECORD) as u64);
    }
    let times = bed.times();
    assert!(times.0.len() > SPANS_MAX / 4, "{} spans", times.0.len());
    assert_eq!(bed.at(seconds - 1), Some(2 * (seconds - 1)), "the newest are exact");
    for position in (0..seconds).step_by(997) {
        let (written, from) = (2 * position, bed.at(position).unwrap());
        assert!(from <= written, "{position}: {from}, {written}");
        assert!(bed.since(written) <= position, "byte {position} is not hidden");
    }
    // What was cut is forgotten first.
    let cut = times.thinned(seconds - 10);
    assert_eq!(cut.0.len(), 10);
}

#[test]
fn a_log_that_is_gone_leaves_no_times() {
    let mut bed = Bed::new();
    std::fs::remove_file(&bed.paths.log).unwrap();
    bed.write(10);
    assert!(!bed.paths.times.exists());
}

proptest! {
    #[test]
    fn law_damage_is_no_panic_and_positions_grow(bytes: Vec<u8>, start: u64, end: u64, at: u32) {
        let times = Times::parse(&bytes);
        prop_assert!(times.0.is_sorted_by(|a, b| a.position < b.position));
        let parts = times.of(start, end);
        prop_assert_eq!(parts.is_empty(), start >= end);
        let _whatever_it_says = times.since(UNIX_EPOCH + Duration::from_secs(at.into()));
        prop_assert_eq!(Times::parse(&times.bytes()), times);
    }
}
