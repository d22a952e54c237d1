//! Chooses the instance id of this machine, and keeps it stable.
//!
//! ```text
//!   configured ─► that          else: remembered, and still the same machine ─► that
//!                               else: metadata server (asked once, briefly) ─► firmware ─► machine-id ─► random
//! ```
//!
//! The choice is recorded in `<state_dir>/identity` together with the ids of the machine, so a
//! metadata server that does not answer at one boot does not make a new machine of it. A machine
//! with other ids (its disk was cloned) chooses again. See docs/decisions/0008.

use std::io::Read;
use std::path::{Path, PathBuf};

use guest_agent_serve_kit::replace::{Access, replace_file};
use serde::{Deserialize, Serialize};

use super::{InstanceSource, identifier, read};

/// Name of the record in the state directory.
pub const FILE: &str = "identity";

/// Most bytes that are read of the record.
const RECORD_MAX: u64 = 64 << 10;

/// The id that identifies a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The id; one plain word, which names a directory.
    pub id: String,
    /// Its source.
    pub source: InstanceSource,
}

/// The saved data about the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    identity: Option<Identity>,
    looks: Looks,
    /// A metadata server has answered on this machine.
    metadata_seen: bool,
}

/// The ids by which the agent recognizes a machine, as far as it can read them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Looks {
    boot: String,
    firmware: Option<String>,
    machine_id: Option<String>,
}

/// Whether this is the recorded machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Same {
    Yes,
    /// No id differs, but a clone could have the same ones.
    Perhaps,
    No,
}

/// How to get the id.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Plan {
    Take(Identity),
    /// Ask the metadata server, and use this if it does not answer.
    Ask {
        otherwise: Identity,
    },
}

/// The saved instance id, for one run of the agent.
#[derive(Debug)]
pub struct Memory {
    path: PathBuf,
    record: Record,
}

/// Why the choice could not be recorded. The agent runs on, and chooses again at its next start.
#[derive(Debug, thiserror::Error)]
#[error("failed to write {}", path.display())]
pub struct RememberError {
    path: PathBuf,
    #[source]
    cause: std::io::Error,
}

// === impl Memory ===

impl Memory {
    /// Reads the record in this state directory. If it is missing, unreadable or damaged, returns
    /// an empty one.
    #[must_use]
    pub fn load(state_dir: &Path) -> Self {
        let path = state_dir.join(FILE);
        let text = std::fs::File::open(&path).and_then(|file| {
            let mut text = String::new();
            file.take(RECORD_MAX).read_to_string(&mut text).map(|_| text)
        });
        let record = match text {
            Ok(text) => serde_json::from_str::<Record>(&text)
                .inspect_err(|error| {
                    tracing::warn!(
                        path = %path.display(), %error, "the saved instance id was deleted"
                    );
                })
                .ok(),
            Err(_) => None,
        };
        // The agent writes a plain word, so other content means damage.
        let sound =
            |record: &Record| record.identity.as_ref().is_none_or(|known| is_plain(&known.id));
        Self { path, record: record.filter(sound).unwrap_or_default() }
    }

    /// The id of this machine. Calls `ask` at most once, and not at all when the id is configured,
    /// or the machine certainly is the recorded one.
    pub async fn identify(
        &mut self,
        configured: &str,
        ask: impl AsyncFnOnce() -> Option<String>,
    ) -> Identity {
        if !configured.is_empty() {
            return Identity { id: configured.to_owned(), source: InstanceSource::Given };
        }
        let looks = Looks::of(Path::new("/"));
        let identity = match self.plan(&looks) {
            Plan::Take(identity) => identity,
            Plan::Ask { otherwise } => match ask().await {
                Some(id) => {
                    self.record.metadata_seen = true;
                    Identity { id, source: InstanceSource::Metadata }
                }
                None => otherwise,
            },
        };
        let before = self.record.clone();
        self.record.looks = looks;
        self.record.identity = Some(identity.clone());
        self.save_if_changed(&before);
        identity
    }

