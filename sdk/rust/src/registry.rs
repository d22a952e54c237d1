//! The registry: plugins register what they offer, and find what others offer.
//!
//! ```no_run
//! # use guest_agent_plugin::registry::{Offer, Registry, RegistryError};
//! # async fn example() -> Result<(), RegistryError> {
//! let registry = Registry::from_env()?;
//! // A provider listens on a socket first, then registers it. Keep the returned value.
//! let offer = Offer::new("greeter", "hello", "/run/hello.sock").version("1.0");
//! let registration = registry.offer(offer).await?;
//! // A consumer waits for it, wherever and whenever it is offered.
//! let entry = registry.wait("greeter", "hello", std::time::Duration::from_secs(30)).await?;
//! println!("{} answers on {}", entry.plugin, entry.socket_path.display());
//! # drop(registration); Ok(())
//! # }
//! ```
//!
//! | to | use |
//! |---|---|
//! | offer something for as long as the plugin runs | [`Registry::offer`] |
//! | look once | [`Registry::list`], [`Registry::get`] |
//! | wait until it is there | [`Registry::wait`] |
//! | receive every change | [`Registry::watch`] |
//! | get a typed client | [`Kind`], [`Registry::dispense`] |
//! | always have a client of the current provider | [`Registry::follow`] |
//! | test a consumer without an agent | [`Registry::stub`] |
//!
//! An entry ends with the process that registered it, and survives restarts of the agent. While the
//! agent cannot be reached, every call is retried for a while, and a watch connects again by itself
//! and begins with a snapshot of all entries.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use guest_agent_proto::host;
use guest_agent_proto::host::registrar_client::RegistrarClient;
use guest_agent_proto::host::registry_client::RegistryClient;
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};

use crate::{Environment, Ticket};

mod dispense;
mod offer;
mod registration;
mod retry;
mod watch;

pub use dispense::{Connection, Following, Kind, Stub};
pub use offer::{Entry, Offer};
pub use registration::Registration;
pub use tonic::transport::Channel;
pub use watch::{Gone, Update, Watch};

use retry::Pauses;

/// How long a call is retried while the agent cannot be reached.
const PATIENCE: Duration = Duration::from_secs(20);

/// Timeout of one try of a call; only a wait may take longer.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);

/// Longest wait in one request, so that a connection that broke unseen delays the wait no longer
/// than this.
const WAIT_SLICE: Duration = Duration::from_secs(60);

/// How long a connection may be silent before a keepalive ping is sent to the agent.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// The agent's registry, as one plugin sees it. Cheap to clone; clones share one connection, which
/// is made on first use and again after each break.
#[derive(Clone, Debug)]
pub struct Registry {
    inner: Arc<Inner>,
}

#[derive(Debug)]
enum Inner {
    Host { channel: Channel, ticket: MetadataValue<Ascii> },
    Stub(Stub),
}

/// Why a call of the registry failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RegistryError {
    /// The plugin was not started by an agent that has a registry.
    #[error("{0} is not set: only a plugin that guest-agent started can use its registry")]
    NotUnderAgent(&'static str),
    /// The path or the ticket is invalid.
    #[error("{0} cannot be used: {1}")]
    Unusable(&'static str, String),
    /// The agent refused the call, and would refuse it again.
    #[error("the registry refused: {message}")]
    Refused {
        /// The gRPC code.
        code: Code,
        /// The agent's reason, with the fix.
        message: String,
    },
    /// The registry has no such entry.
    #[error("{0}")]
    NotFound(String),
    /// The wait reached its deadline.
    #[error("{0}")]
    TimedOut(String),
    /// The agent could not be reached for a while.
    #[error("the agent cannot be reached: {0}")]
    Unreachable(String),
    /// A registry without an agent has no such client.
    #[error("this registry is a stub, and has no {0}")]
    Stubbed(String),
}

/// The interceptor that adds the ticket to every call.
#[derive(Clone, Debug)]
struct Shown(MetadataValue<Ascii>);

impl Interceptor for Shown {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", self.0.clone());
        Ok(request)
    }
}

type Host = InterceptedService<Channel, Shown>;

// === impl Registry ===

impl Registry {
    /// The registry of the agent that started this plugin. It does not connect yet.
    ///
    /// # Errors
    /// This process was not started by an agent that has a registry.
    pub fn from_env() -> Result<Registry, RegistryError> {
        Registry::of(&Environment::from_env())
    }

