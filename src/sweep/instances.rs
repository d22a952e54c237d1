//! Folders of instances that this machine no longer is: a disk that was cloned brings them along.
//!
//! A folder goes only if it is certainly one of an agent like this one: a real folder of our own
//! user with a store in it whose generation mark checks out. It stays while another agent holds its
//! store, while a process runs from it, and while it holds anything that this agent did not put
//! there. The processes are handed to the sweeper, so that the folder goes when the last of them
//! has ended. Blocks.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use guest_agent_actors::error::Chain;
use guest_agent_actors::ports::{SweepFate, SweepManner, SweepReport};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::alive::Alive;
use super::bounds::Bounds;
use super::config::SweepConfig;
use super::living::Living;
use crate::install::cache::archive_store::Kind;
use crate::install::leftovers::{self, shown};
use crate::os::remove::DeleteError;
use crate::store;

/// What this agent keeps in the state directory beside the folders of instances.
const OF_THE_AGENT: [&str; 3] = ["lock", crate::hostinfo::IDENTITY_FILE, ENROLMENT];

/// Where the machine's certificate is; see the wing `enroll`.
const ENROLMENT: &str = crate::enroll::FOLDER;

/// What this agent keeps in the folder of an instance, in the order in which it is deleted: the
/// store, which proves whose the folder is, goes last.
const OF_AN_INSTANCE: [&str; 5] = ["plugins", "state", "cache", "spool", "store"];

/// Of these, the folders of archives, in which the names say that they are an agent's.
const OF_ARCHIVES: [&str; 2] = ["cache", "spool"];

/// One search for folders of other instances.
pub(super) struct Search {
    pub(super) config: SweepConfig,
    pub(super) log_dir: PathBuf,
    pub(super) may_go: bool,
    pub(super) alive: Arc<Alive>,
    /// Takes the processes that keep a folder where it is.
    pub(super) living: Arc<Living>,
    pub(super) manner: SweepManner,
}

/// Why a folder stays.
enum Stays {
    /// For a reason that people should know.
    Because(&'static str),
    Failed(String),
}

// === impl Search ===

impl Search {
    /// Deletes what may go.
    pub(super) fn sweep(&self, bounds: &Bounds, report: &mut SweepReport) {
        let at = &self.config.state_dir;
        let listed = leftovers::open(at).map_err(|errno| errno.to_string()).and_then(|opened| {
            let listed =
                leftovers::names(&opened, at).map_err(|error| Chain(&error).to_string())?;
            Ok((opened, listed))
        });
        let (state_dir, (names, whole)) = match listed {
            Ok(listed) => listed,
            Err(why) => return report.push(shown(at), SweepFate::Failed, why),
        };
        report.unfinished |= !whole;
        for name in names {
            if bounds.go_on().is_err() {
                report.unfinished = true;
                return;
            }
            if name == self.config.instance || OF_THE_AGENT.contains(&name.as_str()) {
                continue;
            }
            let path = at.join(&name);
            if self.holds_ours(&path) {
                continue;
            }
            let (fate, why) = match self.look_at(&state_dir, &name) {
                Ok(()) if self.manner == SweepManner::Pretend => {
                    (SweepFate::WouldDelete, "it belongs to another instance".to_owned())
                }
                Ok(()) => (SweepFate::Deleted, "it belonged to another instance".to_owned()),
                Err(Stays::Because(why)) => (SweepFate::LeftAlone, why.to_owned()),
                Err(Stays::Failed(why)) => (SweepFate::Failed, why),
            };
            report.push(shown(&path), fate, why);
        }
    }

