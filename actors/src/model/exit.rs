//! How a process ended.

use std::fmt;

use crate::text::mebibytes;

/// How a process ended, as far as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExitCause {
    /// It exited by itself with this code.
    Exited(i32),
    /// A signal ended it.
    Signaled(i32),
    /// The kernel killed it because memory ran out.
    OutOfMemory {
        /// The most memory that its control group had, in bytes; `None` where the kernel does not keep that.
        peak: Option<u64>,
    },
    /// The agent ended it because it stayed over its memory limit, which nothing else enforces
    /// here.
    OverMemoryLimit {
        /// The most resident memory that the agent measured, in bytes; `None` in records of older agents.
        peak: Option<u64>,
    },
    /// It has ended, and the kernel does not report how: it was not our child, or the machine
    /// restarted.
    Unknown,
}

/// Where the figures of one machine begin in the reason of an end.
const IT_USED: &str = ": it used ";

/// The same behind a reason that has a colon already.
const AND_USED: &str = "; it used ";

/// Where the remedy begins in the reason of an end.
const REMEDY: &str = "; `guest-agent limit ";

/// The reason of an end without what it used and what would help: it reads alike on all machines.
#[must_use]
pub(crate) fn without_figures(reason: &str) -> &str {
    let cut = |reason, at| str::split_once(reason, at).map_or(reason, |(before, _)| before);
    without_remedy([IT_USED, AND_USED].into_iter().fold(reason, cut))
}

/// The reason of an end without what would help: an order may have done that since.
#[must_use]
pub(crate) fn without_remedy(reason: &str) -> &str {
    reason.split_once(REMEDY).map_or(reason, |(before, _)| before)
}

// === impl ExitCause ===

impl ExitCause {
    /// How the process of a plugin with this memory limit, in bytes, ended. Another limit may be in
    /// force by the time that somebody reads it.
    #[must_use]
    pub fn under(self, limit: Option<u64>) -> String {
        match (self, limit) {
            (Self::OutOfMemory { peak: Some(peak) }, Some(limit)) if is_below(peak, limit) => {
                format!(
                    "out of memory below its limit of {}{IT_USED}{} at its peak, and the machine or all \
                     plugins together had no more",
                    mebibytes(limit),
                    mebibytes(peak)
                )
            }
            (Self::OutOfMemory { peak }, Some(limit)) => {
                format!("out of memory at its limit of {}{}", mebibytes(limit), used(IT_USED, peak))
            }
            (Self::OutOfMemory { peak }, None) => {
                format!(
                    "out of memory without a limit of its own: the machine or all plugins together had \
                     no more{}",
                    used(AND_USED, peak)
                )
            }
            (Self::OverMemoryLimit { peak }, Some(limit)) => {
                format!(
                    "ended over its memory limit of {}{}",
                    mebibytes(limit),
                    used(IT_USED, peak)
                )
            }
            (cause, _) => cause.to_string(),
        }
    }

    /// The same with what would help: the command that gives the plugin a higher limit, where it needs one.
    #[must_use]
    pub fn advised(self, plugin: &str, limit: Option<u64>) -> String {
        with_remedy(&self.under(limit), plugin, self.proposed_limit(limit))
    }

    /// Whether memory ended it.
    #[must_use]
    pub const fn is_for_memory(self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::OverMemoryLimit { .. })
    }

    /// The most memory that the process is known to have had, in bytes, where memory ended it.
    #[must_use]
    pub const fn memory_peak(self) -> Option<u64> {
        match self {
            Self::OutOfMemory { peak } | Self::OverMemoryLimit { peak } => peak,
            Self::Exited(_) | Self::Signaled(_) | Self::Unknown => None,
        }
    }

    /// The memory limit, in bytes, that is proposed where the one of the plugin ended its process; `None`
    /// where another limit would not have helped.
    ///
    /// A process that is killed at its limit would have used more, and nobody knows how much: its peak is the
    /// limit. So the proposal is half as much again as the larger of the two: few steps lead to a limit that is
    /// enough, and none gives a plugin that leaks the whole machine at once. It is rounded up to a number that
    /// people would write.
    #[must_use]
    pub fn proposed_limit(self, limit: Option<u64>) -> Option<u64> {
        let limit = limit?;
        let peak = match self {
            Self::OutOfMemory { peak: Some(peak) } if is_below(peak, limit) => return None,
            Self::OutOfMemory { peak } | Self::OverMemoryLimit { peak } => peak,
            Self::Exited(_) | Self::Signaled(_) | Self::Unknown => return None,
        };
        let used = limit.max(peak.unwrap_or_default());
        let wanted = used.saturating_add(used / 2).min(LIMIT_MAX);
        // An eighth of the next power of two: 96 MiB of 64 MiB, 160 MiB of 100 MiB.
        let step = (wanted.next_power_of_two() / 8).max(MIB);
        Some(wanted.next_multiple_of(step))
    }
}

