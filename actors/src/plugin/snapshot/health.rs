//! The health of a plugin in its record.

use std::time::SystemTime;

use guest_agent_proto::record as rec;

use crate::model::history::Condition;
use crate::plugin::health_log::{HealthLog, Reported, Told, WORDS_MAX};
use crate::ports::Health;
use crate::text::shortened;

/// `None` where its process was not asked yet, and no event was ever written about the health of the plugin.
pub(super) fn health_record(log: &HealthLog) -> Option<rec::Health> {
    if log.last.is_none() && log.reported == Reported::default() {
        return None;
    }
    let kept = log.kept();
    let since = match log.condition {
        Some(Condition::Well(since) | Condition::Unwell(since)) => Some(since.into()),
        None => None,
    };
    let (code, words, checked_at) = match kept {
        Some((code, words, at)) => (code, words, Some(at.into())),
        None => (0, String::new(), None),
    };
    let Reported { health, unhealthy_at, left_out } = log.reported;
    Some(rec::Health {
        code,
        words,
        checked_at,
        since,
        reported_unhealthy: health == Told::Unhealthy,
        reported_at: unhealthy_at.map(Into::into),
        unreported: left_out,
    })
}

/// A record without a time that makes sense says nothing of the process.
pub(super) fn health_of(record: rec::Health) -> HealthLog {
    let time = |at: Option<prost_types::Timestamp>| SystemTime::try_from(at?).ok();
    let words = shortened(&record.words, WORDS_MAX);
    let results = (!words.is_empty()).then(|| words.to_owned()).into_iter().collect();
    let health = Health { code: record.code, results };
    let condition = match record.code {
        0 => Condition::Well,
        _unhealthy => Condition::Unwell,
    };
    HealthLog {
        last: time(record.checked_at).map(|at| (health, at)),
        condition: time(record.since).map(condition),
        reported: Reported {
            health: if record.reported_unhealthy { Told::Unhealthy } else { Told::Healthy },
            unhealthy_at: time(record.reported_at),
            left_out: record.unreported,
        },
    }
}
