//! Runs admission plugins and answers their calls: the `AdmissionHost` port.
//!
//! ```text
//!   core ── run ──► process: one line of JSON on its standard input { port, ticket }
//!                      │ gRPC on 127.0.0.1, every call with its ticket
//!   queue ◄─ service ◄─┘   (door: who calls, and may they)
//!   core ── end ──► standard input closed ► 5 s ► SIGKILL
//! ```
//!
//! The port is opened with the first launch and shared by all runs of the plugin; a ticket is valid
//! for one run. `guest_agent_actors::admission` decides what to ask, and what an answer means.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use guest_agent_actors::admission::ProcessRun;
use guest_agent_actors::error::Chain;
use guest_agent_actors::ports::{AdmissionCommand, AdmissionHost, Cause, QueueRecipients};
use guest_agent_serve_kit::connection_counters::ConnectionCounters;
use rand::TryRngCore;
use tokio::net::TcpListener;
use tokio::sync::{OnceCell, oneshot, watch};

mod connections;
mod door;
mod metadata;
mod output;
mod process;
mod service;

pub use door::TicketOwner;
#[cfg(test)]
mod tests;

use door::{Caller, Door};
use process::Running;

/// Longest time for the end of all plugins: their grace period, and a margin.
const CLOSE_WAIT: Duration = Duration::from_secs(7);

/// Why an admission plugin could not be asked.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("the agent cannot listen on any port of the loopback interface")]
    Listen(#[source] io::Error),
    #[error("the kernel returned no random bytes for a ticket")]
    Ticket(#[source] rand::rand_core::OsError),
    #[error(transparent)]
    Process(#[from] process::SpawnError),
}

/// Runs admission plugins as processes of this machine. Cheap to clone; clones share everything.
///
/// Its methods must be called on the main thread of the runtime: the kernel kills a plugin when the
/// thread that started it ends (PR_SET_PDEATHSIG).
#[derive(Clone)]
pub struct PluginHost {
    shared: Arc<Shared>,
}

struct Shared {
    door: Arc<Door>,
    service_url: watch::Receiver<Arc<str>>,
    counters: ConnectionCounters,
    port: OnceCell<u16>,
    running: Mutex<HashMap<ProcessRun, oneshot::Sender<()>>>,
    /// How many processes there are.
    alive: watch::Sender<usize>,
}

// === impl PluginHost ===

impl PluginHost {
    /// A host that runs nothing yet. `service_url` names the control plane, `others` knows the
    /// tickets of plugins of other kinds, `counters` count connections.
    #[must_use]
    pub fn new(
        service_url: watch::Receiver<Arc<str>>,
        others: TicketOwner,
        counters: ConnectionCounters,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                door: Arc::new(Door::new(others)),
                service_url,
                counters,
                port: OnceCell::new(),
                running: Mutex::default(),
                alive: watch::Sender::new(0),
            }),
        }
    }

    /// Ends every plugin that still runs, and waits until their processes have ended.
    pub async fn close(&self) {
        let running = std::mem::take(&mut *self.running());
        for told in running.into_values() {
            // A plugin that has just ended by itself gets no signal.
            told.send(()).ok();
        }
        let mut alive = self.shared.alive.subscribe();
        let all_gone = alive.wait_for(|alive| *alive == 0);
        if tokio::time::timeout(CLOSE_WAIT, all_gone).await.is_err() {
            tracing::warn!("an admission plugin may outlive the agent: SIGKILL did not end it");
        }
    }

    fn running(&self) -> MutexGuard<'_, HashMap<ProcessRun, oneshot::Sender<()>>> {
        self.shared.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The port that is listened on, from the first call on.
    async fn port(&self) -> Result<u16, RunError> {
        let open = async || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            let port = listener.local_addr()?.port();
            let service = service::serve(
                listener,
                Arc::clone(&self.shared.door),
                self.shared.service_url.clone(),
                self.shared.counters.clone(),
            );
            tokio::spawn(service);
            Ok(port)
        };
        self.shared.port.get_or_try_init(open).await.copied().map_err(RunError::Listen)
    }

    async fn start(
        &self,
        life: ProcessRun,
        command: &AdmissionCommand,
        queue: QueueRecipients,
    ) -> Result<Running, RunError> {
        let port = self.port().await?;
        let name = name_of(command);
        let caller = Caller::Admission { life, name: name.clone(), queue };
        let ticket = self.shared.door.issue(life, caller).map_err(RunError::Ticket)?;
        Ok(process::spawn(command, &name, port, &ticket).await?)
    }
}

#[async_trait]
impl AdmissionHost for PluginHost {
    async fn run(
        &self,
        life: ProcessRun,
        command: AdmissionCommand,
        queue: QueueRecipients,
    ) -> String {
        let (told, go) = oneshot::channel();
        self.running().insert(life, told);
        let registered = Registered(self, life);
        let running = match self.start(life, &command, queue).await {
            Ok(running) => running,
            Err(error) => return Chain(&error).to_string(),
        };
        let alive = Alive::new(self.shared.alive.clone());
        // In a task of its own, so that the process is ended and reaped also when the caller has
        // gone.
        let ending = tokio::spawn(async move {
            let _alive = alive;
            running.until(go).await
        });
        let how = ending.await.unwrap_or_else(|_| "the watching task panicked".to_owned());
        drop(registered);
        how
    }

    fn end(&self, life: ProcessRun) {
        if let Some(told) = self.running().remove(&life) {
            // A plugin that has just ended by itself gets no signal.
            told.send(()).ok();
        }
    }

    fn salt(&self) -> [u8; 32] {
        let mut salt = [0; 32];
        match rand::rngs::OsRng.try_fill_bytes(&mut salt) {
            Ok(()) => salt,
            // This is enough to tell two starts of the agent apart; tickets are not made without
            // random bytes.
            Err(_) => rand::random(),
        }
    }
}

/// A run that may call. When this is dropped, the run's ticket is revoked, and the agent asks its
/// process to end.
struct Registered<'a>(&'a PluginHost, ProcessRun);

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.0.running().remove(&self.1);
        self.0.shared.door.revoke(self.1);
    }
}

/// Counts a running process.
struct Alive(watch::Sender<usize>);

impl Alive {
    fn new(count: watch::Sender<usize>) -> Self {
        count.send_modify(|alive| *alive += 1);
        Self(count)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.send_modify(|alive| *alive -= 1);
    }
}

/// Whether the program of an admission plugin could be started. Blocks.
///
/// # Errors
/// Names the error, and how to correct it.
pub(crate) fn check_program(program: &Path) -> Result<(), Cause> {
    Ok(process::check(program)?)
}

/// The name of a plugin in the log: that of its program.
fn name_of(command: &AdmissionCommand) -> Arc<str> {
    let program = PathBuf::from(command.program());
    let name = program.file_name().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_default().into()
}