/// The reason of an end with the command that gives the plugin the proposed limit, in bytes.
#[must_use]
pub(crate) fn with_remedy(reason: &str, plugin: &str, proposed: Option<u64>) -> String {
    let Some(proposed) = proposed else { return reason.to_owned() };
    let size = match proposed / MIB {
        gibibytes if gibibytes % 1024 == 0 => format!("{}G", gibibytes / 1024),
        mebibytes => format!("{mebibytes}M"),
    };
    format!("{reason}{REMEDY}{plugin} --memory {size}` gives it more")
}

const MIB: u64 = 1 << 20;

/// No limit above this is proposed: 1 EiB, of which half as much again is a number still.
const LIMIT_MAX: u64 = 1 << 60;

/// Whether memory ran out before the plugin came to its limit. The kernel charges some pages at a time, so the
/// peak of a group at its limit can be a little below that.
const fn is_below(peak: u64, limit: u64) -> bool {
    peak < limit - limit / 16
}

fn used(separator: &str, peak: Option<u64>) -> String {
    peak.map_or_else(String::new, |peak| format!("{separator}{} at its peak", mebibytes(peak)))
}

impl fmt::Display for ExitCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exited with code {code}"),
            Self::Signaled(signal) => write!(f, "killed by {}", signal_name(*signal)),
            Self::OutOfMemory { .. } => f.write_str("killed by the kernel because memory ran out"),
            Self::OverMemoryLimit { .. } => {
                f.write_str("ended by the agent because it stayed over its memory limit")
            }
            Self::Unknown => f.write_str("ended, with an unknown cause"),
        }
    }
}

/// Names of the signals that end plugins in practice; others are shown as numbers.
fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn oom(peak: Option<u64>) -> ExitCause {
        ExitCause::OutOfMemory { peak }
    }

    #[test]
    fn a_kill_for_memory_has_its_peak_and_a_command_that_helps() {
        let check = |cause: ExitCause, limit: Option<u64>, expected: &str| {
            assert_eq!(cause.advised("web", limit), expected);
        };
        let limit = Some(64 * MIB);
        check(
            oom(Some(64 * MIB)),
            limit,
            "out of memory at its limit of 64 MiB: it used 64 MiB at its peak; `guest-agent limit web \
             --memory 96M` gives it more",
        );
        check(
            oom(None),
            limit,
            "out of memory at its limit of 64 MiB; `guest-agent limit web --memory 96M` gives it more",
        );
        check(
            ExitCause::OverMemoryLimit { peak: Some(100 * MIB) },
            limit,
            "ended over its memory limit of 64 MiB: it used 100 MiB at its peak; `guest-agent limit web \
             --memory 160M` gives it more",
        );
        check(
            oom(Some(20 * MIB)),
            limit,
            "out of memory below its limit of 64 MiB: it used 20 MiB at its peak, and the machine or all \
             plugins together had no more",
        );
        check(
            oom(Some(20 * MIB)),
            None,
            "out of memory without a limit of its own: the machine or all plugins together had no more; \
             it used 20 MiB at its peak",
        );
        check(ExitCause::Exited(1), limit, "exited with code 1");
    }

    #[test]
    fn a_reason_without_figures_is_the_same_for_each_peak() {
        let machine = "out of memory without a limit of its own: the machine or all plugins together \
                       had no more";
        for (limit, expected) in
            [(Some(64 * MIB), "out of memory at its limit of 64 MiB"), (None, machine)]
        {
            for peak in [None, Some(64 * MIB), Some(65 * MIB)] {
                let reason = oom(peak).advised("web", limit);
                assert_eq!(without_figures(&reason), expected);
            }
        }
        assert_eq!(without_figures("exited with code 1"), "exited with code 1");
    }

    #[test]
    fn a_proposal_is_half_as_much_again_and_a_number_that_people_write() {
        let check = |limit: u64, peak: Option<u64>, mebibytes: u64| {
            assert_eq!(oom(peak).proposed_limit(Some(limit)), Some(mebibytes * MIB));
        };
        check(64 * MIB, None, 96);
        check(64 * MIB, Some(64 * MIB - 4096), 96);
        check(64 * MIB, Some(80 * MIB), 128);
        check(100 * MIB, None, 160);
        check(1 << 30, None, 1536);
        check(4 << 30, None, 6 << 10);
        check(12 * MIB, None, 20);
        check(1, None, 1);
        assert_eq!(
            with_remedy("", "a", Some(6 << 30)),
            "; `guest-agent limit a --memory 6G` gives it more"
        );
    }

    proptest::proptest! {
        #[test]
        fn law_a_proposal_is_above_the_limit_and_not_far(limit in 1u64.., peak: Option<u64>) {
            let Some(proposed) = oom(peak).proposed_limit(Some(limit)) else {
                proptest::prop_assert!(peak.is_some_and(|peak| peak < limit));
                return Ok(());
            };
            let used = limit.max(peak.unwrap_or_default());
            proptest::prop_assert_eq!(proposed % MIB, 0);
            if used < LIMIT_MAX / 2 {
                proptest::prop_assert!(proposed > used && proposed / 2 <= used.max(MIB));
            }
        }
    }
}
