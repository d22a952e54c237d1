//! When an agent is archived: it was silent for so long that no count of the fleet includes it.
//!
//! Machines go without saying so. A wave that waits for them would never be done, and a share of a
//! fleet that is half gone says nothing; so they leave every denominator, and return with their
//! first connection.

use crate::time::Seconds;

/// How long an agent is silent before it is archived.
pub const SILENCE: u64 = 30 * 24 * 3600;

/// How long an agent of a short life is.
pub const EPHEMERAL_SILENCE: u64 = 3600;

/// How long an agent is expected to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Until somebody takes it away.
    Lasting,
    /// For hours: a machine of a group that grows and shrinks by itself.
    Short,
}

/// What is known of when an agent was there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// When it was enrolled or connected first.
    pub since: Option<Seconds>,
    /// When it was seen last.
    pub seen: Option<Seconds>,
    /// When an operator took it out of the archive last.
    pub unarchived: Option<Seconds>,
}

/// Whether an agent is archived now. Never, where nothing is known of when it was there, and not by a
/// clock that went back.
#[must_use]
pub fn is_due(life: Life, heard: Heard, now: Seconds) -> bool {
    let silence = match life {
        Life::Lasting => SILENCE,
        Life::Short => EPHEMERAL_SILENCE,
    };
    let last = [heard.since, heard.seen, heard.unarchived].into_iter().flatten().max();
    last.is_some_and(|last| now.0.saturating_sub(last.0) >= silence)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 3600;
    const NOW: Seconds = Seconds(1000 * DAY);

    fn ago(seconds: u64) -> Option<Seconds> {
        Some(Seconds(NOW.0 - seconds))
    }

    #[track_caller]
    fn check(life: Life, heard: Heard, expected: bool) {
        assert_eq!(is_due(life, heard, NOW), expected, "{heard:?}");
    }

    #[test]
    fn an_agent_is_archived_after_thirty_days_of_silence_and_a_short_lived_one_after_an_hour() {
        for (life, silence) in [(Life::Lasting, 30 * DAY), (Life::Short, 3600)] {
            let seen = |seconds| Heard { seen: ago(seconds), ..Heard::default() };
            check(life, seen(silence - 1), false);
            check(life, seen(silence), true);
        }
    }

    #[test]
    fn the_latest_of_what_is_known_counts() {
        let old = Heard { since: ago(90 * DAY), seen: ago(60 * DAY), unarchived: None };
        check(Life::Lasting, old, true);
        check(Life::Lasting, Heard { unarchived: ago(DAY), ..old }, false);
        // One that was enrolled and never connected.
        check(Life::Lasting, Heard { since: ago(31 * DAY), ..Heard::default() }, true);
        check(Life::Lasting, Heard { since: ago(DAY), ..Heard::default() }, false);
    }

    #[test]
    fn nothing_known_and_a_clock_that_went_back_archive_nobody() {
        check(Life::Short, Heard::default(), false);
        let ahead = Heard { seen: Some(Seconds(NOW.0 + 60 * DAY)), ..Heard::default() };
        check(Life::Short, ahead, false);
    }
}
