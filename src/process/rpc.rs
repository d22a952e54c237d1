//! The calls a plugin answers: `PluginRpc` over gRPC, on a unix socket or a loopback port.
//!
//! The monitor asks for health and the plugin actor applies configurations through the port; the
//! launcher calls Start and Stop on the same object, so that all calls to one process share one
//! connection. A connection belongs to one process: the launcher has it forgotten when the process
//! ends, and a broken one is dropped at once. Where calls are rare, as health checks usually are,
//! and many others are open, it is closed after each: an open one takes more memory than all else
//! that is known of a plugin.
//!
//! A plugin is not trusted. Every call has a deadline, every message a size limit, and the part of
//! an answer that is passed on is limited. Nothing here retries; the callers know when to ask
//! again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use guest_agent_actors::error::Chain;
use guest_agent_actors::model::id::Endpoint;
use guest_agent_actors::model::spec::Config;
use guest_agent_actors::ports::{Cleanup, Health, PluginRpc, RpcError};
use guest_agent_proto::plugin_comm::guest_agent_plugin_client::GuestAgentPluginClient;
use guest_agent_proto::plugin_comm::{
    ApplyRequest, GetStatusRequest, StartRequest, Status, StopRequest, apply_request, start_request,
};
use prost::Message;
use tonic::Code;

use crate::process::rpc::connection::Calls;
pub(crate) use crate::process::rpc::connection::{Connection, connect};

mod connection;

/// Deadline of a health check.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// Deadline of an Apply call.
const APPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest timeout of a call, whatever the caller asks for; gRPC's own form of a timeout holds no
/// longer one.
const LONGEST_CALL: Duration = Duration::from_secs(24 * 3600);

/// Largest message, either way.
const MESSAGE_MAX: usize = 4 * 1024 * 1024;

/// Most bytes of an answer that are passed on.
const LINES_MAX: usize = 64;
const LINE_MAX: usize = 4096;

/// Most endpoints that are remembered, and how long an unused one is.
const KEPT_MAX: usize = 1024;
const KEPT_IDLE: Duration = Duration::from_secs(300);

/// Most connections that stay open between calls, however rare those are. With two hundred plugins
/// and checks every ten seconds, an open one takes up to 38 KiB, and closing all would cost a fifth
/// of a percent of a processor.
const OPEN_MAX: usize = 96;

/// Calls that are further apart than this make a connection each, when that many others are open.
const RARE: Duration = Duration::from_secs(5);

type Client = GuestAgentPluginClient<Calls>;

/// Calls plugins over gRPC and keeps the connections.
#[derive(Debug, Default)]
pub struct GrpcPluginRpc {
    kept: Mutex<HashMap<Endpoint, Kept>>,
}

#[derive(Debug)]
struct Kept {
    /// `None` between calls that are rare.
    open: Option<Calls>,
    used: Instant,
    /// The time between the two latest calls. `None` after the first one.
    pause: Option<Duration>,
    /// Coming calls that follow quickly because the process was just started; they do not count for
    /// how often it is called.
    quick: u8,
}

