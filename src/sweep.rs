//! Deletes files and groups that nothing refers to: the `Sweeper` port.
//!
//! ```text
//! DiskSweeper ─┬─ groups     control groups, and who lives in them
//!              ├─ plugins    revisions, staging, trash; under the plugin's installation turn
//!              ├─ data       what a deletion left of state/
//!              ├─ cache      archives over the bound, and what interrupted installations left
//!              ├─ sockets    no process listens on and no launch will use
//!              ├─ files      logs and tickets of plugins that are gone
//!              └─ instances  whole folders of instances that this machine no longer is
//!                  ▲
//!                alive       what living processes stand in the way (living: until they have ended)
//! ```
//!
//! Called by the sweep actor, which says what must stay. Each part lists first and asks what must
//! stay afterwards, so that whatever came into being meanwhile is not in its list; files of a
//! plugin are deleted with its installations shut out. A thing is deleted only when its name, kind
//! and owner say that this agent made it; anything else stays and is named in the report. No link
//! is followed.
//!
//! What it never does: touch what belongs to a local plugin, the data of a plugin (its own deletion
//! does that), or anything at all while it is unknown what must stay.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use guest_agent_actors::error::Chain;
use guest_agent_actors::model::id::PluginName;
use guest_agent_actors::ports::{
    Claim, ReferenceSet, SweepFate, SweepManner, SweepReport, Sweeper,
};

use crate::install::Pipeline;
use crate::install::leftovers::{self, NAMES_MAX, shown};
use crate::process::launch::{address, ticket};

mod alive;
mod bounds;
mod config;
mod confined;
mod files;
mod groups;
mod instances;
mod keep;
mod living;
mod sockets;

#[cfg(test)]
mod tests;

pub use config::{OtherInstances, SweepConfig};

use alive::Alive;
use bounds::{Bounds, Ended, Whistle};
use keep::Keep;
use living::Living;

/// Most things that one run looks at.
const LOOKS_MAX: usize = 50_000;

/// After this long a run ends where it is.
const RUN_MAX: Duration = Duration::from_secs(300);

/// Sweeps the disk.
pub struct DiskSweeper {
    config: SweepConfig,
    pipeline: Arc<Pipeline>,
    since: Instant,
    /// The processes because of which the last run that deleted left something.
    living: Mutex<Arc<Living>>,
}

/// One run.
struct Run<'a> {
    sweeper: &'a DiskSweeper,
    manner: SweepManner,
    references: Arc<dyn ReferenceSet>,
    bounds: Arc<Bounds>,
    local: Arc<BTreeSet<String>>,
    alive: Arc<Alive>,
    living: Arc<Living>,
    report: SweepReport,
}

// === impl DiskSweeper ===

impl DiskSweeper {
    /// A sweeper of the pipeline's folders and of those in `config`.
    #[must_use]
    pub fn new(config: SweepConfig, pipeline: Arc<Pipeline>) -> Self {
        Self { config, pipeline, since: Instant::now(), living: Mutex::default() }
    }

    fn others_may_go(&self) -> bool {
        match self.config.others {
            OtherInstances::Go => true,
            OtherInstances::GoAfter(wait) => self.since.elapsed() >= wait,
            OtherInstances::Stay => false,
        }
    }

    fn last_living(&self) -> MutexGuard<'_, Arc<Living>> {
        self.living.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Sweeper for DiskSweeper {
    async fn sweep(&self, manner: SweepManner, references: Arc<dyn ReferenceSet>) -> SweepReport {
        let bounds = Arc::new(Bounds::new(LOOKS_MAX, RUN_MAX));
        let _whistle = Whistle(bounds.clone());
        let local_dir = self.config.local_plugin_dir.clone();
        let looked = aside(move || (local_names(&local_dir), Alive::look())).await;
        let mut report = SweepReport::default();
        let (local, alive) = match looked {
            Some((Ok(local), Some(alive))) => (local, alive),
            Some((Err(error), _)) => {
                let why = format!("the agent cannot tell local plugins from others: {error}");
                report.push(shown(&self.config.local_plugin_dir), SweepFate::Failed, why);
                return SweepReport { unfinished: true, ..report };
            }
            Some((_, None)) | None => {
                report.push("/proc", SweepFate::Failed, "the running processes cannot be listed");
                return SweepReport { unfinished: true, ..report };
            }
        };
        let (local, alive) = (Arc::new(local), Arc::new(alive));
        let living = Arc::<Living>::default();
        if manner == SweepManner::Delete {
            *self.last_living() = Arc::clone(&living);
        }
        let run = Run { sweeper: self, manner, references, bounds, local, alive, living, report };
        run.everything().await
    }

    async fn freed(&self) {
        let living = Arc::clone(&self.last_living());
        living.ended().await;
    }
}

// === impl Run ===

impl Run<'_> {
    async fn everything(mut self) -> SweepReport {
        if self.parts().await.is_err() {
            self.report.unfinished = true;
        }
        self.report
    }

