//! A store of files, for a control plane on one machine: simple, durable, no engine.
//!
//! Two files per resource, named by the SHA-256 of the resource id because ids hold slashes:
//! `<hash>.agent` holds the data that must survive (desired state, pending configurations, events),
//! `<hash>.reports` the data that a power failure may lose (last reports). A file is a header
//! (magic, SHA-256 of the rest) and a protobuf message. It is replaced whole: the new file is
//! written beside it, flushed and renamed, then the directory is flushed. So a reader sees the old
//! or the new content, and never a mixture.
//!
//! A file that fails its checksum is renamed to `<name>.damaged-<n>` and listed by
//! [`FileStore::set_aside`]; the agent then starts from an empty record and the others are not
//! touched.
//!
//! Nothing is cached: an idle agent costs no memory. The price is that each change rewrites the
//! agent's file, which the event bounds keep to about a mebibyte.

use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use async_trait::async_trait;
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::agent_controlplane::{ConfigurePluginStates, PluginEventMessage};
use prost::Message;
use sha2::{Digest, Sha256};

use super::record::{AgentRecord, EventIndex, ReportsRecord};
use super::{Appended, PendingConfiguration, Report, Reports, Store, StoreBounds, StoreError};
use crate::chain::Chain;
use crate::gateway::event::AgentEvent;
use crate::hex::hex;

/// First bytes of every file; the digit is the version of the format.
const MAGIC: &[u8; 8] = b"gacpst1\n";
const CHECKSUM_BYTES: usize = 32;
/// Number of locks. Resources whose hashes share a lock wait for each other.
const LOCKS: usize = 32;

/// Keeps every agent in files of one directory. A clone is the same store.
#[derive(Clone, Debug)]
pub struct FileStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    directory: PathBuf,
    bounds: StoreBounds,
    locks: [Mutex<()>; LOCKS],
    /// Files of agents in the directory; there are at most two per agent.
    files: AtomicUsize,
    set_aside: Mutex<Vec<PathBuf>>,
}

/// Whether a change has to survive a power failure.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Durability {
    Flushed,
    Unflushed,
}

// === impl FileStore ===

impl FileStore {
    /// Opens the directory, creating it (owner-only) if it is missing, and checks every file in it:
    /// damaged ones are set aside, half-written ones deleted. Blocks; call it at start.
    ///
    /// # Errors
    /// When the directory cannot be created or read. A damaged file is not an error.
    pub fn open(directory: impl Into<PathBuf>, bounds: StoreBounds) -> Result<Self, StoreError> {
        let directory = directory.into();
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(|source| failed("create", &directory, source))?;
        let inner = Inner {
            directory,
            bounds,
            locks: std::array::from_fn(|_| Mutex::new(())),
            files: AtomicUsize::new(0),
            set_aside: Mutex::default(),
        };
        inner.check_all()?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The damaged files that were set aside since the store was opened, under their new names.
    pub fn set_aside(&self) -> Vec<PathBuf> {
        self.inner.set_aside.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs `work` off the runtime's thread while no other work touches this resource.
    async fn locked<T: Send + 'static>(
        &self,
        resource: &str,
        work: impl FnOnce(&Inner, &str) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let inner = self.inner.clone();
        let resource = resource.to_owned();
        tokio::task::spawn_blocking(move || {
            let mut hasher = DefaultHasher::new();
            resource.hash(&mut hasher);
            let shard = usize::try_from(hasher.finish() % LOCKS as u64).unwrap_or(0);
            let _locked = inner.locks[shard].lock().unwrap_or_else(PoisonError::into_inner);
            work(&inner, &resource)
        })
        .await
        .unwrap_or(Err(StoreError::Interrupted))
    }

    async fn change<T: Send + 'static>(
        &self,
        resource: &str,
        change: impl FnOnce(&mut AgentRecord) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        self.locked(resource, |inner, resource| {
            let path = inner.path(resource, "agent");
            let before: AgentRecord = inner.load(&path)?;
            let mut record = before.clone();
            record.resource = resource.to_owned();
            let answer = change(&mut record);
            if record != before {
                inner.save(&path, &record, Durability::Flushed)?;
            }
            Ok(answer)
        })
        .await
    }

    async fn read<T: Send + 'static>(
        &self,
        resource: &str,
        read: impl FnOnce(AgentRecord, &str) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        self.locked(resource, |inner, resource| {
            Ok(read(inner.load(&inner.path(resource, "agent"))?, resource))
        })
        .await
    }
}

#[async_trait]
impl Store for FileStore {
    async fn record_configuration(
        &self,
        resource: &str,
        message_id: &str,
        states: &ConfigurePluginStates,
    ) -> Result<(), StoreError> {
        let (message_id, states) = (message_id.to_owned(), states.clone());
        self.change(resource, move |agent| agent.record_configuration(&message_id, &states)).await
    }

    async fn settle_configuration(
        &self,
        resource: &str,
        message_id: &str,
    ) -> Result<(), StoreError> {
        let message_id = message_id.to_owned();
        self.change(resource, move |agent| agent.settle_configuration(&message_id)).await
    }

    async fn pending_configurations(
        &self,
        resource: &str,
    ) -> Result<Vec<PendingConfiguration>, StoreError> {
        self.read(resource, |agent, _| agent.pending_configurations()).await
    }

    async fn desired(&self, resource: &str) -> Result<Vec<ConfigurePlugin>, StoreError> {
        self.read(resource, |agent, _| agent.desired).await
    }

    async fn append_event(
        &self,
        resource: &str,
        message_id: &str,
        received_at: SystemTime,
        event: &PluginEventMessage,
    ) -> Result<Appended, StoreError> {
        let bounds = self.inner.bounds;
        let (message_id, event) = (message_id.to_owned(), event.clone());
        self.change(resource, move |agent| {
            let mut index = EventIndex::of(agent);
            agent.append_event(&mut index, &message_id, received_at, &event, bounds)
        })
        .await
    }

