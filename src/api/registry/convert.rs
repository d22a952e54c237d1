//! Between the registry's own types and those on the wire.

use guest_agent_actors::messages::NotRegistered;
use guest_agent_actors::model::id::IdError;
use guest_agent_actors::registry::catalogue::{Change, Event, Reason, Refusal};
use guest_agent_actors::registry::entry::{Entry, RawOffer, Standing};
use guest_agent_actors::registry::view::RegistryUpdate;
use guest_agent_proto::host;
use tonic::Status;

pub(crate) fn raw_offer(offer: host::Offer) -> RawOffer {
    RawOffer {
        kind: offer.r#type,
        name: offer.name,
        instance: offer.instance,
        version: offer.version,
        socket: offer.socket_path,
        options: offer.options.into_iter().collect(),
    }
}

pub(crate) fn entry(entry: &Entry) -> host::Entry {
    let (offer, key) = (&entry.offer, entry.key());
    let options = offer.options().iter().map(|(key, value)| (key.clone(), value.clone()));
    host::Entry {
        offer: Some(host::Offer {
            r#type: key.kind.to_string(),
            name: key.name.to_string(),
            instance: key.instance.to_string(),
            version: offer.version().to_owned(),
            socket_path: offer.socket().to_owned(),
            options: options.collect(),
        }),
        plugin: entry.registrant.plugin.to_string(),
        epoch: entry.epoch.0,
        verified: entry.standing == Standing::Verified,
        registered_at: Some(entry.registered_at.into()),
        order: entry.order,
    }
}

pub(crate) fn told(told: &RegistryUpdate) -> host::WatchResponse {
    use host::watch_response::Told as Wire;
    let told = match told {
        RegistryUpdate::Snapshot { entries, sequence } => Wire::Snapshot(host::Snapshot {
            entries: entries.iter().map(|it| entry(it)).collect(),
            sequence: *sequence,
        }),
        RegistryUpdate::Changed(event) => Wire::Change(change(event)),
    };
    host::WatchResponse { told: Some(told) }
}

fn change(event: &Event) -> host::Change {
    use host::change::{Kind, Reason as Why};
    let (kind, reason) = match &event.change {
        Change::Registered(_) => (Kind::Registered, Why::Unspecified),
        Change::Updated(_) => (Kind::Updated, Why::Unspecified),
        Change::Deregistered(_, Reason::Asked) => (Kind::Deregistered, Why::Asked),
        Change::Deregistered(_, Reason::PluginEnded) => (Kind::Deregistered, Why::PluginEnded),
    };
    host::Change {
        sequence: event.sequence,
        kind: kind.into(),
        entry: Some(entry(event.change.entry())),
        reason: reason.into(),
    }
}

/// The name in a text, or the status that refuses the text.
pub(crate) fn parse<T: std::str::FromStr<Err = IdError>>(text: &str) -> Result<T, Status> {
    text.parse().map_err(|error: IdError| Status::invalid_argument(error.to_string()))
}

/// The same where an empty text means that nothing was named.
pub(crate) fn parse_some<T>(text: &str) -> Result<Option<T>, Status>
where
    T: std::str::FromStr<Err = IdError>,
{
    if text.is_empty() { Ok(None) } else { parse(text).map(Some) }
}

pub(crate) fn refused(refusal: &Refusal) -> Status {
    let text = refusal.to_string();
    match refusal {
        Refusal::Taken { .. } => Status::already_exists(text),
        Refusal::NotYours { .. } => Status::permission_denied(text),
        Refusal::UnknownKind(_) | Refusal::UnknownName { .. } | Refusal::UnknownInstance(_) => {
            Status::not_found(text)
        }
        Refusal::TooManyOfPlugin(_) | Refusal::Full | Refusal::TooManyKinds => {
            Status::resource_exhausted(text)
        }
        Refusal::Superseded(_) => Status::failed_precondition(text),
    }
}

pub(crate) fn not_registered(error: &NotRegistered) -> Status {
    match error {
        NotRegistered::Refused(refusal) => refused(refusal),
        NotRegistered::NotSaved(error) => Status::unavailable(format!(
            "nothing was changed, because the change cannot be saved: {error}"
        )),
    }
}
