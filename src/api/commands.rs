//! The JSON command socket, on which scripts and services of this machine report VM events.
//!
//! ```text
//!   accept ─► collect (until it parses) ─► request ─► VmEvent ───────────► VM-event actor ─► plugins
//!      (bounded)   ≤ 64 KiB, in time          │       agent.config.getoption ─► effective configuration
//!                                             └─► one reply, then the connection closes
//! ```
//!
//! The protocol is that of the agents that came before: one object per connection, keys in any
//! case, one reply. The permissions of the socket decide who may call, and no plugin that a policy
//! confines may; the user of a caller is
//! logged with the command, and recorded with the event that it sends. Callers that send nothing keep nobody waiting: the oldest of them makes
//! room. Nothing here can change what is installed.

use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use guest_agent_actors::messages::NotifyVm;
use guest_agent_actors::model::audit::{AuditAct, AuditVerdict, Target, Via};
use guest_agent_actors::model::vm_event::VmEvent;
use guest_agent_actors::vm_events::{NOTIFY_WAIT, VmEventActor};
use guest_agent_serve_kit::accept::{Acceptor, Bound};
use guest_agent_serve_kit::connection_counters::{ConnectionCounters, Label};
use guest_agent_serve_kit::placed::Placed;
use guest_agent_serve_kit::shares::{HasPeer, Most, Place, Shares};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::api::audit::AuditLog;
use crate::api::principal::Principal;
use crate::config::{self, Config};
use crate::net::vetted::{Caller, Vet, Vetted, VettingListener};

mod collect;
mod reply;
mod request;

use collect::{Collected, Collector};
use reply::{OptionReply, PluginReply, Reply};
use request::{Command, OptionKey};

/// The reply to a request that cannot be carried out, as it is sent; `None` for one that can. It
/// has no other effect.
#[must_use]
pub fn refusal(request: &[u8]) -> Option<Vec<u8>> {
    Command::parse(request).err().map(|reply| reply.to_json())
}

/// Most connections at once. For one more, the oldest that sent no complete request makes room.
const CONNECTIONS: Most = Most { all: 128, each: 64 };

/// How long the caller has to close its side after the reply.
const LINGER: Duration = Duration::from_secs(1);

/// Serves the JSON command socket.
#[derive(Clone)]
pub struct CommandSocket {
    /// Notifies plugins.
    pub vm_events: Addr<VmEventActor>,
    /// Records what callers ask.
    pub audit: AuditLog,
    /// The configuration in effect.
    pub config: watch::Receiver<Arc<Config>>,
    /// Counts connections.
    pub counters: ConnectionCounters,
    /// Judges callers.
    pub(crate) vet: Vet,
}

// === impl CommandSocket ===

impl CommandSocket {
    /// Serves connections until it is dropped.
    pub async fn serve(self, listener: UnixListener) {
        let label = Label { listener: "command", places: "usual" };
        let shares = Shares::new("the command socket", CONNECTIONS);
        let places = Places(shares.counted(&self.counters, label));
        let listener = VettingListener::new(listener, self.vet.clone());
        let mut acceptor = Acceptor::new(listener, places, |error| {
            warn!(%error, "a connection to the command socket was not accepted");
        });
        loop {
            let stream = acceptor.next().await;
            let this = self.clone();
            tokio::spawn(async move { this.converse(stream).await });
        }
    }

    /// One connection: a request, a reply. Reading, doing and writing each have the time of a
    /// command.
    async fn converse(&self, mut stream: Placed<Vetted>) {
        let timeout = self.config.borrow().api.command_timeout;
        let reply = match collect(&mut stream, timeout).await {
            Some(Ok(_)) if stream.stream().result().is_err() => {
                let why = stream.stream().result().clone().err().unwrap_or_default();
                Reply::forbidden(&why).to_json()
            }
            Some(Ok(request)) => {
                stream.requested().note();
                let caller = stream.stream().caller().cloned();
                let pid = stream.stream().stream().peer_cred().ok().and_then(|peer| peer.pid());
                self.answer(&request, timeout, (caller, pid)).await
            }
            Some(Err(reply)) => reply.to_json(),
            // The caller only checked that the socket exists.
            None => return,
        };
        let sending = async {
            stream.write_all(&reply).await?;
            stream.shutdown().await
        };
        match tokio::time::timeout(timeout, sending).await {
            // One that had to leave has a successor that waits for its place.
            Ok(Ok(())) if stream.left() => {}
            Ok(Ok(())) => drain(&mut stream).await,
            Ok(Err(error)) => debug!(%error, "the caller did not wait for its reply"),
            Err(_) => debug!("the caller did not take its reply in time"),
        }
    }

