//! The registered streams, by agent.

use std::collections::HashMap;
use std::sync::Arc;

use super::session_handle::{AgentConnection, SessionHandle};

/// The sessions of each agent, one per channel, the newest last.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    by_resource: HashMap<Arc<str>, Vec<Arc<SessionHandle>>>,
}

/// Why a stream finds no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// Too many agents are connected.
    Agents,
    /// Too many channels of this agent are connected.
    Channels,
}

// === impl Streams ===

impl Streams {
    /// Whether there is a place for a stream of this agent and channel, among so many agents and so many
    /// channels of each.
    pub(crate) fn room(
        &self,
        resource: &str,
        channel: &str,
        agents: usize,
        channels: usize,
    ) -> Result<(), Full> {
        match self.by_resource.get(resource) {
            None if self.by_resource.len() >= agents => Err(Full::Agents),
            None => Ok(()),
            Some(sessions) if sessions.iter().any(|session| &*session.channel == channel) => Ok(()),
            Some(sessions) if sessions.len() >= channels => Err(Full::Channels),
            Some(_) => Ok(()),
        }
    }

    /// Adds a stream as the newest of its agent; removes the older one of its channel and returns it.
    pub(crate) fn attach(
        &mut self,
        resource: &Arc<str>,
        session: Arc<SessionHandle>,
    ) -> Option<Arc<SessionHandle>> {
        let sessions = self.by_resource.entry(resource.clone()).or_default();
        let older = sessions.iter().position(|other| other.channel == session.channel);
        let older = older.map(|at| sessions.remove(at));
        sessions.push(session);
        older
    }

    /// Removes a stream, if it is there.
    pub(crate) fn detach(&mut self, resource: &str, stream: u64) {
        if let Some(sessions) = self.by_resource.get_mut(resource) {
            sessions.retain(|session| session.stream != stream);
            if sessions.is_empty() {
                self.by_resource.remove(resource);
            }
        }
    }

    /// Removes all streams of an agent, oldest first.
    pub(crate) fn detach_all(&mut self, resource: &str) -> Vec<Arc<SessionHandle>> {
        self.by_resource.remove(resource).unwrap_or_default()
    }

    /// All sessions.
    pub(crate) fn all(&self) -> Vec<Arc<SessionHandle>> {
        self.by_resource.values().flatten().cloned().collect()
    }

    /// All sessions as others see them, in no order.
    pub(crate) fn connections(&self) -> Vec<AgentConnection> {
        let of_one = |(resource, sessions): (&Arc<str>, &Vec<Arc<SessionHandle>>)| {
            sessions.iter().map(|session| session.connection(resource)).collect::<Vec<_>>()
        };
        self.by_resource.iter().flat_map(of_one).collect()
    }

    /// The newest session of an agent.
    pub(crate) fn newest(&self, resource: &str) -> Option<AgentConnection> {
        let (resource, sessions) = self.by_resource.get_key_value(resource)?;
        Some(sessions.last()?.connection(resource))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_resource.values().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(channel: &str, stream: u64) -> Arc<SessionHandle> {
        Arc::new(SessionHandle::new(channel.into(), stream))
    }

    #[test]
    fn a_newer_stream_takes_the_place_of_the_older_one_of_its_channel() {
        let (mut streams, agent): (_, Arc<str>) = (Streams::default(), "a".into());
        assert!(streams.attach(&agent, session("x", 1)).is_none());
        assert!(streams.attach(&agent, session("y", 2)).is_none());
        assert_eq!(streams.attach(&agent, session("x", 3)).map(|older| older.stream), Some(1));
        assert_eq!(streams.newest("a").map(|it| it.stream), Some(3));
        assert_eq!((streams.len(), streams.connections().len()), (2, 2));
        // The task of the older one ends later, and takes nothing from the newer one.
        streams.detach("a", 1);
        assert_eq!(streams.len(), 2);
    }

    #[test]
    fn agents_and_channels_are_bounded_and_what_left_makes_room() {
        let (mut streams, agent): (_, Arc<str>) = (Streams::default(), "a".into());
        assert_eq!(streams.room("a", "x", 0, 1), Err(Full::Agents));
        streams.attach(&agent, session("x", 1));
        assert_eq!(streams.room("b", "x", 1, 1), Err(Full::Agents));
        assert_eq!(streams.room("a", "y", 1, 1), Err(Full::Channels));
        assert_eq!(streams.room("a", "x", 1, 1), Ok(()), "it replaces one");
        streams.detach("a", 1);
        assert_eq!(streams.room("b", "x", 1, 1), Ok(()));
        assert_eq!(streams.by_resource.len(), 0, "an agent that left costs nothing");
    }
}