    /// The registry that an environment names.
    ///
    /// # Errors
    /// The environment names no registry, or its path or ticket is invalid.
    pub fn of(environment: &Environment) -> Result<Registry, RegistryError> {
        let missing = RegistryError::NotUnderAgent;
        let socket = environment.host_socket.as_deref();
        let socket = socket.ok_or(missing(Environment::HOST_SOCKET))?;
        let ticket = environment.ticket.as_ref().ok_or(missing(Environment::TICKET))?;
        Registry::new(socket, ticket)
    }

    /// The registry behind a host socket, with the ticket of a plugin.
    ///
    /// # Errors
    /// The path or the ticket is invalid.
    pub fn new(socket: &Path, ticket: &Ticket) -> Result<Registry, RegistryError> {
        let channel = channel_to(socket)
            .map_err(|reason| RegistryError::Unusable(Environment::HOST_SOCKET, reason))?;
        let mut ticket: MetadataValue<Ascii> = format!("Bearer {}", ticket.reveal())
            .parse()
            // The text of that error would quote the ticket.
            .map_err(|_| RegistryError::Unusable(Environment::TICKET, "it is no ticket".into()))?;
        ticket.set_sensitive(true);
        Ok(Registry { inner: Arc::new(Inner::Host { channel, ticket }) })
    }

    /// A registry without an agent, for tests of consumers: it dispenses the clients of `stub`.
    pub fn stub(stub: Stub) -> Registry {
        Registry { inner: Arc::new(Inner::Stub(stub)) }
    }

    /// Offers something until the process ends or [`Registration::withdraw`] is called, even if the
    /// agent loses its store meanwhile. The plugin must listen on the socket already. It returns
    /// when the agent has made the entry durable.
    ///
    /// # Errors
    /// The agent refuses the offer, or cannot be reached for a while.
    pub async fn offer(&self, offer: Offer) -> Result<Registration, RegistryError> {
        Registration::begin(self.clone(), offer).await
    }

    /// Registers an instance once, or changes an instance of this plugin.
    ///
    /// # Errors
    /// The agent refuses the offer, or cannot be reached for a while.
    pub async fn register(&self, offer: &Offer) -> Result<Entry, RegistryError> {
        let request = host::RegisterRequest { offer: Some(offer.clone().into_wire()) };
        let answer = self
            .call(|| async { Ok(self.registrar()?.register(in_time(request.clone())).await?) })
            .await?;
        Entry::of(answer.entry)
    }

    /// Deregisters an instance. An unknown instance is no error; a type that no plugin ever offered
    /// is. Without `instance` it is the instance with this plugin's own name.
    ///
    /// # Errors
    /// The agent refuses, or cannot be reached for a while.
    pub async fn deregister(
        &self,
        kind: &str,
        name: &str,
        instance: Option<&str>,
    ) -> Result<(), RegistryError> {
        let request = host::DeregisterRequest {
            r#type: kind.to_owned(),
            name: name.to_owned(),
            instance: instance.unwrap_or_default().to_owned(),
        };
        self.call(|| async { Ok(self.registrar()?.deregister(in_time(request.clone())).await?) })
            .await?;
        Ok(())
    }

