//! The calls a plugin answers: `PluginRpc` over gRPC, on a unix socket or a loopback port.
//!
//! The monitor asks for health and the plugin actor applies configurations through the port; the
//! launcher calls Start and Stop on the same object, so that all calls to one process share one
//! connection. A connection belongs to one process: the launcher has it forgotten when the process
//! ends, and a broken one is dropped at once. Where calls are rare, as health checks usually are, it is closed
//! after each: an open one takes more memory than all else that is known of a plugin.
//!
//! A plugin is not trusted. Every call has a deadline, every message a size, and what is passed on
//! of an answer is bounded. Nothing here retries; the callers know when to ask again.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use guest_agent_actors::error::Chain;
use guest_agent_actors::id::Endpoint;
use guest_agent_actors::ports::{Cleanup, Health, PluginRpc, RpcError};
use guest_agent_actors::spec::Config;
use guest_agent_proto::plugin_comm::guest_agent_plugin_client::GuestAgentPluginClient;
use guest_agent_proto::plugin_comm::{
    ApplyRequest, GetStatusRequest, StartRequest, Status, StopRequest, apply_request, start_request,
};
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::{TcpStream, UnixStream};
use tokio_util::either::Either;
use tonic::Code;
use tonic::transport::Channel;

/// Deadline of a question.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// Deadline of handing over a configuration.
const APPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// No call waits longer, whatever is asked for; more does not fit into gRPC's own form of it.
const LONGEST_CALL: Duration = Duration::from_secs(24 * 3600);

/// Largest message, either way.
const MESSAGE_MAX: usize = 4 * 1024 * 1024;

/// Largest header list a plugin may send.
const HEADERS_MAX: u32 = 64 * 1024;

/// Most that is passed on of an answer.
const LINES_MAX: usize = 64;
const LINE_MAX: usize = 4096;

/// Most endpoints that are remembered, and how long an unused one is.
const CHANNELS_MAX: usize = 1024;
const CHANNEL_IDLE: Duration = Duration::from_secs(300);

/// Calls further apart than this make a connection each. Making one takes about as long as three calls; an
/// open one takes about 50 KiB.
const RARE: Duration = Duration::from_secs(5);

/// A connection to a plugin, before any call was made on it.
pub(crate) type Connection = Either<UnixStream, TcpStream>;

/// Calls plugins over gRPC and keeps the connections.
#[derive(Debug, Default)]
pub struct GrpcPluginRpc {
    channels: Mutex<HashMap<Endpoint, Kept>>,
}

#[derive(Debug)]
struct Kept {
    /// None between rare calls.
    channel: Option<Channel>,
    used: Instant,
    /// How long before the latest call there was one.
    pause: Duration,
}

/// Where an endpoint is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Unix(PathBuf),
    Tcp(std::net::SocketAddr),
}

// === impl GrpcPluginRpc ===

impl GrpcPluginRpc {
    /// Without any connection yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls Start on a fresh connection, and keeps that for the calls that follow.
    ///
    /// # Errors
    /// As every call; a configuration that is not what it says is `Refused` without a call.
    pub(crate) async fn start(
        &self,
        endpoint: &Endpoint,
        connection: Connection,
        state_dir: &str,
        config: Option<&Config>,
        timeout: Duration,
    ) -> Result<(), RpcError> {
        let service_config = config.map(start_config).transpose()?;
        let config = start_request::Config { state_directory_path: state_dir.to_owned() };
        let message = StartRequest { config: Some(config), service_config };
        let channel = open(endpoint, Some(connection))?;
        self.keep(endpoint, channel.clone());
        let mut client = client(channel);
        self.call(endpoint, timeout, async |request| client.start(request).await, message).await?;
        Ok(())
    }

    /// Calls Stop.
    ///
    /// # Errors
    /// As every call. The plugin has `deadline` to answer.
    pub(crate) async fn stop(
        &self,
        endpoint: &Endpoint,
        cleanup: Cleanup,
        deadline: Duration,
    ) -> Result<(), RpcError> {
        let message = StopRequest {
            cleanup: cleanup == Cleanup::Wipe,
            deadline: prost_types::Duration::try_from(deadline).ok(),
        };
        let mut client = client(self.channel(endpoint)?);
        self.call(endpoint, deadline, async |request| client.stop(request).await, message).await?;
        Ok(())
    }

    /// Drops the connection to an endpoint, so that the next call makes a new one.
    pub(crate) fn forget(&self, endpoint: &Endpoint) {
        self.lock().remove(endpoint);
    }

    async fn status(
        &self,
        endpoint: &Endpoint,
        data: Option<String>,
        timeout: Duration,
    ) -> Result<Health, RpcError> {
        let mut client = client(self.channel(endpoint)?);
        let message = GetStatusRequest { data };
        let answer = self
            .call(endpoint, timeout, async |request| client.get_status(request).await, message)
            .await?;
        Ok(bounded(answer))
    }

