//! The end of an order by the recorded events: it came while nobody was connected, or the status does
//! not say why the order failed. Each order that is announced has exactly one end, and it names the
//! revision that the announcement named (decision 42).

use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_agent_proto::local::{Event, PluginStatus, StreamEventsRequest};
use tonic::Code;

use super::awaited::{FollowedOrder, Goal, REMOVED};
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

/// How the newest order with this goal ended; `None` where it has not ended, or where events do not
/// say it. `now` is the plugin as it is, if it is there.
pub(super) fn end_of(
    goal: &Goal,
    events: &[Event],
    now: Option<&PluginStatus>,
) -> Option<FollowedOrder> {
    use PluginEventType as Type;

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
    let announced =
        events.iter().rposition(|event| values::event_type(event) == begin && fits(&event))?;
    // A revision that was taken back on trial was installed first: what came last counts.
    let end = events[announced..].iter().filter(fits).rfind(|event| {
        let kind = values::event_type(event);
        kind == done || kind == failed
    })?;
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

    fn installed() -> Goal {
        let (revision, config_hash) = ("2".to_owned(), String::new());
        Goal::Installed { revision, config_hash, until: Until::Proven }
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
        assert_eq!(end_of(&installed(), &events, None), None, "it is under way");
        let more = [&events[..], &[event(PluginInstalled, "2", "")]].concat();
        let now = PluginStatus {
            state: "RUNNING".to_owned(),
            revision: "3".to_owned(),
            ..PluginStatus::default()
        };
        let done = "RUNNING with revision 3 after it was installed".to_owned();
        assert_eq!(end_of(&installed(), &more, Some(&now)), Some(FollowedOrder::Done(done)));
        let gone = "REMOVED after it was installed".to_owned();
        assert_eq!(end_of(&installed(), &more, None), Some(FollowedOrder::Done(gone)));
        let taken_back = [&more[..], &[event(PluginInstallFailed, "2", "it\ncrashed")]].concat();
        let why = Some(FollowedOrder::Failed("it crashed".to_owned()));
        assert_eq!(end_of(&installed(), &taken_back, Some(&now)), why);
    }

    #[test]
    fn other_orders_end_with_theirs() {
        let events = [
            event(PluginConfigApply, "2", ""),
            event(PluginConfigApplyFailed, "2", "refused"),
            event(PluginConfigRemove, "2", ""),
            event(PluginRemoved, "2", ""),
            event(PluginConfigInstall, "2", ""),
        ];
        let configured = Goal::Configured { config_hash: String::new() };
        let why = Some(FollowedOrder::Failed("refused".to_owned()));
        assert_eq!(end_of(&configured, &events, None), why);
        let removed = Some(FollowedOrder::Done(REMOVED.to_owned()));
        assert_eq!(end_of(&Goal::Removed, &events, None), removed);
        assert_eq!(end_of(&installed(), &events, None), None);
        assert_eq!(end_of(&Goal::Working, &events, None), None);
    }
}