    async fn answer(
        &self,
        request: &[u8],
        timeout: Duration,
        (caller, pid): (Option<Caller>, Option<i32>),
    ) -> Vec<u8> {
        let uid = caller.as_ref().map(|caller| caller.uid);
        match Command::parse(request) {
            Ok(Command::VmEvent { event, request }) => {
                info!(%event, ?uid, ?pid, "a caller sends a VM event");
                let naming = async {
                    match caller {
                        Some(caller) => Principal::of_caller(caller, Via::CommandSocket).await,
                        None => Principal::unknown(Via::CommandSocket),
                    }
                };
                let (reply, principal) = tokio::join!(self.notify(event, request, timeout), naming);
                let verdict = match &reply {
                    Ok(_) => AuditVerdict::Accepted(None),
                    Err(why) => AuditVerdict::Refused(why.status_message.as_str().into()),
                };
                let asker = principal.asker(event.name());
                let target = Target::AllPlugins;
                self.audit.record(&asker, AuditAct::VmEvent, target, verdict).await;
                reply.unwrap_or_else(|why| why.to_json())
            }
            Ok(Command::GetOption(key)) => self.option(key).to_json(),
            Err(reply) => {
                debug!(?uid, ?pid, status = reply.status, "refuses a command");
                reply.to_json()
            }
        }
    }

    /// The reply with the answers of all plugins, or why no plugin was asked.
    async fn notify(
        &self,
        event: VmEvent,
        request: Arc<str>,
        timeout: Duration,
    ) -> Result<Vec<u8>, Reply> {
        // Plugins get less time than the command, so that the reply with their answers is in time.
        let within = NOTIFY_WAIT.min(timeout.mul_f64(0.8));
        let notifying = self.vm_events.send(NotifyVm { event, request, within });
        match tokio::time::timeout(timeout, notifying).await {
            Ok(Ok(Ok(notified))) => {
                Ok(reply::array(&notified.iter().map(PluginReply::of).collect::<Vec<_>>()))
            }
            Ok(Ok(Err(error))) => Err(Reply::handler_failed(&error.to_string())),
            Ok(Err(_)) => Err(Reply::internal("the agent is stopping")),
            Err(_) => Err(Reply::internal("the agent did not answer in time")),
        }
    }

    fn option(&self, key: OptionKey) -> OptionReply {
        match key {
            OptionKey::Missing => OptionReply::missing(),
            OptionKey::Malformed(key) => OptionReply::malformed(key),
            OptionKey::Key(key) => match config::value(&self.config.borrow(), &key) {
                Some(value) => OptionReply::found(key, value),
                None => OptionReply::unknown(key),
            },
        }
    }
}

/// The places of the connections. One that gets none has its reply all the same.
struct Places(Shares);

impl Bound<Vetted> for Places {
    async fn place(&self, stream: &Vetted) -> Option<Place> {
        let place = self.0.place(stream.peer()?).await;
        if place.is_none() {
            // There is room for it in a fresh socket; if there were no room, the reply would be
            // left out.
            drop(stream.stream().try_write(&Reply::crowded().to_json()));
        }
        place
    }

    fn shed(&self) {
        self.0.shed();
    }
}

/// Reads until a whole request is there, or says why there will be none. `None` when the caller
/// sent nothing and has gone.
async fn collect(stream: &mut Placed<Vetted>, timeout: Duration) -> Option<Result<Vec<u8>, Reply>> {
    let deadline = tokio::time::Instant::now() + timeout;
    let mut collector = Collector::default();
    let mut chunk = [0; 4096];
    loop {
        let read = match tokio::time::timeout_at(deadline, stream.read(&mut chunk)).await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => return Some(Err(Reply::connection(&error))),
            Err(_) => return Some(Err(collector.late(timeout))),
        };
        if read == 0 && stream.left() {
            return Some(Err(Reply::made_room()));
        }
        if read == 0 {
            return collector.ended().map(Err);
        }
        match collector.take(&chunk[..read]) {
            Collected::More => {}
            Collected::Whole(request) => return Some(Ok(request)),
            Collected::Wrong(reply) => return Some(Err(reply)),
        }
    }
}

/// Reads what the caller still says: closing a socket with unread bytes would break the connection
/// under the reply.
async fn drain(stream: &mut Placed<Vetted>) {
    let mut rest = [0; 4096];
    let reading = async {
        for _ in 0..64 {
            if !matches!(stream.read(&mut rest).await, Ok(read) if read > 0) {
                return;
            }
        }
    };
    drop(tokio::time::timeout(LINGER, reading).await);
}

#[cfg(test)]
mod tests;
