//! The collector: how to connect to it, its answers, and the log lines while it does not answer.

use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status};
use tower::Service;
use tower::util::BoxCloneSyncService;
use tracing::{info, warn};

use super::headers;
use crate::chain::Chain;

/// Why a call over a connection failed.
pub type CallError = Box<dyn std::error::Error + Send + Sync>;

/// A connection that speaks HTTP/2.
#[derive(Clone, Debug)]
pub struct Connection(BoxCloneSyncService<http::Request<Body>, http::Response<Body>, CallError>);

/// The way of a program to its collector. It shows itself as the address of the collector, without
/// a secret.
#[async_trait]
pub trait Dial: fmt::Debug + fmt::Display + Send + Sync {
    /// Connects. The error says why not, with its causes.
    async fn dial(&self) -> Result<Connection, String>;

    /// How long to wait after so many failures in a row, from 1; `random` from 0 to 1 chooses the
    /// part that the jitter leaves open.
    fn pause(&self, failures: u32, random: f64) -> Duration;
}

/// Longest that a message may take once the program begins to stop.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// How far the program's stop has come.
#[derive(Clone, Debug, Default)]
pub struct Ending {
    /// The program has begun to stop: waiting spans are sent now. Whether the collector answers shows
    /// while other parts stop.
    pub began: CancellationToken,
    /// All other parts have stopped: no new span can end.
    pub came: CancellationToken,
}

/// Where the collector is, and what it requires.
#[derive(Clone, Debug)]
pub struct Collector {
    /// The way there.
    pub dial: Arc<dyn Dial>,
    /// File with the headers of every call; read for every connection.
    pub headers_file: Option<PathBuf>,
    /// How long it may take for one message, the connection included.
    pub timeout: Duration,
}

/// A connection, and the headers of every call.
#[derive(Clone)]
pub struct Connected {
    /// The connection.
    pub connection: Connection,
    headers: MetadataMap,
}

/// Why the collector has not taken a message.
pub enum Refusal {
    /// A later attempt may succeed.
    Later(String),
    /// No later attempt can succeed.
    Never(String),
}

/// Whether the collector takes one kind of messages, as the log says.
pub struct Standing {
    /// What the messages contain.
    what: &'static str,
    failures: u32,
}

// === impl Connection ===

impl Connection {
    /// A connection of the caller's.
    pub fn new<S>(service: S) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>, Error = CallError>
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        Self(BoxCloneSyncService::new(service))
    }
}

impl Service<http::Request<Body>> for Connection {
    type Response = http::Response<Body>;
    type Error = CallError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, CallError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        self.0.call(request)
    }
}

// === impl Ending ===

impl Ending {
    /// The answer of a call. Once the program has begun to stop, `None` when it does not come within
    /// a moment.
    pub async fn in_time<T>(&self, call: impl Future<Output = T>) -> Option<T> {
        let too_late = async {
            self.began.cancelled().await;
            tokio::time::sleep(LAST_WAIT).await;
        };
        tokio::select! {
            biased;
            answer = call => Some(answer),
            () = too_late => None,
        }
    }
}

// === impl Collector ===

impl Collector {
    /// Calls the collector over the existing connection, or a new one. A connection that failed is
    /// not used again, so that headers and certificates are read again.
    pub async fn call<T, F>(
        &self,
        connected: &mut Option<Connected>,
        call: impl FnOnce(Connected) -> F,
    ) -> Result<T, Refusal>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let reached = async {
            let connected = match connected {
                Some(connected) => connected.clone(),
                None => {
                    let new = self.connect().await;
                    connected.insert(new.map_err(Refusal::Later)?).clone()
                }
            };
            call(connected).await.map_err(|status| {
                let why = said(&status);
                if is_transient(&status) { Refusal::Later(why) } else { Refusal::Never(why) }
            })
        };
        let answer = tokio::time::timeout(self.timeout, reached).await.unwrap_or_else(|_| {
            Err(Refusal::Later(format!("no answer within {}s", self.timeout.as_secs_f32())))
        });
        if answer.is_err() {
            *connected = None;
        }
        answer
    }

    async fn connect(&self) -> Result<Connected, String> {
        let headers = match self.headers_file.clone() {
            None => MetadataMap::new(),
            Some(file) => {
                let reading = tokio::task::spawn_blocking(move || headers::read(&file));
                let read = reading.await.map_err(|error| Chain(&error).to_string())?;
                read.map_err(|error| Chain(&error).to_string())?
            }
        };
        Ok(Connected { connection: self.dial.dial().await?, headers })
    }
}

// === impl Connected ===

impl Connected {
    /// A request with the headers that the collector requires.
    pub fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        *request.metadata_mut() = self.headers.clone();
        request
    }
}

// === impl Standing ===

impl Standing {
    /// Nothing was sent yet. `what` is a plural.
    #[must_use]
    pub const fn of(what: &'static str) -> Self {
        Self { what, failures: 0 }
    }

    /// The collector has not taken a message. The first time is logged.
    pub fn is_away(&mut self, collector: &Collector, why: &str) {
        self.failures = self.failures.saturating_add(1);
        if self.failures == 1 {
            let (what, endpoint) = (self.what, &collector.dial);
            warn!(
                %endpoint,
                error = why,
                "the collector does not accept {what}; they are sent again later"
            );
        }
    }

    /// It has taken one; `dropped` spans were lost before.
    pub fn is_back(&mut self, dropped: u64) {
        let what = self.what;
        if self.failures > 0 {
            self.failures = 0;
            info!(dropped, "the collector accepts {what} again");
        } else if dropped > 0 {
            warn!(dropped, "{what} came faster than the collector accepts them");
        }
    }

    /// How long to wait before the next attempt; `None` after a success.
    #[must_use]
    pub fn pause(&self, collector: &Collector) -> Option<Duration> {
        (self.failures > 0).then(|| collector.dial.pause(self.failures, rand::random()))
    }
}

/// The codes after which the protocol allows another attempt.
fn is_transient(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
    )
}

/// The collector's answer, for the log.
fn said(status: &Status) -> String {
    format!("{:?}: {}", status.code(), beginning(status.message()))
}

/// The start of a text from another program, as much as the log gets.
pub fn beginning(text: &str) -> impl std::fmt::Display {
    const MAX: usize = 200;
    text[..text.floor_char_boundary(MAX)].escape_debug()
}
