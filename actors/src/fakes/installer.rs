//! Files of plugins, in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;

use crate::fakes::fate::{Decider, Fact};
use crate::fakes::{Answer, Script, Shared};
use crate::model::id::{PluginName, RevisionId, Sha256Digest};
use crate::model::spec::PluginSpec;
use crate::ports::{
    Arrival, Cause, InstallError, InstallStep, Installer, Progress, ProgressSender, RemoveError,
};

/// An installer whose disk is a set of names.
pub struct FakeInstaller(InstallerHandle);

/// Scripts a [`FakeInstaller`] and reads the calls that it received. Lives on when the agent does
/// not.
#[derive(Clone)]
pub struct InstallerHandle {
    disk: Shared<Disk>,
    script: Shared<Script>,
}

#[derive(Default)]
struct Disk {
    installed: BTreeSet<(String, String)>,
    /// Local revisions that were looked at. No order takes them away.
    local: BTreeSet<(String, String)>,
    current: BTreeMap<String, String>,
    records: BTreeMap<(String, String), Vec<u8>>,
    replaced: BTreeMap<String, Sha256Digest>,
    downloads: Vec<(String, String)>,
    under_way: BTreeMap<String, u32>,
    mistakes: Vec<String>,
}

/// Counts what touches the files of a plugin right now, also when it is dropped.
struct Turn<'a>(&'a Shared<Disk>, String);

/// An installer with nothing on its disk.
#[must_use]
pub fn installer() -> (FakeInstaller, InstallerHandle) {
    let handle = InstallerHandle {
        disk: Shared::new(Disk::default()),
        script: Shared::new(Script::default()),
    };
    (FakeInstaller(handle.clone()), handle)
}

// === impl InstallerHandle ===

impl InstallerHandle {
    /// What the next downloads of a plugin do.
    pub fn downloads(&self, name: &str, answers: &[Answer]) {
        self.script.script("download", name, answers);
    }

    /// Lets a held download of a plugin go on.
    pub fn release(&self, name: &str) {
        self.script.release("download", name);
    }

    /// What the next looks at a local plugin's files say.
    pub fn preflights(&self, name: &str, answers: &[Answer]) {
        self.script.script("preflight", name, answers);
    }

    /// Replaces the entry point of a local plugin by a file with this SHA-256, without notice to
    /// the agent.
    pub fn replace(&self, name: &str, content: Sha256Digest) {
        self.disk.with(|disk| disk.replaced.insert(name.to_owned(), content));
    }

    /// What the next deletions of everything of a plugin do.
    pub fn removals(&self, name: &str, answers: &[Answer]) {
        self.script.script("remove", name, answers);
    }

    /// What the next deletions of one revision of a plugin do.
    pub fn discards(&self, name: &str, answers: &[Answer]) {
        self.script.script("discard", name, answers);
    }

    /// What the next activations of a plugin's revisions do.
    pub fn activations(&self, name: &str, answers: &[Answer]) {
        self.script.script("activate", name, answers);
    }

    /// Archives that were fetched so far, as plugin and revision.
    #[must_use]
    pub fn downloaded(&self) -> Vec<(String, String)> {
        self.disk.with(|disk| disk.downloads.clone())
    }

    /// Revisions of a plugin that are on the disk.
    #[must_use]
    pub fn on_disk(&self, name: &str) -> Vec<String> {
        self.disk.with(|disk| {
            let all = disk.installed.iter().chain(&disk.local);
            let of_it = all.filter(|(plugin, _)| plugin == name);
            of_it.map(|(_, revision)| revision.clone()).collect()
        })
    }

    /// The revision that a plugin's `current` link points at.
    #[must_use]
    pub fn current(&self, name: &str) -> Option<String> {
        self.disk.with(|disk| disk.current.get(name).cloned())
    }

    /// The record beside a plugin's revision.
    #[must_use]
    pub fn record(&self, name: &str, revision: &str) -> Option<Vec<u8>> {
        let key = (name.to_owned(), revision.to_owned());
        self.disk.with(|disk| disk.records.get(&key).cloned())
    }

    /// Calls that no agent should have made.
    #[must_use]
    pub fn mistakes(&self) -> Vec<String> {
        self.disk.with(|disk| disk.mistakes.clone())
    }

    pub(super) fn fate(&self) -> Decider {
        self.script.fate()
    }

