//! The use of the metadata server's attributes: facts for rules, and the check that the machine
//! still has the same instance id.

use std::sync::Arc;

use guest_agent_actors::error::Chain;
use guest_agent_actors::model::facts;
use guest_agent_actors::ports::Machine;
use tokio::sync::watch;
use tracing::{error, warn};

use crate::config::NO_METADATA;
use crate::hostinfo::facts::LocalFacts;
use crate::hostinfo::metadata::{Client, State, Watcher};
use crate::hostinfo::{self, InstanceSource, LocalMachine, Memory};

/// The attributes, now and after every change.
pub(super) struct Attributes {
    /// Absent if the metadata server is turned off.
    watcher: Option<Watcher>,
    state: watch::Receiver<State>,
}

// === impl Attributes ===

impl Attributes {
    /// No request is sent before [`Attributes::follow`].
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

    /// Keeps the facts current. Resolves when the instance id of the machine differs from the
    /// agent's.
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
                if take_up(&now, &facts, &mut memory, &machine) == Found::AnotherMachine {
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
enum Found {
    Facts,
    AnotherMachine,
}

fn take_up(
    state: &State,
    facts: &LocalFacts,
    memory: &mut Memory,
    machine: &LocalMachine,
) -> Found {
    match state {
        State::Unknown => Found::Facts,
        State::Absent { reason } => {
            facts.set_instance(facts::Attributes::Unavailable(reason.clone()));
            facts.set_metadata(facts::Attributes::Unavailable(reason.clone()));
            Found::Facts
        }
        State::Present { tree, .. } => {
            facts.set_instance(tree.instance().clone());
            facts.set_metadata(tree.custom().clone());
            memory.see_metadata();
            let ours = machine.instance_id();
            let differs = tree.instance_id().filter(|id| *id != ours && hostinfo::is_plain(id));
            match differs.filter(|_| machine.instance_source() == InstanceSource::Metadata) {
                Some(id) => become_another(memory, id),
                None => Found::Facts,
            }
        }
    }
}

/// Saves the id of another instance: the disk was cloned, and the metadata server did not answer at
/// the start. Without a saved id the agent keeps the old one; it would otherwise restart again and
/// again.
fn become_another(memory: &mut Memory, id: &str) -> Found {
    match memory.become_another(id) {
        Ok(()) => {
            warn!(id, "the metadata server says that this machine is another instance");
            Found::AnotherMachine
        }
        Err(error) => {
            error!(
                error = %Chain(&error),
                "continues with the old instance id"
            );
            Found::Facts
        }
    }
}

#[cfg(test)]
mod tests {
    use guest_agent_actors::model::facts::{Attributes as Facts, Value};
    use guest_agent_actors::ports::Facts as _;

    use super::*;
    use crate::hostinfo::Identity;
    use crate::hostinfo::metadata::Tree;

    fn present(text: &str) -> State {
        let tree = Tree::parse(text.as_bytes()).expect("a tree").into();
        State::Present { tree, trouble: None }
    }

    #[test]
    fn rules_see_the_attributes_and_why_there_are_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut memory = Memory::load(dir.path());
        let identity = Identity { id: "mine".to_owned(), source: InstanceSource::Given };
        let machine = LocalMachine::read(identity).expect("this machine");
        let facts = LocalFacts::read();
        let mut tell = |state: &State| {
            assert!(take_up(state, &facts, &mut memory, &machine) == Found::Facts);
            facts.watch().borrow().clone()
        };
        let absent = tell(&State::Absent { reason: "gone".into() });
        assert!(matches!(&absent.metadata, Facts::Unavailable(why) if &**why == "gone"));
        let known = tell(&present(
            r#"{"instance": {"id": 7, "machineType": "e2", "attributes": {"role": "web"}}}"#,
        ));
        let Facts::Known(instance) = &known.instance else { panic!("{known:?}") };
        assert_eq!(instance.get("machine-type"), Some(&Value::text("e2")));
        let Facts::Known(custom) = &known.metadata else { panic!("{known:?}") };
        assert_eq!(custom.get("role"), Some(&Value::text("web")));
        assert!(Memory::load(dir.path()).has_seen_metadata());
    }

    #[test]
    fn another_id_is_another_machine_only_where_the_server_gave_the_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = present(r#"{"instance": {"id": "43"}}"#);
        for (id, source, another) in [
            ("42", InstanceSource::Metadata, true),
            ("43", InstanceSource::Metadata, false),
            ("42", InstanceSource::Machine, false),
            ("42", InstanceSource::Given, false),
        ] {
            let identity = Identity { id: id.to_owned(), source };
            let machine = LocalMachine::read(identity).expect("this machine");
            let mut memory = Memory::load(dir.path());
            let told = take_up(&state, &LocalFacts::read(), &mut memory, &machine);
            assert_eq!(told == Found::AnotherMachine, another, "{id} {source:?}");
        }
    }
}
