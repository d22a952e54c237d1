//! Watches of the registry, which survive restarts and failures of the agent.

use guest_agent_proto::host;
use guest_agent_proto::host::watch_response::Told;
use tonic::{Request, Streaming};

use super::retry::{self, Pauses};
use super::{Entry, Registry, RegistryError};

/// A watch of the registry. Changes arrive in order and without a gap; after a gap, such as a
/// restart of the agent, a snapshot arrives instead.
#[derive(Debug)]
pub struct Watch {
    registry: Registry,
    request: host::WatchRequest,
    stream: Option<Streaming<host::WatchResponse>>,
    known: Vec<Entry>,
    pauses: Pauses,
}

/// A message of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// All entries; it replaces the entries of earlier messages.
    Snapshot(Vec<Entry>),
    /// A new entry.
    Registered(Entry),
    /// A known entry that has changed or is now verified.
    Updated(Entry),
    /// An entry that was removed.
    Deregistered(Entry, Gone),
}

/// Why an entry was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Its plugin deregistered it.
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

    /// The next message; the first is a snapshot. When the agent ends, it connects again in longer
    /// and longer intervals, so the call may take as long as the agent is away. Dropping the future
    /// loses no message.
    ///
    /// # Errors
    /// The agent refused the watch, and would again: the ticket is not this process's, or a name is
    /// invalid.
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

    /// The entries that this watch has received, the newest of each name first.
    pub fn known(&self) -> &[Entry] {
        &self.known
    }

    /// The current entry of the watched name, if its socket answers.
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

/// The message as a change; `None` for a kind that only later agents send.
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