    async fn events(&self, resource: &str) -> Result<Vec<AgentEvent>, StoreError> {
        self.read(resource, |agent, resource| agent.agent_events(resource)).await
    }

    async fn record_report(
        &self,
        resource: &str,
        at: SystemTime,
        report: Report,
    ) -> Result<(), StoreError> {
        self.locked(resource, move |inner, resource| {
            let path = inner.path(resource, "reports");
            let mut record: ReportsRecord = inner.load(&path)?;
            record.record(at, report);
            inner.save(&path, &record, Durability::Unflushed)
        })
        .await
    }

    async fn reports(&self, resource: &str) -> Result<Reports, StoreError> {
        self.locked(resource, |inner, resource| {
            let record: ReportsRecord = inner.load(&inner.path(resource, "reports"))?;
            Ok(record.reports())
        })
        .await
    }

    async fn resources(&self) -> Result<Vec<String>, StoreError> {
        let inner = self.inner.clone();
        tokio::task::spawn_blocking(move || inner.resources())
            .await
            .unwrap_or(Err(StoreError::Interrupted))
    }
}

// === impl Inner ===

impl Inner {
    fn path(&self, resource: &str, extension: &str) -> PathBuf {
        let name = hex(&Sha256::digest(resource));
        self.directory.join(format!("{name}.{extension}"))
    }

    fn load<M: Message + Default>(&self, path: &Path) -> Result<M, StoreError> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(M::default()),
            Err(error) => return Err(failed("read", path, error)),
        };
        if let Some(message) = unframe(&bytes).and_then(|payload| M::decode(payload).ok()) {
            return Ok(message);
        }
        self.put_aside(path)?;
        Ok(M::default())
    }

    fn save<M: Message>(
        &self,
        path: &Path,
        message: &M,
        durability: Durability,
    ) -> Result<(), StoreError> {
        let is_new = !path.exists();
        if is_new && self.files.load(Ordering::Relaxed) >= self.bounds.agents.saturating_mul(2) {
            return Err(StoreError::Full(self.bounds.agents));
        }
        let beside = path.with_added_extension("new");
        let write = || -> io::Result<()> {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&beside)?;
            file.write_all(&frame(&message.encode_to_vec()))?;
            if durability == Durability::Flushed {
                file.sync_all()?;
            }
            fs::rename(&beside, path)?;
            if durability == Durability::Flushed {
                File::open(&self.directory)?.sync_all()?;
            }
            Ok(())
        };
        write().map_err(|source| failed("write", path, source))?;
        if is_new {
            self.files.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Renames a damaged file to the first free name, so that its data is neither lost nor trusted.
    fn put_aside(&self, path: &Path) -> Result<(), StoreError> {
        let mut free = 1_u32;
        let aside = loop {
            let candidate = path.with_added_extension(format!("damaged-{free}"));
            if !candidate.exists() {
                break candidate;
            }
            free += 1;
        };
        fs::rename(path, &aside).map_err(|source| failed("set aside", path, source))?;
        self.files.fetch_sub(1, Ordering::Relaxed);
        tracing::warn!(file = %aside.display(), "a damaged file was set aside");
        self.set_aside.lock().unwrap_or_else(PoisonError::into_inner).push(aside);
        Ok(())
    }

    fn files(&self) -> Result<Vec<PathBuf>, StoreError> {
        let list = || -> io::Result<Vec<PathBuf>> {
            fs::read_dir(&self.directory)?.map(|entry| Ok(entry?.path())).collect()
        };
        list().map_err(|source| failed("list", &self.directory, source))
    }

    fn check_all(&self) -> Result<(), StoreError> {
        for path in self.files()? {
            let extension = path.extension().and_then(|extension| extension.to_str());
            if matches!(extension, Some("agent" | "reports")) {
                self.files.fetch_add(1, Ordering::Relaxed);
            }
            let checked = match extension {
                Some("agent") => self.load::<AgentRecord>(&path).map(drop),
                Some("reports") => self.load::<ReportsRecord>(&path).map(drop),
                Some("new") => {
                    fs::remove_file(&path).map_err(|source| failed("delete", &path, source))
                }
                // The file is not the store's, or was set aside before.
                _ => Ok(()),
            };
            if let Err(error) = checked {
                // The operation that needs this file reports the error; the other files stay
                // usable.
                tracing::error!(error = %Chain(&error), "a file of the store cannot be used");
            }
        }
        Ok(())
    }

    fn resources(&self) -> Result<Vec<String>, StoreError> {
        let mut resources = Vec::new();
        for path in self.files()? {
            if path.extension().is_some_and(|extension| extension == "agent") {
                // Read without the lock: files are replaced whole. A damaged one is left to `load`.
                if let Some(record) = fs::read(&path)
                    .ok()
                    .and_then(|bytes| AgentRecord::decode(unframe(&bytes)?).ok())
                {
                    resources.push(record.resource);
                }
            }
        }
        resources.sort();
        Ok(resources)
    }
}

fn frame(payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MAGIC.len() + CHECKSUM_BYTES + payload.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&Sha256::digest(payload));
    bytes.extend_from_slice(payload);
    bytes
}

/// The payload, if the header and the checksum are right.
fn unframe(bytes: &[u8]) -> Option<&[u8]> {
    let (checksum, payload) = bytes.strip_prefix(MAGIC)?.split_at_checked(CHECKSUM_BYTES)?;
    (Sha256::digest(payload).as_slice() == checksum).then_some(payload)
}

fn failed(operation: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::Io { operation, path: path.to_owned(), source }
}
