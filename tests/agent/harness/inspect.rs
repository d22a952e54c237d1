//! Looks behind the agent's doors: what it recorded, what it holds open, what its store keeps.

use std::collections::BTreeMap;
use std::path::Path;

use guest_agent::store::{self, StateLock, StoreFate};
use guest_agent_actors::ports::{Storage, Table};
use guest_agent_proto::local;
use guest_agent_proto::local::{RestartRequest, StreamEventsRequest};

use super::{Bed, listing};

/// What a store keeps, as numbers of records and as the keys of those that are never to stay.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Plugins of which there is a record, by name.
    pub(crate) plugins: Vec<String>,
    /// Orders that were not taken up.
    pub(crate) inbox: usize,
    /// Events that were not acknowledged.
    pub(crate) outbox: usize,
    /// Records that were set aside.
    pub(crate) quarantined: usize,
}

impl Bed {
    /// The events that the agent has on record, oldest first, if it answers.
    pub(crate) async fn recorded_events(
        &self,
    ) -> Result<Vec<local::Event>, Box<dyn std::error::Error>> {
        let request = StreamEventsRequest::default();
        let mut stream = self.client().await?.stream_events(request).await?.into_inner();
        let mut events = Vec::new();
        while let Some(event) = stream.message().await? {
            events.push(event);
        }
        Ok(events)
    }

    /// Orders a restart through the agent's own socket, if it answers.
    pub(crate) async fn try_restart(&self, plugin: &str) -> Result<(), Box<dyn std::error::Error>> {
        let request = RestartRequest { name: plugin.to_owned() };
        self.client().await?.restart(request).await?;
        Ok(())
    }

    /// The descriptors that the agent has open, by what they refer to: `socket`, `[pidfd]`, a path.
    pub(crate) fn descriptors(&self) -> BTreeMap<String, usize> {
        let mut found = BTreeMap::new();
        for link in listing(Path::new(&format!("/proc/{}/fd", self.agent_pid()))) {
            let Ok(target) = std::fs::read_link(link) else { continue };
            let target = target.to_string_lossy();
            let kind = match target.split_once(':') {
                Some(("anon_inode", kind)) => kind,
                Some((kind, _)) => kind,
                None => &target,
            };
            *found.entry(kind.to_owned()).or_default() += 1;
        }
        found
    }

    /// What the store keeps. The agent must not run.
    pub(crate) async fn kept(&self) -> Kept {
        let lock = StateLock::acquire(&self.dir().join("state")).unwrap();
        let opened = store::open(&lock, &self.state_root().join("store")).await.unwrap();
        assert_eq!(opened.fate, StoreFate::Existing, "the store was not there, or was damaged");
        let store = opened.storage;
        let plugins = store.load(Table::Plugins).await.unwrap();
        let kept = Kept {
            plugins: plugins
                .iter()
                .map(|(key, _)| String::from_utf8_lossy(key).into_owned())
                .collect(),
            inbox: store.load(Table::Inbox).await.unwrap().len(),
            outbox: store.load(Table::Outbox).await.unwrap().len(),
            quarantined: store.quarantined().await.unwrap().len(),
        };
        store.close().await.unwrap();
        kept
    }
}