/// The health checks that follow Start: one at once, and one within the first interval.
const QUICK_AFTER_START: u8 = 2;

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
    /// Those of every call; a configuration that is malformed is `Refused` without a call.
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
        let begin = async |mut client: Client, request| client.start(request).await;
        self.forget(endpoint);
        self.call(endpoint, Some(connection), timeout, begin, message).await?;
        if let Some(kept) = self.lock().get_mut(endpoint) {
            kept.quick = QUICK_AFTER_START;
        }
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
        let end = async |mut client: Client, request| client.stop(request).await;
        self.call(endpoint, None, deadline, end, message).await?;
        Ok(())
    }

    /// Drops the connection to an endpoint, so that the next call makes a new one.
    pub(crate) fn forget(&self, endpoint: &Endpoint) {
        let forgotten = self.lock().remove(endpoint);
        // Not under the lock: dropping a connection may end much.
        drop(forgotten);
    }

    async fn status(
        &self,
        endpoint: &Endpoint,
        data: Option<String>,
        timeout: Duration,
    ) -> Result<Health, RpcError> {
        let ask = async |mut client: Client, request| client.get_status(request).await;
        let answer = self.call(endpoint, None, timeout, ask, GetStatusRequest { data }).await?;
        Ok(bounded(answer))
    }

    /// Makes one call with its deadline on both sides: the request carries the timeout to the
    /// plugin, and the agent waits no longer than that. Uses the given connection, or else the open
    /// one.
    async fn call<Q, A>(
        &self,
        endpoint: &Endpoint,
        given: Option<Connection>,
        timeout: Duration,
        call: impl AsyncFnOnce(Client, tonic::Request<Q>) -> Result<tonic::Response<A>, tonic::Status>,
        message: Q,
    ) -> Result<A, RpcError> {
        let timeout = timeout.min(LONGEST_CALL);
        let mut request = tonic::Request::new(message);
        request.set_timeout(timeout);
        let began = Instant::now();
        let exchange = async {
            let calls = self.open(endpoint, given).await?;
            let client = GuestAgentPluginClient::with_origin(calls, connection::origin())
                .max_decoding_message_size(MESSAGE_MAX)
                .max_encoding_message_size(MESSAGE_MAX);
            call(client, request).await.map_err(|status| {
                let late = began.elapsed() >= timeout;
                classify(&status, timeout, late)
            })
        };
        let answer = tokio::time::timeout(timeout, exchange).await;
        let answer = answer.unwrap_or(Err(RpcError::TimedOut(timeout)));
        if matches!(answer, Err(RpcError::Unreachable(_))) {
            self.forget(endpoint);
        } else {
            self.rest(endpoint);
        }
        answer.map(tonic::Response::into_inner)
    }

    /// The connection that is open, or a new one.
    async fn open(
        &self,
        endpoint: &Endpoint,
        given: Option<Connection>,
    ) -> Result<Calls, RpcError> {
        if let Some(calls) = self.used_again(endpoint) {
            return Ok(calls);
        }
        let opened = async {
            let connection = match given {
                Some(connection) => connection,
                None => connect(endpoint).await?,
            };
            Calls::on(connection).await
        };
        let calls =
            opened.await.map_err(|error| RpcError::Unreachable(Chain(&error).to_string()))?;
        self.keep(endpoint, calls.clone());
        Ok(calls)
    }

    /// What is still open, and that a call was made.
    fn used_again(&self, endpoint: &Endpoint) -> Option<Calls> {
        let mut all = self.lock();
        let kept = all.get_mut(endpoint)?;
        let now = Instant::now();
        kept.pause = (kept.quick == 0).then(|| now.duration_since(kept.used));
        kept.quick = kept.quick.saturating_sub(1);
        kept.used = now;
        kept.open.clone().filter(|calls| !calls.is_closed())
    }

    /// Drops the connection after a call, if many are open and the next call is probably far away.
    /// After a first call it always drops it: memory that connections take while many plugins start
    /// is never freed whole. Calls that are under way keep the connection open themselves.
    fn rest(&self, endpoint: &Endpoint) {
        let mut all = self.lock();
        let open = all.values().filter(|kept| kept.open.is_some()).count();
        let rested = match all.get_mut(endpoint) {
            Some(kept) if open > OPEN_MAX && kept.pause.is_none_or(|pause| pause >= RARE) => {
                kept.open.take()
            }
            Some(_) | None => None,
        };
        drop(all);
        drop(rested);
    }

    fn keep(&self, endpoint: &Endpoint, calls: Calls) {
        let now = Instant::now();
        let mut all = self.lock();
        if let Some(kept) = all.get_mut(endpoint) {
            kept.open = Some(calls);
            return;
        }
        all.retain(|_, kept| now.duration_since(kept.used) < KEPT_IDLE);
        if all.len() >= KEPT_MAX {
            let oldest = all.iter().min_by_key(|(_, kept)| kept.used).map(|(e, _)| e.clone());
            oldest.map(|endpoint| all.remove(&endpoint));
        }
        let kept = Kept { open: Some(calls), used: now, pause: None, quick: 0 };
        all.insert(endpoint.clone(), kept);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Endpoint, Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
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
        let apply = async |mut client: Client, request| client.apply(request).await;
        self.call(endpoint, None, APPLY_TIMEOUT, apply, message).await?;
        Ok(())
    }
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

/// Classifies the error of a call. A transport that broke shows as UNAVAILABLE, or as UNKNOWN with
/// a cause; a plugin's own answer has no cause.
fn classify(status: &tonic::Status, timeout: Duration, late: bool) -> RpcError {
    let source = std::error::Error::source(status);
    let broken = source.is_some();
    let mut message = match source {
        Some(cause) => {
            let cause = Chain(cause).to_string();
            // The message is most often that of the first cause.
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
        // The error that tonic makes of its own timer, which runs beside the agent's.
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