    /// The current instance of every name of a type; empty for an unknown type.
    ///
    /// # Errors
    /// The agent refuses, or cannot be reached for a while.
    pub async fn list(&self, kind: &str) -> Result<Vec<Entry>, RegistryError> {
        let request = host::ListRequest { r#type: kind.to_owned(), all_instances: false };
        let answer = self
            .call(|| async { Ok(self.reader()?.list(in_time(request.clone())).await?) })
            .await?;
        answer.entries.into_iter().map(|entry| Entry::of(Some(entry))).collect()
    }

    /// One entry: an instance exactly, or the current one.
    ///
    /// # Errors
    /// [`RegistryError::NotFound`] says whether type, name or instance is unknown; or the agent
    /// refuses, or cannot be reached for a while.
    pub async fn get(
        &self,
        kind: &str,
        name: &str,
        instance: Option<&str>,
    ) -> Result<Entry, RegistryError> {
        let request = host::GetRequest {
            r#type: kind.to_owned(),
            name: name.to_owned(),
            instance: instance.unwrap_or_default().to_owned(),
        };
        let answer =
            self.call(|| async { Ok(self.reader()?.get(in_time(request.clone())).await?) }).await?;
        Entry::of(answer.entry)
    }

    /// Waits until a name is offered and its socket answers.
    ///
    /// # Errors
    /// [`RegistryError::TimedOut`] when the deadline passes, also without an agent; or the agent
    /// refuses.
    pub async fn wait(
        &self,
        kind: &str,
        name: &str,
        timeout: Duration,
    ) -> Result<Entry, RegistryError> {
        let deadline = Instant::now() + timeout;
        let mut pauses = Pauses::default();
        loop {
            let left = deadline.saturating_duration_since(Instant::now()).min(WAIT_SLICE);
            let mut request = Request::new(host::WaitRequest {
                r#type: kind.to_owned(),
                name: name.to_owned(),
                instance: String::new(),
                timeout_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1),
            });
            // A little longer than the agent's own deadline, so that its answer arrives first.
            request.set_timeout(left + Duration::from_secs(1));
            match self.reader()?.wait(request).await {
                Ok(answer) => return Entry::of(answer.into_inner().entry),
                Err(status) if status.code() == Code::DeadlineExceeded => {}
                Err(status) if retry::is_transient(&status) => pauses.pause().await,
                Err(status) => return Err(status.into()),
            }
            if Instant::now() >= deadline {
                let waited = timeout.as_secs_f32();
                let what = format!("no {kind} of the name {name} was offered within {waited}s");
                return Err(RegistryError::TimedOut(what));
            }
        }
    }

    /// Watches the entries of one type or of all, of one name or of all. It begins with a snapshot.
    pub fn watch(&self, kind: Option<&str>, name: Option<&str>) -> Watch {
        Watch::new(self.clone(), kind, name)
    }

    /// Retries a call for a while until the agent answers.
    async fn call<T, F>(&self, call: impl Fn() -> F) -> Result<T, RegistryError>
    where
        F: Future<Output = Result<tonic::Response<T>, Failed>>,
    {
        let deadline = Instant::now() + PATIENCE;
        let mut pauses = Pauses::default();
        loop {
            match call().await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(Failed::Here(error)) => return Err(error),
                Err(Failed::There(status)) => {
                    if !retry::is_transient(&status) || Instant::now() >= deadline {
                        return Err(status.into());
                    }
                    pauses.pause().await;
                }
            }
        }
    }

    fn host(&self) -> Result<Host, RegistryError> {
        match &*self.inner {
            Inner::Host { channel, ticket } => {
                Ok(InterceptedService::new(channel.clone(), Shown(ticket.clone())))
            }
            Inner::Stub(_) => Err(RegistryError::Stubbed("agent to ask".to_owned())),
        }
    }

    fn registrar(&self) -> Result<RegistrarClient<Host>, RegistryError> {
        Ok(RegistrarClient::new(self.host()?))
    }

    fn reader(&self) -> Result<RegistryClient<Host>, RegistryError> {
        Ok(RegistryClient::new(self.host()?))
    }
}

// === impl RegistryError ===

impl From<Status> for RegistryError {
    fn from(status: Status) -> RegistryError {
        let message = status.message().to_owned();
        match status.code() {
            Code::NotFound => RegistryError::NotFound(message),
            Code::DeadlineExceeded => RegistryError::TimedOut(message),
            _ if retry::is_transient(&status) => RegistryError::Unreachable(message),
            code => RegistryError::Refused { code, message },
        }
    }
}

/// The place at which a call failed.
enum Failed {
    /// The connection could not be made.
    Here(RegistryError),
    /// The agent or the connection returned this status.
    There(Status),
}

impl From<RegistryError> for Failed {
    fn from(error: RegistryError) -> Failed {
        Failed::Here(error)
    }
}

impl From<Status> for Failed {
    fn from(status: Status) -> Failed {
        Failed::There(status)
    }
}

fn in_time<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    request
}

/// A connection to a unix socket, made on first use.
fn channel_to(socket: &Path) -> Result<Channel, String> {
    let path = socket.to_str().ok_or_else(|| "it is not UTF-8".to_owned())?;
    let endpoint = Endpoint::from_shared(format!("unix:{path}")).map_err(|e| e.to_string())?;
    Ok(endpoint.http2_keep_alive_interval(KEEP_ALIVE).keep_alive_timeout(KEEP_ALIVE).connect_lazy())
}