    /// Whether a metadata server answered on this machine before.
    #[must_use]
    pub fn has_seen_metadata(&self) -> bool {
        self.record.metadata_seen
    }

    /// A metadata server answers.
    pub fn see_metadata(&mut self) {
        let before = self.record.clone();
        self.record.metadata_seen = true;
        self.save_if_changed(&before);
    }

    /// The metadata server gave another instance id: the next start uses it.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn become_another(&mut self, id: &str) -> Result<(), RememberError> {
        let identity = Identity { id: id.to_owned(), source: InstanceSource::Metadata };
        self.record.identity = Some(identity);
        self.save()
    }

    fn plan(&self, looks: &Looks) -> Plan {
        let Some(known) = &self.record.identity else {
            let otherwise = local(looks);
            // An agent that had no record yet has its directory here already.
            let home = self.path.parent().map(|dir| dir.join(&otherwise.id).join("store"));
            let settled = home.is_some_and(|home| home.exists());
            return if settled { Plan::Take(otherwise) } else { Plan::Ask { otherwise } };
        };
        match self.record.looks.compare(looks) {
            Same::Yes => Plan::Take(known.clone()),
            Same::Perhaps if known.source == InstanceSource::Metadata => {
                Plan::Ask { otherwise: known.clone() }
            }
            Same::Perhaps => Plan::Take(known.clone()),
            Same::No => Plan::Ask { otherwise: local(looks) },
        }
    }

    fn save_if_changed(&self, before: &Record) {
        if self.record != *before
            && let Err(error) = self.save()
        {
            use guest_agent_actors::error::Chain;
            tracing::warn!(error = %Chain(&error), "the instance id was not saved");
        }
    }

    fn save(&self) -> Result<(), RememberError> {
        let failed = |cause| RememberError { path: self.path.clone(), cause };
        let text = serde_json::to_vec_pretty(&self.record).map_err(|error| failed(error.into()))?;
        replace_file(&self.path, &text, Access::PRIVATE).map_err(failed)
    }
}

// === impl Looks ===

impl Looks {
    fn of(root: &Path) -> Self {
        let word = |file: &str| identifier(&read(&root.join(file)).ok()?);
        Self {
            boot: read(&root.join("proc/sys/kernel/random/boot_id"))
                .map(|id| id.trim().to_owned())
                .unwrap_or_default(),
            firmware: word("sys/class/dmi/id/product_uuid"),
            machine_id: word("etc/machine-id"),
        }
    }

    fn compare(&self, now: &Self) -> Same {
        let pairs = [(&self.firmware, &now.firmware), (&self.machine_id, &now.machine_id)];
        let same = |(before, now): (&Option<String>, &Option<String>)| {
            Some(before.as_ref()? == now.as_ref()?)
        };
        let [firmware, machine_id] = pairs.map(same);
        match (firmware, machine_id) {
            _ if !self.boot.is_empty() && self.boot == now.boot => Same::Yes,
            (Some(true), _) => Same::Yes,
            (Some(false), _) | (None, Some(false)) => Same::No,
            (None, Some(true) | None) => Same::Perhaps,
        }
    }
}

/// The id from the machine's own files.
fn local(looks: &Looks) -> Identity {
    if let Some(id) = looks.firmware.as_ref().or(looks.machine_id.as_ref()) {
        return Identity { id: id.clone(), source: InstanceSource::Machine };
    }
    tracing::warn!("the machine has no id of its own; the agent makes one and saves it");
    Identity { id: uuid::Uuid::new_v4().to_string(), source: InstanceSource::Random }
}

