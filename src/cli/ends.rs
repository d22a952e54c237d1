//! The end of an order by the recorded events: it came while nobody was connected, or the status does
//! not say why the order failed. Each order that is announced has exactly one end, and it names the
//! revision that the announcement named (decision 42).

use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_agent_proto::local::{Event, PluginStatus, StreamEventsRequest};
use tonic::Code;

use super::awaited::{Awaited, FollowedOrder, Goal, REMOVED};
use super::client::{self, Client, Patience};
use super::failure::Failure;
use super::format::one_line;
use crate::display::values;

/// The recorded events of a plugin, oldest first. None of a plugin of which none is left.
pub(super) async fn events_of(client: &mut Client, name: &str) -> Result<Vec<Event>, Failure> {
    let request = StreamEventsRequest { name: name.to_owned(), ..StreamEventsRequest::default() };
    let mut events = match client.stream_events(request).await {
        Ok(answer) => answer.into_inner(),
        Err(status) if status.code() == Code::NotFound => return Ok(Vec::new()),
        Err(status) => return Err(status.into()),
    };
    let mut all = Vec::new();
    while let Some(event) = client::next(&mut events, Patience::Soon).await? {
        all.push(event);
    }
    Ok(all)
}

/// How this order ended; `None` where it has not ended, or where events do not say it. `now` is the
/// plugin as it is, if it is there.
///
/// An event carries no number of an order. The announcement of the order is the first one after the
/// agent took it, and the last one while no newer order was taken; an order that joins the work for an
/// earlier one has no announcement of its own, and shares the end of that one. An agent of an older
/// version does not say which events are later than the order, so a newer order hides its end.
pub(super) fn end_of(
    order: &Awaited,
    events: &[Event],
    now: Option<&PluginStatus>,
) -> Option<FollowedOrder> {
    use PluginEventType as Type;

    let goal = &order.goal;
    let (begin, done, failed, word, revision) = match goal {
        Goal::Installed { revision, .. } => (
            Type::PluginConfigInstall,
            Type::PluginInstalled,
            Type::PluginInstallFailed,
            "installed",
            Some(revision),
        ),
        Goal::Configured { .. } => (
            Type::PluginConfigApply,
            Type::PluginConfigApplied,
            Type::PluginConfigApplyFailed,
            "configured",
            None,
        ),
        Goal::Removed => (
            Type::PluginConfigRemove,
            Type::PluginRemoved,
            Type::PluginRemoveFailed,
            "removed",
            None,
        ),
        Goal::Working | Goal::Started | Goal::Stopped | Goal::RolledBack | Goal::Settled => {
            return None;
        }
    };
    let fits = |event: &&Event| revision.is_none_or(|revision| event.revision == *revision);
    let is_newest = now.is_some_and(|now| now.generation == order.generation);
    let after = order.after.or(is_newest.then_some(0))?;
    let later: Vec<_> = events.iter().filter(|event| event.seq > after).filter(fits).collect();
    let begins = |event: &&Event| values::event_type(event) == begin;
    let own =
        if is_newest { later.iter().rposition(begins) } else { later.iter().position(begins) };
    let later = own.map_or(&later[..], |own| &later[own + 1..]);
    let is_end = |event: &&&Event| {
        let kind = values::event_type(event);
        kind == done || kind == failed
    };
    let end = match goal {
        // One removal is the end of all that were ordered meanwhile.
        Goal::Removed => later.iter().find(is_end),
        // A revision that was taken back on trial was installed first: the last end counts.
        _installs_or_applies => {
            later.iter().take_while(|event| !begins(event)).filter(is_end).last()
        }
    }?;
    if values::event_type(end) == failed {
        return Some(FollowedOrder::Failed(one_line(&end.details)));
    }
    Some(FollowedOrder::Done(match (goal, now) {
        (Goal::Removed, _) => REMOVED.to_owned(),
        (_, None) => format!("{REMOVED} after it was {word}"),
        (_, Some(now)) => format!(
            "{} with revision {} after it was {word}",
            one_line(&now.state),
            one_line(&now.revision)
        ),
    }))
}

#[cfg(test)]
mod tests {
    use super::super::waiting::Until;
    use super::*;

    fn event(kind: PluginEventType, revision: &str, details: &str) -> Event {
        let mut event = Event {
            r#type: kind.as_str_name().to_owned(),
            revision: revision.to_owned(),
            details: details.to_owned(),
            ..Event::default()
        };
        event.set_type_value(kind);
        event
    }

    fn ordered(goal: Goal) -> Awaited {
        Awaited { name: "a".to_owned(), goal, generation: 5, after: Some(0) }
    }

    fn installed() -> Awaited {
        let (revision, config_hash) = ("2".to_owned(), String::new());
        ordered(Goal::Installed { revision, config_hash, until: Until::Proven })
    }