    fn look_at(&self, state_dir: &OwnedFd, name: &str) -> Result<(), Stays> {
        let at = &self.config.state_dir;
        let path = at.join(name);
        if leftovers::trash_of(name).is_some() {
            return match self.manner {
                SweepManner::Pretend => Ok(()),
                SweepManner::Delete => leftovers::destroy(state_dir, at, name).map_err(stays),
            };
        }
        let folder = match rustix::fs::openat(state_dir, name, FOLDER, Mode::empty()) {
            Ok(folder) => folder,
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(Stays::Because("it is not a folder of an instance"));
            }
            Err(errno) => return Err(Stays::Failed(format!("cannot open it: {errno}"))),
        };
        let stat = rustix::fs::fstat(&folder).map_err(|errno| Stays::Failed(errno.to_string()))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(Stays::Because("it belongs to another user"));
        }
        let (names, whole) = leftovers::names(&folder, &path).map_err(stays)?;
        let stores: Vec<&String> = names.iter().filter(|name| is_store(name)).collect();
        let is_ours = stores.iter().any(|store| has_mark(&folder, store))
            || are_remains(&folder, &path, &names);
        if !whole || !is_ours {
            return Err(Stays::Because("nothing proves that it is a folder of an instance"));
        }
        // Held until the end, so that no agent begins to use it meanwhile.
        let _held: Vec<File> = stores
            .iter()
            .filter_map(|store| hold(&folder, store).transpose())
            .collect::<Result<_, _>>()
            .map_err(|()| Stays::Because("another agent uses it"))?;
        let living = self.alive.pids_below(&path);
        if !living.is_empty() {
            self.living.hold(living);
            return Err(Stays::Because(
                "a process runs from it; the agent deletes it when the process has ended",
            ));
        }
        if !self.may_go {
            return Err(Stays::Because(
                "the instance id is detected, not configured, so it is kept for now; set \
                 instance.id to delete it at once",
            ));
        }
        let is_foreign = |name: &String| !is_known(name) && leftovers::trash_of(name).is_none();
        let foreign = names.iter().any(is_foreign);
        if self.manner == SweepManner::Pretend {
            return match foreign {
                false => Ok(()),
                true => Err(Stays::Because("some of its files are not ours; the rest would go")),
            };
        }
        drop(folder);
        if !foreign {
            return leftovers::vanish(state_dir, at, name).map_err(stays);
        }
        let folder = rustix::fs::openat(state_dir, name, FOLDER, Mode::empty())
            .map_err(|errno| Stays::Failed(errno.to_string()))?;
        let mut ours: Vec<&String> = names.iter().filter(|name| !is_foreign(name)).collect();
        ours.sort_by_key(|name| OF_AN_INSTANCE.iter().position(|known| known == name));
        for name in ours {
            leftovers::vanish(&folder, &path, name).map_err(stays)?;
        }
        Err(Stays::Because("some of its files are not ours; the rest was deleted"))
    }

    /// Whether one of the agent's other places is in there.
    fn holds_ours(&self, path: &Path) -> bool {
        let places = [&self.config.runtime_dir, &self.config.local_plugin_dir, &self.log_dir];
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let folder = real(path);
        places.into_iter().any(|place| real(place).starts_with(&folder))
    }
}

const FOLDER: OFlags =
    OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::RDONLY);

const FILE: OFlags =
    OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::RDONLY);

fn is_store(name: &str) -> bool {
    let number = name.strip_prefix("store.damaged-");
    name == "store" || number.is_some_and(|number| number.parse::<u64>().is_ok())
}

fn is_known(name: &str) -> bool {
    OF_AN_INSTANCE.contains(&name) || is_store(name)
}

/// Whether these names are all that is left of an instance: folders of archives, and nothing in
/// them that an agent did not name. Earlier agents left them when they deleted the store.
fn are_remains(instance: &OwnedFd, at: &Path, names: &[String]) -> bool {
    let is_of_archives = |name: &String| {
        if !OF_ARCHIVES.contains(&name.as_str()) {
            return false;
        }
        let Ok(folder) = rustix::fs::openat(instance, name.as_str(), FOLDER, Mode::empty()) else {
            return false;
        };
        leftovers::names(&folder, &at.join(name)).is_ok_and(|(archives, whole)| {
            whole && archives.iter().all(|archive| Kind::of(archive) != Kind::Odd)
        })
    };
    !names.is_empty() && names.iter().all(is_of_archives)
}

/// Whether a store's generation mark is there and checks out.
fn has_mark(instance: &OwnedFd, store: &str) -> bool {
    let read = || -> rustix::io::Result<Vec<u8>> {
        let store = rustix::fs::openat(instance, store, FOLDER, Mode::empty())?;
        let mark = rustix::fs::openat(&store, store::MARK, FILE, Mode::empty())?;
        let mut bytes = Vec::new();
        let read = File::from(mark).take(64).read_to_end(&mut bytes);
        read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(bytes)
    };
    read().is_ok_and(|bytes| store::is_mark(&bytes))
}

/// Holds a store against other agents; an error when one holds it already.
fn hold(instance: &OwnedFd, store: &str) -> Result<Option<File>, ()> {
    let path = format!("{store}/db");
    let is_file = rustix::fs::statat(instance, path.as_str(), AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    if !is_file {
        return Ok(None);
    }
    let opened = rustix::fs::openat(instance, path.as_str(), FILE, Mode::empty());
    let Ok(opened) = opened else { return Ok(None) };
    match rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(opened.into())),
        Err(_) => Err(()),
    }
}

fn stays(error: DeleteError) -> Stays {
    Stays::Failed(Chain(&error).to_string())
}
