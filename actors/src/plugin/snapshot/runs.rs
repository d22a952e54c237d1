//! The durable form of what is known of a plugin's runs, and of its story.

use std::collections::VecDeque;
use std::sync::Arc;

use guest_agent_proto::record as rec;

use crate::model::id::{BootId, Generation};
use crate::model::runs::{Due, Mark, Marks, Outcome, Runs, Trigger};
use crate::plugin::operation::Operation;
use crate::plugin::transition_log::{MOVES_MAX, Move, TransitionLog};
use crate::ports::{Shortfall, ShortfallKind, Unenforced};
use crate::trace::Trace;

pub(super) fn runs_record(runs: &Runs) -> Option<rec::Runs> {
    // A daemon has none, and most plugins are daemons.
    (*runs != Runs::default()).then(|| rec::Runs {
        startup: mark_record(&runs.marks.startup, |boot| boot.0.to_string()),
        firstboot: mark_record(&runs.marks.firstboot, ToString::to_string),
        interval: mark_record(&runs.marks.interval, ToString::to_string),
        total: runs.total,
        unfinished: runs.unfinished == Due::Yes,
        last: match &runs.last {
            Outcome::None => None,
            Outcome::Completed => Some(rec::runs::Outcome::default()),
            Outcome::Failed { reason } => {
                Some(rec::runs::Outcome { failed: true, reason: reason.to_string() })
            }
        },
        trigger: runs.trigger.map(Trigger::name).unwrap_or_default().to_owned(),
    })
}

pub(super) fn runs_of(record: Option<rec::Runs>) -> Runs {
    let record = record.unwrap_or_default();
    Runs {
        marks: Marks {
            startup: mark_of(record.startup, |of| Some(BootId(of.into()))),
            firstboot: mark_of(record.firstboot, |of| Some(Arc::from(of))),
            // One that is no number counts from now on, which at most skips a run.
            interval: mark_of(record.interval, |of| of.parse().ok()),
        },
        total: record.total,
        unfinished: if record.unfinished { Due::Yes } else { Due::No },
        last: match record.last {
            None => Outcome::None,
            Some(last) if last.failed => Outcome::Failed { reason: last.reason.into() },
            Some(_) => Outcome::Completed,
        },
        trigger: Trigger::named(&record.trigger),
    }
}

fn mark_record<T>(mark: &Mark<T>, name: impl Fn(&T) -> String) -> Option<rec::runs::Mark> {
    match mark {
        Mark::Never => None,
        Mark::Counted => Some(rec::runs::Mark { counted: true, of: String::new() }),
        Mark::Of(of) => Some(rec::runs::Mark { counted: false, of: name(of) }),
    }
}

fn mark_of<T>(record: Option<rec::runs::Mark>, name: impl Fn(String) -> Option<T>) -> Mark<T> {
    match record {
        None => Mark::Never,
        Some(mark) if mark.counted => Mark::Counted,
        Some(mark) => name(mark.of).map_or(Mark::Counted, Mark::Of),
    }
}

pub(super) fn moves_record(story: &TransitionLog) -> Vec<rec::Move> {
    let record = |step: &Move| rec::Move {
        at: Some(step.at.into()),
        state: step.state.to_string(),
        why: step.why.to_string(),
    };
    story.moves.iter().map(record).collect()
}

pub(super) fn trouble_record(story: &TransitionLog) -> Option<rec::Move> {
    story.trouble.as_ref().map(|trouble| rec::Move {
        at: Some(trouble.at.into()),
        state: trouble.kind.to_string(),
        why: trouble.why.to_string(),
    })
}

pub(super) fn operation_record(operation: &Operation) -> rec::Errand {
    rec::Errand {
        trace: Some(operation.trace.record()),
        order: operation.order.map(|order| order.0),
        revision: operation.revision.to_string(),
        trouble: operation.trouble.as_ref().map(|trouble| rec::errand::Trouble {
            revision: trouble.revision.to_string(),
            why: trouble.why.to_string(),
        }),
    }
}

/// Returns `None` when the record is invalid. The order then has no operation to trace; nothing
/// else depends on it.
pub(super) fn operation_of(record: rec::Errand) -> Option<Operation> {
    let trace = Arc::new(Trace::of_record(record.trace?)?);
    let mut operation = Operation::new(trace, record.order.map(Generation), &record.revision);
    if let Some(trouble) = record.trouble {
        operation.failed(&trouble.revision, &trouble.why);
    }
    Some(operation)
}

pub(super) fn unenforced_record(story: &TransitionLog) -> Vec<rec::Shortfall> {
    let record = |shortfall: &Shortfall| rec::Shortfall {
        what: shortfall.what.to_string(),
        why: shortfall.why.to_string(),
        fix: shortfall.fix.to_string(),
        of_limit: shortfall.kind == ShortfallKind::Limit,
    };
    story.unenforced.iter().map(record).collect()
}

pub(super) fn unenforced_of(records: Vec<rec::Shortfall>) -> Unenforced {
    let shortfall = |it: rec::Shortfall| {
        let make = if it.of_limit { Shortfall::of_limit } else { Shortfall::new };
        make(&it.what, &it.why, &it.fix)
    };
    records.into_iter().map(shortfall).collect()
}

pub(super) fn story_of(
    moves: Vec<rec::Move>,
    last_output: &str,
    trouble: Option<rec::Move>,
) -> TransitionLog {
    let mut story = TransitionLog { moves: VecDeque::new(), ..TransitionLog::default() };
    let surplus = moves.len().saturating_sub(MOVES_MAX);
    for step in moves.into_iter().skip(surplus) {
        // A change without a time is of no use to anybody.
        if let Some(at) = step.at.and_then(|at| at.try_into().ok()) {
            story.moved(at, &step.state, &step.why);
        }
    }
    story.wrote(last_output);
    if let Some((trouble, at)) = trouble.and_then(|trouble| {
        let at = trouble.at?.try_into().ok()?;
        Some((trouble, at))
    }) {
        story.failed(at, &trouble.state, &trouble.why);
    }
    story
}