    async fn parts(&mut self) -> Result<(), Ended> {
        self.groups().await?;
        self.plugins().await?;
        self.data().await?;
        self.cache().await?;
        self.sockets().await?;
        self.confined().await?;
        let logs = self.sweeper.pipeline.log_dir().to_owned();
        self.files(files::Kind::Log, logs).await?;
        let tickets = self.sweeper.config.runtime_dir.join(ticket::FOLDER);
        self.files(files::Kind::Ticket, tickets).await?;
        self.instances().await
    }

    /// Control groups of removed plugins. A process in one would keep the files below from being
    /// swept.
    async fn groups(&mut self) -> Result<(), Ended> {
        let cgroups = self.sweeper.config.cgroups.clone();
        let existing = aside(move || cgroups.existing()).await.unwrap_or_default();
        for name in existing {
            self.bounds.go_on()?;
            let group = self.sweeper.config.cgroups.group(&name);
            let Some(turn) = self.sweeper.pipeline.turn_to_sweep(&name, self.manner) else {
                let why = "an installation is under way";
                self.report.push(group.path(), SweepFate::Postponed, why);
                continue;
            };
            // With installations shut out: what was installed a moment ago is among these.
            let keep = self.keep().await?;
            match keep.claim(&name) {
                Claim::Revisions(_) => {}
                Claim::Unknown(why) => {
                    // An empty group has no meaning and does no harm.
                    let path = group.path();
                    let is_lived_in = aside(move || !group.members().is_empty());
                    if is_lived_in.await.unwrap_or_default() {
                        self.report.push(path, SweepFate::LeftAlone, why);
                    }
                }
                Claim::Nothing => {
                    let manner = self.manner;
                    self.part(move |report| {
                        let _turn = turn;
                        groups::sweep(&group, manner, report);
                    })
                    .await;
                }
            }
        }
        Ok(())
    }

    /// Folders of plugins, and what deletions of whole folders left.
    async fn plugins(&mut self) -> Result<(), Ended> {
        let at = self.sweeper.pipeline.plugins_dir().to_owned();
        for entry in self.names_in(&at).await {
            self.bounds.go_on()?;
            let path = at.join(&entry);
            if let Some(of) = leftovers::trash_of(&entry) {
                self.trash(&at, &entry, of).await?;
                continue;
            }
            let Ok(name) = entry.parse::<PluginName>() else {
                self.leave(&path, "not a valid plugin name");
                continue;
            };
            let Some(turn) = self.sweeper.pipeline.turn_to_sweep(&name, self.manner) else {
                let why = "an installation is under way";
                self.report.push(shown(&path), SweepFate::Postponed, why);
                continue;
            };
            // With installations shut out: what was installed a moment ago is among these.
            let keep = self.keep().await?;
            let state = self.sweeper.pipeline.state_root().join(&entry);
            let claim = match keep.claim(&name) {
                Claim::Unknown(why) => {
                    self.leave(&path, why);
                    continue;
                }
                Claim::Nothing if self.alive.below(&path) || self.alive.below(&state) => {
                    self.leave(&path, "its plugin is not known, but a process of it lives");
                    continue;
                }
                claim => claim,
            };
            let (manner, bounds) = (self.manner, self.bounds.clone());
            self.part(move |report| {
                turn.sweep(&claim, manner, report, &mut || bounds.go_on().is_ok());
            })
            .await;
        }
        Ok(())
    }

    /// What deletions left among the data of plugins. Data itself is only named: if nobody knows
    /// the plugin, nobody knows either whether the data is missed.
    async fn data(&mut self) -> Result<(), Ended> {
        let at = self.sweeper.pipeline.state_root().to_owned();
        let entries = self.names_in(&at).await;
        let keep = self.keep().await?;
        for entry in entries {
            self.bounds.go_on()?;
            if let Some(of) = leftovers::trash_of(&entry) {
                self.trash(&at, &entry, of).await?;
                continue;
            }
            let why = match entry.parse::<PluginName>().map(|name| keep.claim(&name)) {
                Ok(Claim::Revisions(_)) => continue,
                Ok(Claim::Unknown(why)) => why,
                Ok(Claim::Nothing) => "data of an unknown plugin; delete it if it is not needed",
                Err(_) => "not a valid plugin name",
            };
            self.leave(&at.join(&entry), why);
        }
        Ok(())
    }

    /// Archives that are kept, and what interrupted installations left of some.
    async fn cache(&mut self) -> Result<(), Ended> {
        self.bounds.go_on()?;
        let pipeline = Arc::clone(&self.sweeper.pipeline);
        let (manner, bounds) = (self.manner, self.bounds.clone());
        self.part(move |report| {
            pipeline.sweep_cache(manner, report, &mut || bounds.go_on().is_ok());
        })
        .await;
        Ok(())
    }

