//! Whether a verb waits for its order, and how long: flags that several verbs have.

use std::time::Duration;

use clap::ValueEnum;

use crate::config::parse_duration;

/// How long most orders are waited for where the agent does not say how long they take.
const USUAL: Duration = Duration::from_secs(60);

/// How long the way to the agent and back may take. An order that takes no time is waited for so
/// long all the same.
const ROUND_TRIP: Duration = Duration::from_secs(10);

/// The flags of a verb that waits on request.
#[derive(Debug, clap::Args)]
pub(super) struct OnRequest {
    /// Wait until it is done
    #[arg(long)]
    wait: bool,
    /// How long to wait [default: as long as the order may take]
    #[arg(long, requires = "wait", value_parser = parse_duration)]
    timeout: Option<Duration>,
}

/// The flags of a verb that waits, unless it is not to.
#[derive(Debug, clap::Args)]
pub(super) struct ByDefault {
    /// Do not wait until it is done
    #[arg(long)]
    no_wait: bool,
    // The verb waits anyway; scripts that were written before it did may say so.
    #[arg(long, hide = true, conflicts_with = "no_wait")]
    wait: bool,
    /// How long to wait [default: as long as the order may take]
    #[arg(long, conflicts_with = "no_wait", value_parser = parse_duration)]
    timeout: Option<Duration>,
}

/// How long an order is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timeout {
    /// The time that a person gave.
    given: Option<Duration>,
    /// The time where neither a person nor the agent says one.
    usual: Duration,
}

/// How long a command waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Patience {
    /// For what it waits for.
    pub(super) whole: Duration,
    /// For an agent that is away.
    pub(super) away: Duration,
}

/// Until when an installation is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Until {
    /// The revision runs.
    Running,
    /// The revision has passed its trial; without a trial it is enough that it runs.
    #[default]
    Proven,
}

// === impl OnRequest ===

impl OnRequest {
    /// How long to wait, if at all.
    pub(super) fn timeout(&self) -> Option<Timeout> {
        self.wait.then_some(Timeout::new(self.timeout))
    }
}

// === impl ByDefault ===

impl ByDefault {
    /// How long to wait, if at all.
    pub(super) fn timeout(&self) -> Option<Timeout> {
        (!self.no_wait).then_some(Timeout::new(self.timeout))
    }
}

// === impl Timeout ===

impl Timeout {
    pub(super) const fn new(given: Option<Duration>) -> Self {
        Self { given, usual: USUAL }
    }

    /// The same with another time where neither a person nor the agent says one.
    pub(super) const fn usually(self, usual: Duration) -> Self {
        Self { usual, ..self }
    }

    /// The patience for orders that take at most so long, each by the answer of the agent. An agent of an
    /// older version does not say it. It is no less than [`ROUND_TRIP`], unless a person gives a time,
    /// who also means an agent that is away.
    pub(super) fn of(
        self,
        at_most: impl IntoIterator<Item = Option<prost_types::Duration>>,
    ) -> Patience {
        if let Some(given) = self.given {
            return Patience::new(given);
        }
        let of_one = |at_most: Option<prost_types::Duration>| {
            let at_most = at_most.and_then(|at_most| Duration::try_from(at_most).ok());
            at_most.unwrap_or(self.usual)
        };
        let whole = at_most.into_iter().map(of_one).max().unwrap_or(self.usual).max(ROUND_TRIP);
        Patience { whole, away: self.usual.min(whole) }
    }
}

// === impl Patience ===

impl Patience {
    /// So long for both.
    pub(super) const fn new(whole: Duration) -> Self {
        Self { whole, away: whole }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: i64) -> Option<prost_types::Duration> {
        Some(prost_types::Duration { seconds, nanos: 0 })
    }

    #[test]
    fn an_order_is_waited_for_as_long_as_it_may_take_unless_a_person_says_how_long() {
        let timeout = Timeout::new(None);
        let whole =
            |at_most: &[Option<prost_types::Duration>]| timeout.of(at_most.iter().copied()).whole;
        assert_eq!(whole(&[seconds(90)]), Duration::from_secs(90));
        assert_eq!(whole(&[seconds(20), seconds(90)]), Duration::from_secs(90));
        assert_eq!(whole(&[None, seconds(20)]), USUAL, "an agent of an older version");
        assert_eq!(whole(&[]), USUAL);
        assert_eq!(whole(&[seconds(-1)]), USUAL);
        assert_eq!(timeout.of([seconds(0)]), Patience::new(ROUND_TRIP), "a release");
        let long = Duration::from_secs(300);
        assert_eq!(timeout.usually(long).of([None]), Patience::new(long));
        // An agent that went away may never come back.
        let patience = timeout.of([seconds(3600)]);
        assert_eq!((patience.whole, patience.away), (Duration::from_secs(3600), USUAL));
        let given = Timeout::new(Some(Duration::from_secs(5)));
        assert_eq!(given.of([seconds(90)]), Patience::new(Duration::from_secs(5)));
    }
}
