//! Following the registry across everything that happens to the agent.

use guest_agent_proto::host;
use guest_agent_proto::host::watch_response::Told;
use tonic::{Request, Streaming};

use super::retry::{self, Pauses};
use super::{Entry, Registry, RegistryError};

/// Follows what is offered. Changes come in order and none is missing; where one would be, such as
/// after a restart of the agent, a snapshot comes instead.
#[derive(Debug)]
pub struct Watch {
    registry: Registry,
    request: host::WatchRequest,
    stream: Option<Streaming<host::WatchResponse>>,
    known: Vec<Entry>,
    pauses: Pauses,
}

/// What a watch is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// This is all there is, whatever was known before.
    Snapshot(Vec<Entry>),
    /// This is new.
    Registered(Entry),
    /// This was there, and says something else now or is verified.
    Updated(Entry),
    /// This is gone.
    Deregistered(Entry, Gone),
}

/// Why an entry is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Its plugin took it back.
    Withdrawn,
    /// The process that offered it has ended.
    PluginEnded,
}

// === impl Watch ===

impl Watch {
    pub(super) fn new(registry: Registry, kind: Option<&str>, name: Option<&str>) -> Watch {
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        let request = host::WatchRequest { r#type: text(kind), name: text(name) };
        let (known, pauses) = (Vec::new(), Pauses::default());
        Watch { registry, request, stream: None, known, pauses }
    }

    /// What comes next; first of all a snapshot. Connects again, in longer and longer intervals, when the
    /// agent ends, so it may take as long as the agent is away. May be dropped without losing anything.
    ///
    /// # Errors
    /// The agent refuses, and would again: the ticket is not this process's, or a name is none.
    pub async fn next(&mut self) -> Result<Update, RegistryError> {
        loop {
            let told = match &mut self.stream {
                Some(stream) => stream.message().await,
                None => {
                    match self.registry.reader()?.watch(Request::new(self.request.clone())).await {
                        Ok(answer) => {
                            self.stream = Some(answer.into_inner());
                            continue;
                        }
                        Err(status) => Err(status),
                    }
                }
            };
            match told {
                Ok(Some(response)) => {
                    self.pauses = Pauses::default();
                    if let Some(update) = response.told.and_then(update) {
                        self.remember(&update);
                        return Ok(update);
                    }
                }
                Err(status) if !is_worth_another_try(&status) => return Err(status.into()),
                Ok(None) | Err(_) => {
                    self.stream = None;
                    self.pauses.pause().await;
                }
            }
        }
    }

    /// What is offered as far as this watch has been told, the newest of each name first.
    pub fn known(&self) -> &[Entry] {
        &self.known
    }

    /// The current entry of what is watched, if somebody answers there.
    pub fn current(&self) -> Option<&Entry> {
        let newest = self.known.iter().max_by_key(|entry| entry.order);
        newest.filter(|entry| entry.verified)
    }

    fn remember(&mut self, update: &Update) {
        match update {
            Update::Snapshot(entries) => self.known.clone_from(entries),
            Update::Registered(entry) | Update::Updated(entry) => {
                self.known.retain(|known| !known.is_same_instance(entry));
                self.known.push(entry.clone());
            }
            Update::Deregistered(entry, _) => {
                self.known.retain(|known| !known.is_same_instance(entry));
            }
        }
        let place = |a: &Entry, b: &Entry| {
            (&a.kind, &a.name).cmp(&(&b.kind, &b.name)).then(b.order.cmp(&a.order))
        };
        self.known.sort_by(place);
    }
}

/// A watch waits for a place as well as for the agent.
fn is_worth_another_try(status: &tonic::Status) -> bool {
    retry::is_transient(status) || status.code() == tonic::Code::ResourceExhausted
}

/// What was told; nothing, where it is something that only later agents say.
fn update(told: Told) -> Option<Update> {
    match told {
        Told::Snapshot(snapshot) => {
            let entries = snapshot.entries.into_iter().map(|entry| Entry::of(Some(entry)));
            Some(Update::Snapshot(entries.filter_map(Result::ok).collect()))
        }
        Told::Change(change) => {
            let (kind, reason) = (change.kind(), change.reason());
            let entry = Entry::of(change.entry).ok()?;
            match kind {
                host::change::Kind::Registered => Some(Update::Registered(entry)),
                host::change::Kind::Updated => Some(Update::Updated(entry)),
                host::change::Kind::Deregistered => {
                    let gone = match reason {
                        host::change::Reason::PluginEnded => Gone::PluginEnded,
                        host::change::Reason::Asked | host::change::Reason::Unspecified => {
                            Gone::Withdrawn
                        }
                    };
                    Some(Update::Deregistered(entry, gone))
                }
                host::change::Kind::Unspecified => None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Stub;
    use super::*;

    fn entry(instance: &str, order: u64, verified: bool) -> Entry {
        let offer = host::Offer {
            r#type: "k".to_owned(),
            name: "n".to_owned(),
            instance: instance.to_owned(),
            ..host::Offer::default()
        };
        let entry = host::Entry { offer: Some(offer), order, verified, ..host::Entry::default() };
        Entry::of(Some(entry)).expect("an entry")
    }

    #[test]
    fn what_is_known_follows_the_updates() {
        let mut watch = Watch::new(Registry::stub(Stub::new()), None, None);
        watch.remember(&Update::Snapshot(vec![entry("a", 1, true)]));
        assert_eq!(watch.current().map(|entry| entry.order), Some(1));
        watch.remember(&Update::Registered(entry("b", 2, true)));
        assert_eq!(watch.current().map(|entry| entry.order), Some(2));
        watch.remember(&Update::Updated(entry("b", 2, false)));
        assert_eq!(watch.current(), None, "nobody answers on the newest");
        watch.remember(&Update::Deregistered(entry("b", 2, true), Gone::PluginEnded));
        assert_eq!(watch.known(), [entry("a", 1, true)]);
    }
}