    /// One call with its deadline, on both sides: the plugin is told, and we do not wait longer.
    async fn call<Q, A>(
        &self,
        endpoint: &Endpoint,
        timeout: Duration,
        call: impl AsyncFnOnce(tonic::Request<Q>) -> Result<tonic::Response<A>, tonic::Status>,
        message: Q,
    ) -> Result<A, RpcError> {
        let timeout = timeout.min(LONGEST_CALL);
        let mut request = tonic::Request::new(message);
        request.set_timeout(timeout);
        let began = Instant::now();
        let Ok(answer) = tokio::time::timeout(timeout, call(request)).await else {
            self.rest(endpoint);
            return Err(RpcError::TimedOut(timeout));
        };
        self.rest(endpoint);
        answer.map(tonic::Response::into_inner).map_err(|status| {
            let late = began.elapsed() >= timeout;
            let error = classify(&status, timeout, late);
            if matches!(error, RpcError::Unreachable(_)) {
                self.forget(endpoint);
            }
            error
        })
    }

    fn channel(&self, endpoint: &Endpoint) -> Result<Channel, RpcError> {
        let mut channels = self.lock();
        if let Some(kept) = channels.get_mut(endpoint) {
            let now = Instant::now();
            kept.pause = now.duration_since(kept.used);
            kept.used = now;
            return match &kept.channel {
                Some(channel) => Ok(channel.clone()),
                None => Ok(kept.channel.insert(open(endpoint, None)?).clone()),
            };
        }
        drop(channels);
        let channel = open(endpoint, None)?;
        self.keep(endpoint, channel.clone());
        Ok(channel)
    }

    /// Lets go of the connection after a call, if the next one is probably far away. Calls that are under way
    /// hold on to it by themselves.
    fn rest(&self, endpoint: &Endpoint) {
        let rested = match self.lock().get_mut(endpoint) {
            Some(kept) if kept.pause >= RARE => kept.channel.take(),
            Some(_) | None => None,
        };
        // Not under the lock: much may end with it.
        drop(rested);
    }

