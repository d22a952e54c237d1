//! What becomes of the metadata server's attributes: facts for rules, and the proof that this is still
//! the machine that the agent took it for.

use std::sync::Arc;

use guest_agent_actors::error::Chain;
use guest_agent_actors::facts;
use guest_agent_actors::ports::Machine;
use tokio::sync::watch;
use tracing::{error, warn};

use crate::config::NO_METADATA;
use crate::facts::LocalFacts;
use crate::machine::{InstanceSource, LocalMachine, Memory};
use crate::metadata::{Client, State, Watcher};

/// What the metadata server says, now and from now on.
pub(super) struct Attributes {
    /// Absent when nobody is to be asked.
    watcher: Option<Watcher>,
    state: watch::Receiver<State>,
}

// === impl Attributes ===

impl Attributes {
    /// Nothing is asked before [`Attributes::follow`].
    pub(super) fn new(client: Option<Client>) -> Self {
        match client {
            Some(client) => {
                let watcher = Watcher::new(Arc::new(client));
                Self { state: watcher.state(), watcher: Some(watcher) }
            }
            None => {
                let reason = format!("instance.metadata_url is {NO_METADATA:?}").into();
                Self { watcher: None, state: watch::channel(State::Absent { reason }).1 }
            }
        }
    }

    pub(super) fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// Keeps the facts current. Resolves when the machine turns out to be another one.
    pub(super) async fn follow(
        self,
        facts: Arc<LocalFacts>,
        mut memory: Memory,
        machine: Arc<LocalMachine>,
    ) {
        let Self { watcher, mut state } = self;
        let asking = async {
            if let Some(watcher) = watcher {
                watcher.run().await;
            }
            std::future::pending::<()>().await;
        };
        let following = async {
            loop {
                let now = state.borrow_and_update().clone();
                if told(&now, &facts, &mut memory, &machine) == Told::AnotherMachine {
                    return;
                }
                if state.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            () = asking => {}
            () = following => {}
        }
    }
}

#[derive(PartialEq, Eq)]
enum Told {
    Facts,
    AnotherMachine,
}

fn told(state: &State, facts: &LocalFacts, memory: &mut Memory, machine: &LocalMachine) -> Told {
    match state {
        State::Unknown => Told::Facts,
        State::Absent { reason } => {
            facts.set_instance(facts::Attributes::Unavailable(reason.clone()));
            facts.set_metadata(facts::Attributes::Unavailable(reason.clone()));
            Told::Facts
        }
        State::Present { tree, .. } => {
            facts.set_instance(tree.instance().clone());
            facts.set_metadata(tree.custom().clone());
            memory.see_metadata();
            let ours = machine.instance_id();
            let differs = tree.instance_id().filter(|id| *id != ours);
            match differs.filter(|_| machine.instance_source() == InstanceSource::Metadata) {
                Some(id) => become_another(memory, id),
                None => Told::Facts,
            }
        }
    }
}

/// The disk was cloned, and the server was silent at the start. Only who remembers the new id goes on as
/// it; the agent would otherwise end again and again.
fn become_another(memory: &mut Memory, id: &str) -> Told {
    match memory.become_another(id) {
        Ok(()) => {
            warn!(id, "the metadata server says that this machine is another instance");
            Told::AnotherMachine
        }
        Err(error) => {
            error!(error = %Chain(&error), "goes on as the instance that this machine no longer is");
            Told::Facts
        }
    }
}