    fn turn(&self, name: &PluginName) -> Turn<'_> {
        let name = name.to_string();
        self.disk.with(|disk| {
            let under_way = disk.under_way.entry(name.clone()).or_default();
            *under_way += 1;
            if *under_way > 1 {
                disk.mistakes.push(format!("files of {name} are changed from two sides"));
            }
        });
        Turn(&self.disk, name)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.with(|disk| *disk.under_way.entry(self.1.clone()).or_insert(1) -= 1);
    }
}

// === impl FakeInstaller ===

#[async_trait]
impl Installer for FakeInstaller {
    async fn install(
        &self,
        spec: Arc<PluginSpec>,
        progress: ProgressSender,
    ) -> Result<(), InstallError> {
        let InstallerHandle { disk, script } = &self.0;
        let _turn = self.0.turn(&spec.name);
        let key = (spec.name.to_string(), spec.revision.to_string());
        if spec.is_local() {
            script
                .answer("preflight", spec.name.as_str())
                .await
                .map_err(|cause| InstallError { step: InstallStep::Prepare, cause })?;
            disk.with(|disk| disk.local.insert(key));
            return Ok(());
        }
        if disk.with(|disk| disk.installed.contains(&key)) {
            return Ok(());
        }
        disk.with(|disk| disk.downloads.push(key.clone()));
        progress.send_replace(Progress {
            received: 512,
            total: Some(1024),
            attempt: 1,
            held_up: None,
            arrival: Arrival::default(),
        });
        script
            .answer("download", spec.name.as_str())
            .await
            .map_err(|cause| InstallError { step: InstallStep::Download, cause })?;
        script
            .answer("unpack", &format!("{} {}", key.0, key.1))
            .await
            .map_err(|cause| InstallError { step: InstallStep::Unpack, cause })?;
        disk.with(|disk| disk.installed.insert(key));
        self.0.fate().happened(Fact::Installed(&spec));
        Ok(())
    }

    async fn content(&self, spec: &PluginSpec) -> Result<Sha256Digest, InstallError> {
        let replaced = self.0.disk.with(|disk| disk.replaced.get(spec.name.as_str()).copied());
        Ok(replaced.unwrap_or_else(|| spec.source.sha256()))
    }

    async fn activate(&self, name: &PluginName, revision: &RevisionId) -> Result<(), InstallError> {
        let InstallerHandle { disk, script } = &self.0;
        let failed = |cause| InstallError { step: InstallStep::Activate, cause };
        script.answer("activate", name.as_str()).await.map_err(failed)?;
        let (name, revision) = (name.to_string(), revision.to_string());
        disk.with(|disk| {
            if !disk.installed.contains(&(name.clone(), revision.clone())) {
                disk.mistakes.push(format!("{name} {revision} is activated but not on disk"));
                return Err(failed("the revision is not on disk".into()));
            }
            disk.current.insert(name, revision);
            Ok(())
        })
    }

    async fn discard(&self, name: &PluginName, revision: &RevisionId) -> Result<(), RemoveError> {
        let InstallerHandle { disk, script } = &self.0;
        let _turn = self.0.turn(name);
        let what = format!("{name} {revision}");
        let failed = |cause| RemoveError { what, cause };
        script.answer("discard", name.as_str()).await.map_err(failed)?;
        let key = (name.to_string(), revision.to_string());
        disk.with(|disk| (disk.installed.remove(&key), disk.records.remove(&key)));
        self.0.fate().happened(Fact::Deleted(name.as_str(), Some(revision.as_str())));
        Ok(())
    }

    async fn keep_record(
        &self,
        name: &PluginName,
        revision: &RevisionId,
        record: Option<Vec<u8>>,
    ) -> Result<(), Cause> {
        let key = (name.to_string(), revision.to_string());
        self.0.disk.with(|disk| match record {
            Some(record) if disk.installed.contains(&key) => drop(disk.records.insert(key, record)),
            Some(_) => {}
            None => disk.records.retain(|(plugin, _), _| *plugin != key.0),
        });
        Ok(())
    }

    async fn remove(&self, name: &PluginName) -> Result<(), RemoveError> {
        let InstallerHandle { disk, script } = &self.0;
        let _turn = self.0.turn(name);
        let failed = |cause| RemoveError { what: name.to_string(), cause };
        script.answer("remove", name.as_str()).await.map_err(failed)?;
        disk.with(|disk| {
            disk.installed.retain(|(plugin, _)| plugin != name.as_str());
            disk.records.retain(|(plugin, _), _| plugin != name.as_str());
            disk.current.remove(name.as_str());
        });
        self.0.fate().happened(Fact::Deleted(name.as_str(), None));
        Ok(())
    }
}