    fn keep(&self, endpoint: &Endpoint, channel: Channel) {
        let now = Instant::now();
        let mut channels = self.lock();
        channels.retain(|_, kept| now.duration_since(kept.used) < CHANNEL_IDLE);
        if channels.len() >= CHANNELS_MAX {
            let oldest = channels.iter().min_by_key(|(_, kept)| kept.used).map(|(e, _)| e.clone());
            oldest.map(|endpoint| channels.remove(&endpoint));
        }
        let kept = Kept { channel: Some(channel), used: now, pause: Duration::ZERO };
        channels.insert(endpoint.clone(), kept);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Endpoint, Kept>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl PluginRpc for GrpcPluginRpc {
    async fn health(&self, endpoint: &Endpoint, timeout: Duration) -> Result<Health, RpcError> {
        self.status(endpoint, None, timeout).await
    }

    async fn ask(&self, endpoint: &Endpoint, data: String) -> Result<Health, RpcError> {
        self.status(endpoint, Some(data), ASK_TIMEOUT).await
    }

    async fn apply(&self, endpoint: &Endpoint, config: Option<Config>) -> Result<(), RpcError> {
        let service_config = config.as_ref().map(apply_config).transpose()?;
        let message = ApplyRequest { service_config };
        let mut client = client(self.channel(endpoint)?);
        let call = async |request| client.apply(request).await;
        self.call(endpoint, APPLY_TIMEOUT, call, message).await?;
        Ok(())
    }
}

// === connections ===

/// Connects to an endpoint, once.
///
/// # Errors
/// The system's error: nothing there, nobody listening, or an endpoint that is no address.
pub(crate) async fn connect(endpoint: &Endpoint) -> io::Result<Connection> {
    connect_to(&place(endpoint).ok_or(io::ErrorKind::InvalidInput)?).await
}

async fn connect_to(place: &Place) -> io::Result<Connection> {
    match place {
        Place::Unix(path) => {
            let stream = UnixStream::connect(path).await?;
            check_listener(path, &stream)?;
            Ok(Either::Left(stream))
        }
        Place::Tcp(address) => {
            let stream = TcpStream::connect(address).await?;
            // Waiting for a port on loopback can, by chance, connect the socket with itself.
            if stream.local_addr()? == *address {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            stream.set_nodelay(true)?;
            Ok(Either::Right(stream))
        }
    }
}

/// Refuses a listener that is another user's than the folder it is found in. Whoever has a folder of its own
/// could put a link to any socket in there, and the agent may connect to all of them.
fn check_listener(path: &Path, stream: &UnixStream) -> io::Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    let owner = std::fs::metadata(folder)?.uid();
    // What is in a folder of the agent, only it or its plugins can have put there.
    if owner == rustix::process::geteuid().as_raw() || stream.peer_cred()?.uid() == owner {
        return Ok(());
    }
    let reason = format!("{} leads to a socket of another user than the plugin's", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

fn place(endpoint: &Endpoint) -> Option<Place> {
    match endpoint.as_str().split_once(':')? {
        ("unix", path) if path.starts_with('/') => Some(Place::Unix(path.into())),
        ("tcp", address) => {
            let address: std::net::SocketAddr = address.parse().ok()?;
            address.ip().is_loopback().then_some(Place::Tcp(address))
        }
        _ => None,
    }
}

/// A channel whose first connection is the given one; later ones are made when they are needed.
fn open(endpoint: &Endpoint, first: Option<Connection>) -> Result<Channel, RpcError> {
    let Some(place) = place(endpoint) else {
        let text: String = endpoint.as_str().chars().take(200).collect();
        return Err(RpcError::Unreachable(format!("{text:?} is not an endpoint of this machine")));
    };
    let first = Arc::new(Mutex::new(first));
    let connector = tower::service_fn(move |_: http::Uri| {
        let given = first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let place = place.clone();
        async move {
            let connection = match given {
                Some(connection) => connection,
                None => connect_to(&place).await?,
            };
            Ok::<_, io::Error>(TokioIo::new(connection))
        }
    });
    // The name goes into the `:authority` header only; the connector decides where calls go.
    Ok(tonic::transport::Endpoint::from_static("http://plugin.invalid")
        .http2_max_header_list_size(HEADERS_MAX)
        .connect_with_connector_lazy(connector))
}

fn client(channel: Channel) -> GuestAgentPluginClient<Channel> {
    GuestAgentPluginClient::new(channel)
        .max_decoding_message_size(MESSAGE_MAX)
        .max_encoding_message_size(MESSAGE_MAX)
}

// === messages ===

fn start_config(config: &Config) -> Result<start_request::ServiceConfig, RpcError> {
    Ok(match config {
        Config::Text(text) => start_request::ServiceConfig::StringConfig(text.to_string()),
        Config::Struct(bytes) => start_request::ServiceConfig::StructConfig(decode(bytes)?),
    })
}

fn apply_config(config: &Config) -> Result<apply_request::ServiceConfig, RpcError> {
    Ok(match config {
        Config::Text(text) => apply_request::ServiceConfig::StringConfig(text.to_string()),
        Config::Struct(bytes) => apply_request::ServiceConfig::StructConfig(decode(bytes)?),
    })
}

fn decode(bytes: &[u8]) -> Result<prost_types::Struct, RpcError> {
    prost_types::Struct::decode(bytes).map_err(|_| RpcError::Refused {
        code: code_name(Code::InvalidArgument).to_owned(),
        message: "the configuration is not an encoded google.protobuf.Struct".to_owned(),
    })
}

fn bounded(status: Status) -> Health {
    let results = status.results.into_iter().take(LINES_MAX).map(|mut line| {
        truncate(&mut line);
        line
    });
    Health { code: status.code, results: results.collect() }
}

fn truncate(text: &mut String) {
    if text.len() > LINE_MAX {
        let end = (0..=LINE_MAX).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
        text.shrink_to_fit();
    }
}

/// Sorts what a call ended with. A transport that broke shows as UNAVAILABLE, or as UNKNOWN with a
/// cause; a plugin's own answer has no cause.
fn classify(status: &tonic::Status, timeout: Duration, late: bool) -> RpcError {
    let source = std::error::Error::source(status);
    let broken = source.is_some();
    let mut message = match source {
        Some(cause) => {
            let cause = Chain(cause).to_string();
            // The message is most often the first of the causes.
            if cause.starts_with(status.message()) {
                cause
            } else {
                format!("{}: {cause}", status.message())
            }
        }
        None => status.message().to_owned(),
    };
    truncate(&mut message);
    match status.code() {
        Code::Unimplemented => RpcError::Unimplemented,
        Code::DeadlineExceeded => RpcError::TimedOut(timeout),
        // What tonic makes of its own timer, which runs beside ours.
        Code::Cancelled if late => RpcError::TimedOut(timeout),
        Code::Unavailable => RpcError::Unreachable(message),
        Code::Unknown | Code::Internal | Code::Cancelled if broken => {
            RpcError::Unreachable(message)
        }
        code => RpcError::Refused { code: code_name(code).to_owned(), message },
    }
}

/// The name of a code as the gRPC specification writes it.
pub(crate) fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
pub(crate) mod tests;