/// Whether it can name a directory, and is one plain name.
pub(crate) fn is_plain(id: &str) -> bool {
    let plain = id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    plain && (1..=64).contains(&id.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(boot: &str, firmware: Option<&str>, machine_id: Option<&str>) -> Looks {
        Looks {
            boot: boot.to_owned(),
            firmware: firmware.map(str::to_owned),
            machine_id: machine_id.map(str::to_owned),
        }
    }

    fn remembered(id: &str, source: InstanceSource, looks: Looks) -> Memory {
        let identity = Some(Identity { id: id.to_owned(), source });
        let record = Record { identity, looks, metadata_seen: false };
        Memory { path: "/nowhere/identity".into(), record }
    }

    fn ids(plan: &Plan) -> (&str, &str) {
        match plan {
            Plan::Take(identity) => ("take", &identity.id),
            Plan::Ask { otherwise } => ("ask, or", &otherwise.id),
        }
    }

    #[track_caller]
    fn check(memory: &Memory, now: &Looks, expected: (&str, &str)) {
        assert_eq!(ids(&memory.plan(now)), expected);
    }

    #[test]
    fn a_silent_metadata_server_does_not_make_another_machine() {
        let metadata = InstanceSource::Metadata;
        let memory = remembered("42", metadata, looks("b1", Some("f1"), Some("m1")));
        check(&memory, &looks("b1", None, None), ("take", "42"));
        check(&memory, &looks("b2", Some("f1"), Some("m1")), ("take", "42"));
        // Without the firmware's uuid a clone would look the same, so the id of the metadata server
        // counts.
        check(&memory, &looks("b2", None, Some("m1")), ("ask, or", "42"));
    }

    #[test]
    fn a_metadata_server_that_appears_later_does_not_either() {
        let memory = remembered("m1", InstanceSource::Machine, looks("b1", None, Some("m1")));
        check(&memory, &looks("b2", None, Some("m1")), ("take", "m1"));
        // The same with a firmware uuid that could be read only once.
        check(&memory, &looks("b2", Some("f1"), Some("m1")), ("take", "m1"));
    }

    #[test]
    fn a_cloned_disk_is_another_machine() {
        for source in [InstanceSource::Metadata, InstanceSource::Machine] {
            let memory = remembered("42", source, looks("b1", Some("f1"), Some("m1")));
            check(&memory, &looks("b2", Some("f2"), Some("m1")), ("ask, or", "f2"));
            let memory = remembered("42", source, looks("b1", None, Some("m1")));
            check(&memory, &looks("b2", None, Some("m2")), ("ask, or", "m2"));
        }
    }

    #[tokio::test]
    async fn the_choice_is_written_down_and_read_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut memory = Memory::load(dir.path());
        let given = memory.identify("mine", async || panic!("asked")).await;
        assert_eq!(given.source, InstanceSource::Given);
        let first = memory.identify("", async || Some("42".to_owned())).await;
        assert_eq!((&*first.id, first.source), ("42", InstanceSource::Metadata));
        let mut memory = Memory::load(dir.path());
        assert!(memory.has_seen_metadata());
        assert_eq!(memory.identify("", async || None).await, first);
        memory.become_another("43").expect("written");
        assert_eq!(Memory::load(dir.path()).identify("", async || None).await.id, "43");
    }

    #[tokio::test]
    async fn a_damaged_record_is_none() {
        for text in [
            "",
            "{",
            r#"{"identity": {"id": "../x", "source": "Metadata"}, "looks": {"boot": ""}, "metadata_seen": true}"#,
        ] {
            let dir = tempfile::tempdir().expect("a directory");
            std::fs::write(dir.path().join(FILE), text).expect("written");
            let mut memory = Memory::load(dir.path());
            assert!(!memory.has_seen_metadata(), "{text}");
            assert_eq!(memory.identify("", async || Some("42".to_owned())).await.id, "42");
        }
    }

    #[tokio::test]
    async fn an_agent_from_before_keeps_its_home() {
        let dir = tempfile::tempdir().expect("a directory");
        let looks = looks("b", Some("f1"), None);
        let memory = Memory::load(dir.path());
        check(&memory, &looks, ("ask, or", "f1"));
        std::fs::create_dir_all(dir.path().join("f1/store")).expect("made");
        check(&memory, &looks, ("take", "f1"));
    }
}
