//! The certificates of this process, and the log lines about their ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use guest_agent_serve_kit::lock::lock;
use tokio_util::sync::CancellationToken;

use super::{End, Urgency};

/// How often the ends are looked at.
const LOOK: Duration = Duration::from_secs(3600);
/// How often the same is written again.
const AGAIN: Duration = Duration::from_secs(24 * 3600);

/// Where the end of a certificate is to be learned; `None` where there is no certificate now.
type Source = Box<dyn Fn() -> Option<End> + Send + Sync>;

/// The certificates of this process; clones are the same.
#[derive(Clone, Default)]
pub struct Ends {
    sources: Arc<Mutex<Vec<Source>>>,
}

/// What was written last of a certificate.
#[derive(Clone, Copy)]
struct Written {
    urgency: Urgency,
    at: SystemTime,
}

// === impl Ends ===

impl Ends {
    /// Adds a certificate.
    pub fn add(&self, source: impl Fn() -> Option<End> + Send + Sync + 'static) {
        lock(&self.sources).push(Box::new(source));
    }

    /// When they end, as it is now: what a metric publishes, by [`End::of`] and [`End::seconds`].
    #[must_use]
    pub fn all(&self) -> Vec<End> {
        lock(&self.sources).iter().filter_map(|source| source()).collect()
    }

    /// Writes to the log what has to be replaced, once a day, until `shutdown`.
    pub async fn watch(self, shutdown: CancellationToken) {
        let mut written: HashMap<&'static str, Written> = HashMap::new();
        loop {
            let now = SystemTime::now();
            for end in self.all() {
                let urgency = end.urgency(now);
                if is_news(written.get(end.of).copied(), urgency, now) {
                    say(&end, urgency, now);
                    written.insert(end.of, Written { urgency, at: now });
                }
            }
            if shutdown.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_none() {
                return;
            }
        }
    }
}

fn is_news(written: Option<Written>, urgency: Urgency, now: SystemTime) -> bool {
    match written {
        None => urgency != Urgency::None,
        Some(written) if written.urgency != urgency => true,
        Some(written) => {
            let age = now.duration_since(written.at).unwrap_or_default();
            urgency != Urgency::None && age >= AGAIN
        }
    }
}

fn say(end: &End, urgency: Urgency, now: SystemTime) {
    let (of, days) = (end.of, end.days_left(now));
    match urgency {
        Urgency::None => tracing::info!(of, days, "a certificate was replaced in time"),
        Urgency::Warning => tracing::warn!(of, days, "a certificate ends soon: {}", fix(of)),
        Urgency::Error => tracing::error!(of, days, "a certificate ends within days: {}", fix(of)),
        Urgency::Ended => tracing::error!(of, "a certificate has ended: {}", fix(of)),
    }
}

/// The deed that renews a certificate.
pub(crate) fn fix(of: &str) -> &'static str {
    match of {
        "authority" => {
            "run `guest-fleet ca rotate`, and `guest-fleet ca forget` when all agents have renewed"
        }
        _ => "put a renewed one into its file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_urgent_is_written_once_a_day_and_when_it_changes() {
        let now = SystemTime::now();
        let written = |urgency, ago| Some(Written { urgency, at: now - ago });
        let (hour, day) = (Duration::from_secs(3600), AGAIN);
        for (former, urgency, expected) in [
            (None, Urgency::None, false),
            (None, Urgency::Warning, true),
            (written(Urgency::Warning, hour), Urgency::Warning, false),
            (written(Urgency::Warning, day), Urgency::Warning, true),
            (written(Urgency::Warning, hour), Urgency::Error, true),
            (written(Urgency::Error, hour), Urgency::None, true),
            (written(Urgency::None, day), Urgency::None, false),
        ] {
            assert_eq!(is_news(former, urgency, now), expected, "{urgency:?}");
        }
    }

    #[test]
    fn a_source_is_asked_each_time_and_may_have_nothing() {
        let ends = Ends::default();
        ends.add(|| None);
        ends.clone().add(|| {
            let now = SystemTime::now();
            let renewal = super::super::Renewal::Theirs;
            Some(End { of: "gateway", begins: now, ends: now, renewal, trouble: None })
        });
        assert_eq!(ends.all().iter().map(|end| end.of).collect::<Vec<_>>(), ["gateway"]);
    }
}
