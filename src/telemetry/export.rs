//! The task that sends spans: in batches, one at a time, again and again while the collector is away.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use guest_agent_actors::error::Chain;
use guest_agent_actors::ports::Cause;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tracing::{info, warn};

use super::headers;
use crate::control_link::{self, Endpoint, TlsFiles};

/// Most spans in one message.
const BATCH_MAX: usize = 256;

/// Pauses after a failure: the first, and the longest. Each is drawn from its upper half.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Longest that the end of the agent waits for the last spans.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// What the task needs.
pub(super) struct Exporter {
    pub(super) endpoint: Endpoint,
    pub(super) headers_file: String,
    pub(super) authorities: String,
    pub(super) interval: Duration,
    pub(super) timeout: Duration,
    pub(super) resource: Resource,
    pub(super) dropped: Arc<AtomicU64>,
    pub(super) ending: CancellationToken,
}

/// A connection, and what is sent along with every call.
struct Connected {
    client: TraceServiceClient<Channel>,
    headers: MetadataMap,
}

/// What became of a batch.
enum Sent {
    /// The collector has it.
    Taken,
    /// It may take it later.
    Later(String),
    /// It never will.
    Refused(String),
}

// === impl Exporter ===

impl Exporter {
    /// Sends until it is told to end.
    pub(super) async fn run(self, mut waiting: mpsc::Receiver<Span>) {
        let mut connected = None;
        let mut failures = 0_u32;
        let ending = self.ending.clone();
        while let Some(batch) = self.batch(&mut waiting).await {
            let mut batch = Some(batch);
            while let Some(spans) = batch.take() {
                if ending.is_cancelled() {
                    self.last(&mut connected, spans, &mut waiting).await;
                    return;
                }
                let count = spans.len();
                match self.send(&mut connected, spans.clone()).await {
                    Sent::Taken => self.is_back(&mut failures),
                    Sent::Later(why) => {
                        self.is_away(&mut failures, &why);
                        batch = Some(spans);
                    }
                    Sent::Refused(why) => {
                        self.is_away(&mut failures, &why);
                        self.lose(count);
                    }
                }
                if failures > 0 {
                    let pause = pause(failures, rand::random());
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = ending.cancelled() => {}
                    }
                }
            }
        }
    }

    /// The next spans: as many as there are when the first has waited for an interval, or a batch is full. Nothing
    /// when the task is to end and none is left.
    async fn batch(&self, waiting: &mut mpsc::Receiver<Span>) -> Option<Vec<Span>> {
        let mut batch = Vec::new();
        tokio::select! {
            biased;
            first = waiting.recv() => batch.push(first?),
            () = self.ending.cancelled() => return None,
        }
        let more = async {
            while batch.len() < BATCH_MAX && waiting.recv_many(&mut batch, BATCH_MAX - 1).await > 0
            {
            }
        };
        tokio::select! {
            () = more => {}
            () = tokio::time::sleep(self.interval) => {}
            () = self.ending.cancelled() => {}
        }
        Some(batch)
    }

    /// What is left, once, and not for long.
    async fn last(
        &self,
        connected: &mut Option<Connected>,
        mut spans: Vec<Span>,
        waiting: &mut mpsc::Receiver<Span>,
    ) {
        while let Ok(span) = waiting.try_recv() {
            spans.push(span);
        }
        let count = spans.len();
        let sent = tokio::time::timeout(LAST_WAIT, self.send(connected, spans)).await;
        if !matches!(sent, Ok(Sent::Taken)) {
            warn!(spans = count, "the last spans did not reach the collector of traces");
        }
    }

    async fn send(&self, connected: &mut Option<Connected>, spans: Vec<Span>) -> Sent {
        let sent = tokio::time::timeout(self.timeout, self.try_send(connected, spans)).await;
        let sent = sent.unwrap_or_else(|_| {
            Sent::Later(format!("no answer within {}s", self.timeout.as_secs_f32()))
        });
        if !matches!(sent, Sent::Taken) {
            // Headers and certificates are read anew with the next connection.
            *connected = None;
        }
        sent
    }

    async fn try_send(&self, connected: &mut Option<Connected>, spans: Vec<Span>) -> Sent {
        let Connected { client, headers } = match connected {
            Some(connected) => connected,
            None => match self.connect().await {
                Ok(new) => connected.insert(new),
                Err(error) => return Sent::Later(Chain(&*error).to_string()),
            },
        };
        let scope = InstrumentationScope {
            name: "guest-agent".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
        let resource_spans = vec![ResourceSpans {
            resource: Some(self.resource.clone()),
            scope_spans,
            ..ResourceSpans::default()
        }];
        let mut request = Request::new(ExportTraceServiceRequest { resource_spans });
        *request.metadata_mut() = headers.clone();
        match client.export(request).await {
            Ok(answer) => {
                // Trying again what a collector took in part is not allowed.
                if let Some(part) = answer.into_inner().partial_success
                    && part.rejected_spans > 0
                {
                    self.lose(usize::try_from(part.rejected_spans).unwrap_or_default());
                }
                Sent::Taken
            }
            Err(status) if is_transient(&status) => Sent::Later(said(&status)),
            Err(status) => Sent::Refused(said(&status)),
        }
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
        let channel = control_link::dial_once(&self.endpoint, &tls).await?;
        Ok(Connected { client: TraceServiceClient::new(channel), headers })
    }

    fn is_away(&self, failures: &mut u32, why: &str) {
        *failures = failures.saturating_add(1);
        if *failures == 1 {
            let endpoint = &self.endpoint;
            warn!(%endpoint, error = why, "the collector of traces takes none; tries again");
        }
    }

    fn is_back(&self, failures: &mut u32) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if *failures > 0 {
            *failures = 0;
            info!(dropped, "the collector of traces takes them again");
        } else if dropped > 0 {
            warn!(dropped, "spans came faster than the collector of traces takes them");
        }
    }

    fn lose(&self, spans: usize) {
        let spans = u64::try_from(spans).unwrap_or(u64::MAX);
        self.dropped.fetch_add(spans, Ordering::Relaxed);
    }
}

/// What the protocol says may be tried again.
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

/// What a collector answers is a stranger's text: the log gets the beginning of it.
fn said(status: &Status) -> String {
    const MAX: usize = 200;
    let message = status.message();
    let short = &message[..message.floor_char_boundary(MAX)];
    format!("{:?}: {}", status.code(), short.escape_debug())
}

/// The pause after so many failures in a row; `jitter`, from 0 to 1, says where in its upper half.
fn pause(failures: u32, jitter: f64) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(10));
    doubled.min(LONGEST_PAUSE).mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn law_pauses_are_never_short_and_never_endless(failures in 1u32.., jitter in -1.0f64..2.0) {
            let pause = pause(failures, jitter);
            proptest::prop_assert!(pause >= FIRST_PAUSE / 2 && pause <= LONGEST_PAUSE);
        }
    }
}
