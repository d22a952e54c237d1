//! Folds crash loops: a plugin that crashed and was started forty times is one line, and not eighty
//! that hide what else happened. Pure.

use std::collections::BTreeMap;

use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_agent_proto::local::Event;

use crate::display::values;

/// Fewest failures that are folded.
const FAILURES_MIN: usize = 3;

/// Failures further apart than this, in seconds, are no loop: a plugin waits at most five minutes for
/// its next start unless it is configured otherwise.
const APART_MAX: i64 = 3600;

/// What the details of an event begin with that stands for more than one failure.
const TOGETHER: &str = "crashes=";

/// A line of a list: an event, or the newest of a loop with the others of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Line {
    /// The event; of a loop its newest failure.
    pub(super) event: Event,
    /// All events of the loop, the newest first; empty for a single event.
    pub(super) folded: Vec<Event>,
}

// === impl Line ===

impl Line {
    /// How many of its events are failures.
    fn failing_events(&self) -> usize {
        self.folded.iter().filter(|event| is_failure(event)).count()
    }

    /// How many failures its events stand for.
    pub(super) fn failures(&self) -> u64 {
        let failures = self.folded.iter().filter(|event| is_failure(event)).map(count);
        failures.fold(0, u64::saturating_add)
    }
}

/// How many failures an event stands for: the agent reports those of a fast loop together, and begins
/// the details of such an event with their number.
fn count(event: &Event) -> u64 {
    let number = event.details.strip_prefix(TOGETHER).and_then(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse().ok()
    });
    number.unwrap_or(1)
}

fn is_failure(event: &Event) -> bool {
    use PluginEventType::{PluginCrashed, PluginStartFailed};
    matches!(values::event_type(event), PluginCrashed | PluginStartFailed)
}

/// Whether an event is a part of a loop: a failure, or a start between two of them.
fn belongs(event: &Event) -> bool {
    is_failure(event) || values::event_type(event) == PluginEventType::PluginStarted
}

fn second(event: &Event) -> i64 {
    event.at.as_ref().map_or(0, |at| at.seconds)
}