    /// What is left of a folder that was being deleted. The removal of that plugin may be at it
    /// now.
    async fn trash(&mut self, at: &Path, entry: &str, of: &str) -> Result<(), Ended> {
        let path = at.join(entry);
        let Ok(name) = of.parse::<PluginName>() else {
            self.leave(&path, "the agent gives no such name");
            return Ok(());
        };
        if self.manner == SweepManner::Pretend {
            let why = "an interrupted deletion left it";
            self.report.push(shown(&path), SweepFate::WouldDelete, why);
            return Ok(());
        }
        let Some(turn) = self.sweeper.pipeline.turn_to_sweep(&name, self.manner) else {
            self.report.push(shown(&path), SweepFate::Postponed, "its plugin uses its files");
            return Ok(());
        };
        let (at, entry) = (at.to_owned(), entry.to_owned());
        self.part(move |report| {
            let _turn = turn;
            let destroyed =
                leftovers::open(&at).map_err(|errno| errno.to_string()).and_then(|parent| {
                    leftovers::destroy(&parent, &at, &entry)
                        .map_err(|error| Chain(&error).to_string())
                });
            let (fate, why) = match destroyed {
                Ok(()) => (SweepFate::Deleted, "an interrupted deletion left it".to_owned()),
                Err(why) => (SweepFate::Failed, why),
            };
            report.push(shown(&at.join(&entry)), fate, why);
        })
        .await;
        Ok(())
    }

    async fn sockets(&mut self) -> Result<(), Ended> {
        let at = self.sweeper.config.runtime_dir.join("plugins");
        let listed = {
            let at = at.clone();
            aside(move || sockets::list(&at)).await
        };
        let listed = self.listed(&at, listed);
        let keep = self.keep().await?;
        let (manner, bounds) = (self.manner, self.bounds.clone());
        self.part(move |report| sockets::sweep(&at, listed, &keep, manner, &bounds, report)).await;
        Ok(())
    }

    async fn confined(&mut self) -> Result<(), Ended> {
        let at = self.sweeper.config.runtime_dir.join(address::OWN_FOLDERS);
        let names = self.names_in(&at).await;
        let keep = self.keep().await?;
        let (manner, bounds) = (self.manner, self.bounds.clone());
        self.part(move |report| confined::sweep(&at, &names, &keep, manner, &bounds, report)).await;
        Ok(())
    }

    async fn files(&mut self, kind: files::Kind, at: PathBuf) -> Result<(), Ended> {
        let names = self.names_in(&at).await;
        let keep = self.keep().await?;
        let (manner, bounds) = (self.manner, self.bounds.clone());
        self.part(move |report| files::sweep(&at, kind, &names, &keep, manner, &bounds, report))
            .await;
        Ok(())
    }

    async fn instances(&mut self) -> Result<(), Ended> {
        self.bounds.go_on()?;
        let search = instances::Search {
            config: self.sweeper.config.clone(),
            log_dir: self.sweeper.pipeline.log_dir().to_owned(),
            may_go: self.sweeper.others_may_go(),
            alive: self.alive.clone(),
            living: self.living.clone(),
            manner: self.manner,
        };
        let bounds = self.bounds.clone();
        self.part(move |report| search.sweep(&bounds, report)).await;
        Ok(())
    }

    /// What must stay, as of now.
    async fn keep(&self) -> Result<Keep, Ended> {
        let references = self.references.now().await.ok_or(Ended)?;
        Ok(Keep { references, local: self.local.clone(), alive: self.alive.clone() })
    }

    async fn names_in(&mut self, at: &Path) -> Vec<String> {
        let path = at.to_owned();
        let listed = aside(move || match leftovers::open(&path) {
            Ok(folder) => {
                leftovers::names(&folder, &path).map_err(|error| Chain(&error).to_string())
            }
            Err(rustix::io::Errno::NOENT) => Ok((Vec::new(), true)),
            Err(errno) => Err(format!("cannot open it: {errno}")),
        });
        let listed = listed.await;
        self.listed(at, listed)
    }

    /// The names that were listed; a listing that failed becomes an item of the report with its
    /// reason.
    fn listed<T>(&mut self, at: &Path, listed: Option<Result<(Vec<T>, bool), String>>) -> Vec<T> {
        match listed.unwrap_or_else(|| Err("the thread that lists it panicked".to_owned())) {
            Ok((names, whole)) => {
                self.report.unfinished |= !whole;
                names
            }
            Err(why) => {
                self.report.push(shown(at), SweepFate::Failed, why);
                Vec::new()
            }
        }
    }

    /// Does a part of the run off the runtime's thread.
    async fn part(&mut self, work: impl FnOnce(&mut SweepReport) + Send + 'static) {
        let done = aside(move || {
            let mut report = SweepReport::default();
            work(&mut report);
            report
        });
        let Some(part) = done.await else {
            self.report.push("", SweepFate::Failed, "a thread of the sweep panicked");
            return;
        };
        self.report.unfinished |= part.unfinished;
        for item in part.items {
            self.report.push(item.path, item.fate, item.why);
        }
    }

    fn leave(&mut self, path: &Path, why: &str) {
        self.report.push(shown(path), SweepFate::LeftAlone, why);
    }
}

/// The names of local plugins: whatever is in their folder.
fn local_names(dir: &Path) -> std::io::Result<BTreeSet<String>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(error),
    };
    let mut names = BTreeSet::new();
    for entry in entries.take(NAMES_MAX) {
        names.insert(entry?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}

/// Runs `work` on a blocking thread. `None` when it panicked.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}
