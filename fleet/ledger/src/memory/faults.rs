//! The faults of a [`MemoryLedger`](crate::MemoryLedger), and the numbers that decide when they
//! happen.

use std::collections::VecDeque;
use std::time::Duration;

/// How often which fault happens. By default nothing goes wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Share of reads, from 0 to 1, that answer what held up to eight writes ago.
    pub stale: f64,
    /// Share of writes and appends that are answered with [`Ambiguous`], each with a [`Fate`].
    ///
    /// [`Ambiguous`]: crate::WriteError::Ambiguous
    pub ambiguous: f64,
    /// Share of all calls that are refused, or unavailable where they read.
    pub unavailable: f64,
    /// Longest time that passes before a call is carried out, and again before it answers. A write
    /// whose caller gives up in the first of the two may be carried out later.
    pub latency: Duration,
}

/// The outcome of a write or an append, and the answer that its caller gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is carried out and answered.
    Answered,
    /// It did not happen. The answer is a conflict with another writer.
    Conflict,
    /// It happened. The answer is ambiguous.
    Happened,
    /// It did not happen. The answer is ambiguous.
    Lost,
    /// It happens later, against what is there then: at the latest before the third write after it.
    /// The answer is ambiguous.
    Late,
}

/// Decides what goes wrong: the script first, then chance.
#[derive(Debug)]
pub(super) struct Chance {
    pub(super) faults: Faults,
    pub(super) script: VecDeque<Fate>,
    state: u64,
}

// === impl Chance ===

impl Chance {
    pub(super) fn new(seed: u64, faults: Faults) -> Self {
        Self { faults, script: VecDeque::new(), state: seed }
    }

    /// A number below a bound.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        // splitmix64: short, and the same on every machine.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }

    fn happens(&mut self, share: f64) -> bool {
        const PARTS: u32 = 1 << 20;
        share > 0.0 && (f64::from(self.part(PARTS)) + 0.5) < share * f64::from(PARTS)
    }

    fn part(&mut self, parts: u32) -> u32 {
        u32::try_from(self.below(u64::from(parts))).unwrap_or(0)
    }

    pub(super) fn is_unavailable(&mut self) -> bool {
        self.happens(self.faults.unavailable)
    }

    /// How many writes a read is behind.
    pub(super) fn lag(&mut self, most: u64) -> u64 {
        if self.happens(self.faults.stale) { 1 + self.below(most) } else { 0 }
    }

    /// The outcome of the next write.
    pub(super) fn fate(&mut self) -> Fate {
        if let Some(fate) = self.script.pop_front() {
            return fate;
        }
        if !self.happens(self.faults.ambiguous) {
            return Fate::Answered;
        }
        match self.below(3) {
            0 => Fate::Happened,
            1 => Fate::Lost,
            _ => Fate::Late,
        }
    }

    pub(super) fn latency(&mut self) -> Duration {
        let most = u64::try_from(self.faults.latency.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(if most == 0 { 0 } else { self.below(most.saturating_add(1)) })
    }
}