/// Folds the loops in a list of events, the newest first. A loop stands where its newest event did,
/// and every event is in exactly one line.
pub(super) fn fold(events: Vec<Event>) -> Vec<Line> {
    // The loop that each event belongs to, and how many failures each has.
    let mut loops: Vec<Option<usize>> = Vec::with_capacity(events.len());
    let mut failures: Vec<usize> = Vec::new();
    let mut open: BTreeMap<&str, (usize, i64)> = BTreeMap::new();
    for event in &events {
        if !belongs(event) {
            open.remove(event.plugin.as_str());
            loops.push(None);
            continue;
        }
        let known = open.get(event.plugin.as_str()).copied();
        let is_near = |at: i64| at.saturating_sub(second(event)) <= APART_MAX;
        let number = match known.filter(|(_, at)| is_near(*at)) {
            Some((number, _)) => number,
            None => {
                failures.push(0);
                failures.len() - 1
            }
        };
        failures[number] += usize::from(is_failure(event));
        open.insert(&event.plugin, (number, second(event)));
        loops.push(Some(number));
    }
    let mut lines: Vec<Line> = Vec::new();
    let mut at: BTreeMap<usize, usize> = BTreeMap::new();
    for (event, number) in events.into_iter().zip(loops) {
        let number = number.filter(|number| failures[*number] >= FAILURES_MIN);
        let Some(number) = number else {
            lines.push(Line { event, folded: Vec::new() });
            continue;
        };
        let index = *at.entry(number).or_insert_with(|| {
            lines.push(Line::default());
            lines.len() - 1
        });
        let line = &mut lines[index];
        if line.failing_events() == 0 {
            line.event = event.clone();
        }
        line.folded.push(event);
    }
    lines
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event(seq: u64, plugin: &str, kind: &str, second: i64) -> Event {
        Event {
            seq,
            plugin: plugin.to_owned(),
            r#type: format!("PLUGIN_{kind}"),
            at: Some(prost_types::Timestamp { seconds: second, nanos: 0 }),
            ..Event::default()
        }
    }

    /// A list as it is shown, newest first, of kinds in the order in which they happened.
    fn happened(kinds: &[(&str, &str)]) -> Vec<Event> {
        let numbered = kinds.iter().zip(1u64..);
        let events = numbered
            .map(|((plugin, kind), seq)| event(seq, plugin, kind, i64::try_from(seq).unwrap_or(0)));
        let mut events: Vec<_> = events.collect();
        events.reverse();
        events
    }

    #[test]
    fn a_loop_is_one_line_with_its_newest_failure() {
        let lines = fold(happened(&[
            ("web", "INSTALLED"),
            ("web", "CRASHED"),
            ("web", "STARTED"),
            ("db", "STARTED"),
            ("web", "CRASHED"),
            ("web", "STARTED"),
            ("web", "CRASHED"),
            ("web", "STARTED"),
        ]));
        let shown: Vec<_> = lines.iter().map(|line| (line.event.seq, line.failures())).collect();
        assert_eq!(shown, [(7, 3), (4, 0), (1, 0)]);
        assert_eq!(lines[0].folded.len(), 6);
    }

    #[test]
    fn failures_that_were_reported_together_are_all_counted() {
        let crash = ("web", "CRASHED");
        let mut events = happened(&[crash, crash, crash]);
        events[0].details = "crashes=8 exited with code 70".to_owned();
        events[1].details = "crashes=99999999999999999999".to_owned();
        assert_eq!(fold(events)[0].failures(), 10);
    }

    #[test]
    fn two_failures_or_failures_far_apart_are_no_loop() {
        let two = [("web", "CRASHED"), ("web", "STARTED"), ("web", "CRASHED")];
        assert_eq!(fold(happened(&two)).len(), 3);
        let far = (0..4).map(|n| event(n, "web", "CRASHED", -4000 * i64::try_from(n).unwrap_or(0)));
        assert_eq!(fold(far.collect()).len(), 4);
    }

    #[test]
    fn an_order_in_between_begins_another_loop() {
        let crash = ("web", "CRASHED");
        let kinds = [crash, crash, crash, ("web", "CONFIG_INSTALL"), crash, crash, crash];
        let lines = fold(happened(&kinds));
        assert_eq!(lines.iter().map(Line::failures).collect::<Vec<_>>(), [3, 0, 3]);
    }

    proptest! {
        /// Nothing is lost, nothing is there twice, and single events keep their order.
        #[test]
        fn law_every_event_is_in_one_line(
            kinds in prop::collection::vec((0..3_usize, 0..5_usize, 0..2000_i64), 0..60),
        ) {
            const KINDS: [&str; 5] = ["CRASHED", "STARTED", "START_FAILED", "STOPPED", "INSTALLED"];
            let mut at = 1_000_000;
            let events: Vec<Event> = kinds.iter().zip((1..=60_u64).rev()).map(|((plugin, kind, before), seq)| {
                at -= before;
                event(seq, ["a", "b", "c"][*plugin], KINDS[*kind], at)
            }).collect();
            let lines = fold(events.clone());
            let mut found: Vec<u64> = lines.iter().flat_map(|line| {
                if line.folded.is_empty() { vec![line.event.seq] }
                else { line.folded.iter().map(|event| event.seq).collect() }
            }).collect();
            found.sort_unstable_by(|one, other| other.cmp(one));
            prop_assert_eq!(found, events.iter().map(|event| event.seq).collect::<Vec<_>>());
            for line in &lines {
                prop_assert!(line.folded.is_empty() || line.failing_events() >= FAILURES_MIN);
                prop_assert!(line.folded.windows(2).all(|pair| pair[0].seq > pair[1].seq));
                prop_assert!(line.folded.iter().all(|event| event.plugin == line.event.plugin));
            }
            let firsts: Vec<u64> = lines.iter().map(|line| {
                line.folded.first().unwrap_or(&line.event).seq
            }).collect();
            prop_assert!(firsts.windows(2).all(|pair| pair[0] > pair[1]));
        }
    }
}