    /// The same events with numbers from 1 on.
    fn numbered<const N: usize>(events: [Event; N]) -> [Event; N] {
        let mut seq = 0;
        events.map(|event| {
            seq += 1;
            Event { seq, ..event }
        })
    }

    fn at(generation: u64) -> PluginStatus {
        PluginStatus {
            state: "RUNNING".to_owned(),
            revision: "3".to_owned(),
            generation,
            ..PluginStatus::default()
        }
    }

    use PluginEventType::{
        PluginConfigApply, PluginConfigApplyFailed, PluginConfigInstall, PluginConfigRemove,
        PluginInstallFailed, PluginInstalled, PluginRemoved, PluginStarted,
    };

    #[test]
    fn an_installation_ends_with_its_own_event() {
        let events = [
            event(PluginConfigInstall, "2", ""),
            event(PluginInstallFailed, "2", "an older attempt"),
            event(PluginConfigInstall, "2", ""),
            event(PluginStarted, "2", ""),
            event(PluginConfigInstall, "3", ""),
            event(PluginInstallFailed, "3", "another"),
        ];
        let events = numbered(events);
        let order = Awaited { after: Some(2), ..installed() };
        assert_eq!(end_of(&order, &events, None), None, "it is under way");
        let later = |seq, kind, details| Event { seq, ..event(kind, "2", details) };
        let more = [&events[..], &[later(7, PluginInstalled, "")]].concat();
        let now = at(6);
        let done = "RUNNING with revision 3 after it was installed".to_owned();
        let done = Some(FollowedOrder::Done(done));
        assert_eq!(end_of(&order, &more, Some(&now)), done);
        let gone = "REMOVED after it was installed".to_owned();
        assert_eq!(end_of(&order, &more, None), Some(FollowedOrder::Done(gone)));
        let back = later(8, PluginInstallFailed, "it\ncrashed");
        let taken_back = [&more[..], &[back]].concat();
        let why = Some(FollowedOrder::Failed("it crashed".to_owned()));
        assert_eq!(end_of(&order, &taken_back, Some(&now)), why);
        // A newer order for the same revision has an end of its own.
        let newer = [later(8, PluginConfigInstall, ""), later(9, PluginInstallFailed, "refused")];
        let newer = [&more[..], &newer].concat();
        assert_eq!(end_of(&order, &newer, Some(&now)), done);
        let refused = Some(FollowedOrder::Failed("refused".to_owned()));
        assert_eq!(end_of(&order, &newer, Some(&at(5))), refused, "it is the newest");
    }

    #[test]
    fn an_order_that_joins_an_earlier_one_ends_with_that() {
        let events = numbered([
            event(PluginConfigInstall, "2", ""),
            event(PluginInstallFailed, "2", "the digest differs"),
        ]);
        let joined = Awaited { after: Some(1), ..installed() };
        let why = Some(FollowedOrder::Failed("the digest differs".to_owned()));
        assert_eq!(end_of(&joined, &events, Some(&at(5))), why);
        assert_eq!(end_of(&joined, &events, Some(&at(6))), why);
        let later = Awaited { after: Some(2), ..installed() };
        assert_eq!(end_of(&later, &events, Some(&at(5))), None, "an end before the order");
    }

    #[test]
    fn an_agent_of_an_older_version_shows_the_end_of_the_newest_order_alone() {
        let events = numbered([
            event(PluginConfigInstall, "2", ""),
            event(PluginInstalled, "2", ""),
            event(PluginConfigInstall, "2", ""),
            event(PluginInstallFailed, "2", "the digest differs"),
        ]);
        let order = Awaited { after: None, ..installed() };
        let why = Some(FollowedOrder::Failed("the digest differs".to_owned()));
        assert_eq!(end_of(&order, &events, Some(&at(5))), why);
        assert_eq!(end_of(&order, &events, Some(&at(6))), None, "it may be that of another order");
        assert_eq!(end_of(&order, &events, None), None);
    }

    #[test]
    fn other_orders_end_with_theirs() {
        let events = numbered([
            event(PluginConfigApply, "2", ""),
            event(PluginConfigApplyFailed, "2", "refused"),
            event(PluginConfigRemove, "2", ""),
            event(PluginRemoved, "2", ""),
            event(PluginConfigInstall, "2", ""),
        ]);
        let configured = ordered(Goal::Configured { config_hash: String::new() });
        let why = Some(FollowedOrder::Failed("refused".to_owned()));
        assert_eq!(end_of(&configured, &events, None), why);
        let removed = Some(FollowedOrder::Done(REMOVED.to_owned()));
        assert_eq!(end_of(&ordered(Goal::Removed), &events, None), removed);
        let before = Event { seq: 1, ..event(PluginConfigRemove, "2", "") };
        let twice = [&[before], &events[..]].concat();
        assert_eq!(end_of(&ordered(Goal::Removed), &twice, None), removed);
        assert_eq!(end_of(&installed(), &events, None), None);
        assert_eq!(end_of(&ordered(Goal::Working), &events, None), None);
    }
}
