//! Time as the caller brings it.

/// Seconds since the Unix epoch, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seconds(pub u64);

/// A moment as a wall clock of a time zone shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Civil {
    /// Days since the first of January 1970, of the zone's own calendar.
    pub day: i64,
    /// Minutes since the midnight that the clock shows.
    pub minute: u16,
}

/// What is known of time zones. The caller brings it, because the rules of zones change with the
/// machine's database.
pub trait Zones {
    /// What a clock of the zone shows at a moment; `None` when the zone is unknown.
    fn civil(&self, zone: &str, at: Seconds) -> Option<Civil>;

    /// The first moment at which a clock of the zone shows this or, where it skips it, a later time
    /// of day; `None` when the zone is unknown or the day is beyond its calendar.
    fn moment(&self, zone: &str, civil: Civil) -> Option<Seconds>;
}

/// UTC alone, for tests and for fleets that need nothing else.
#[derive(Clone, Copy, Debug, Default)]
pub struct UtcOnly;

/// Minutes of a day.
pub(crate) const DAY_MINUTES: u16 = 24 * 60;

const DAY_SECONDS: u64 = 24 * 60 * 60;

/// A moment after a delay, rounded up to a step that suits the delay, so that few different moments are counted.
#[must_use]
pub fn rounded(from: Seconds, delay: u64) -> Seconds {
    let step = match delay {
        0..=300 => 10,
        301..=3_600 => 60,
        3_601..=86_400 => 600,
        _ => 6 * 3600,
    };
    let at = from.0.saturating_add(delay);
    Seconds(at.checked_next_multiple_of(step).unwrap_or(at))
}

// === impl Civil ===

impl Civil {
    /// The day of the week, 0 for Monday.
    #[must_use]
    pub fn weekday(self) -> u8 {
        // The first of January 1970 was a Thursday.
        u8::try_from((self.day + 3).rem_euclid(7)).unwrap_or(0)
    }
}

// === impl Seconds ===

impl Seconds {
    /// This moment and so many seconds.
    #[must_use]
    pub fn plus(self, seconds: u64) -> Self {
        Self(self.0.saturating_add(seconds))
    }

    /// Seconds since another moment; 0 when that is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Zones for UtcOnly {
    fn civil(&self, zone: &str, at: Seconds) -> Option<Civil> {
        (zone == "UTC").then(|| Civil {
            day: i64::try_from(at.0 / DAY_SECONDS).unwrap_or(i64::MAX),
            minute: u16::try_from(at.0 % DAY_SECONDS / 60).unwrap_or(0),
        })
    }

    fn moment(&self, zone: &str, civil: Civil) -> Option<Seconds> {
        let day = u64::try_from(civil.day).ok().filter(|_| zone == "UTC")?;
        Some(Seconds(day.checked_mul(DAY_SECONDS)?.checked_add(u64::from(civil.minute) * 60)?))
    }
}
