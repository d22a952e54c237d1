//! The collector: how to connect to it, its answers, and the log lines while it does not answer.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use guest_agent_actors::error::Chain;
use guest_agent_actors::ports::Cause;
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status};
use tracing::{info, warn};

use super::headers;
use crate::config::TelemetryConfig;
use crate::net::backoff::{Jitter, Schedule};
use crate::net::connection::Connection;
use crate::net::dial;
use crate::net::endpoint::Endpoint;
use crate::net::keepalive::Keepalive;
use crate::net::tls::TlsFiles;

/// Pauses after failures.
const PAUSES: Schedule =
    Schedule::doubling(Duration::from_secs(1), Duration::from_secs(60), Jitter::UpperHalf);

/// Longest that a message may take once the agent begins to stop.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// How far the agent's stop has come.
#[derive(Clone, Debug, Default)]
pub(super) struct Ending {
    /// The agent has begun to stop: waiting spans are sent now. Whether the collector answers shows
    /// while other parts stop.
    pub(super) began: CancellationToken,
    /// All other parts have stopped: no new span can end.
    pub(super) came: CancellationToken,
}

/// The address of the collector.
#[derive(Clone, Debug)]
pub(super) struct Collector {
    pub(super) endpoint: Endpoint,
    pub(super) headers_file: String,
    pub(super) authorities: String,
    /// How long it may take for one message, the connection included.
    pub(super) timeout: Duration,
}

/// A connection, and the headers of every call.
#[derive(Clone)]
pub(super) struct Connected {
    pub(super) connection: Connection,
    headers: MetadataMap,
}

/// Why the collector has not taken a message.
pub(super) enum Refusal {
    /// A later attempt may succeed.
    Later(String),
    /// No later attempt can succeed.
    Never(String),
}

/// Whether the collector takes one kind of messages, as the log says.
pub(super) struct Standing {
    /// What the messages contain.
    what: &'static str,
    failures: u32,
}

// === impl Ending ===

impl Ending {
    /// The answer of a call. Once the agent has begun to stop, `None` when it does not come within
    /// a moment.
    pub(super) async fn in_time<T>(&self, call: impl Future<Output = T>) -> Option<T> {
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
    /// The collector that is configured, if one is.
    pub(super) fn configured(telemetry: &TelemetryConfig) -> Option<Self> {
        Some(Self {
            endpoint: telemetry.otlp_endpoint.clone()?,
            headers_file: telemetry.otlp_headers_file.clone(),
            authorities: telemetry.otlp_ca_file.clone(),
            timeout: telemetry.timeout,
        })
    }

    /// Calls the collector over the existing connection, or a new one. A connection that failed is
    /// not used again, so that headers and certificates are read again.
    pub(super) async fn call<T, F>(
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
                    let new = new.map_err(|error| Refusal::Later(Chain(&*error).to_string()))?;
                    connected.insert(new).clone()
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

    async fn connect(&self) -> Result<Connected, Cause> {
        let headers = if self.headers_file.is_empty() {
            MetadataMap::new()
        } else {
            let file = PathBuf::from(&self.headers_file);
            tokio::task::spawn_blocking(move || headers::read(&file)).await??
        };
        let authorities = &self.authorities;
        let authorities = (!authorities.is_empty()).then(|| PathBuf::from(authorities));
        let tls = TlsFiles { authorities, client: None };
        // Calls are short, and without a call there are no pings: so the link's memory of ping
        // intervals is not needed.
        let keepalive = Arc::new(Keepalive::of(&self.endpoint));
        let connection = dial::dial(&self.endpoint, &tls, &keepalive).await?;
        Ok(Connected { connection, headers })
    }
}

// === impl Connected ===

impl Connected {
    /// A request with the headers that the collector requires.
    pub(super) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        *request.metadata_mut() = self.headers.clone();
        request
    }
}

// === impl Standing ===

impl Standing {
    pub(super) const fn of(what: &'static str) -> Self {
        Self { what, failures: 0 }
    }

    /// The collector has not taken a message. The first time is logged.
    pub(super) fn is_away(&mut self, endpoint: &Endpoint, why: &str) {
        self.failures = self.failures.saturating_add(1);
        if self.failures == 1 {
            let what = self.what;
            warn!(
                %endpoint,
                error = why,
                "the collector does not accept {what}; the agent tries again"
            );
        }
    }

    /// It has taken one; `dropped` spans were lost before.
    pub(super) fn is_back(&mut self, dropped: u64) {
        let what = self.what;
        if self.failures > 0 {
            self.failures = 0;
            info!(dropped, "the collector accepts {what} again");
        } else if dropped > 0 {
            warn!(dropped, "{what} came faster than the collector accepts them");
        }
    }

    /// How long to wait before the next attempt; `None` after a success.
    pub(super) fn pause(&self) -> Option<Duration> {
        (self.failures > 0).then(|| pause(self.failures, rand::random()))
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
pub(super) fn beginning(text: &str) -> impl std::fmt::Display {
    const MAX: usize = 200;
    text[..text.floor_char_boundary(MAX)].escape_debug()
}

/// The pause after so many failures in a row; `jitter`, from 0 to 1, says where in its upper half.
fn pause(failures: u32, jitter: f64) -> Duration {
    PAUSES.wait(failures.saturating_sub(1), jitter)
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn law_pauses_are_never_short_and_never_endless(failures in 1u32.., jitter in -1.0f64..2.0) {
            let pause = pause(failures, jitter);
            proptest::prop_assert!(pause >= PAUSES.first / 2 && pause <= PAUSES.ceiling);
        }
    }
}
