//! The task that sends spans: in batches, one at a time, again and again while the collector is
//! away.

use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use tokio::sync::mpsc;
use tracing::warn;

use super::collector::{Collector, Connected, Ending, Refusal, Standing};
use super::queue::Dropped;

/// Most spans in one message.
const BATCH_MAX: usize = 256;

/// Exports spans.
#[derive(Debug)]
pub struct SpanExporter {
    /// Where to.
    pub collector: Collector,
    /// Longest time for which spans wait for others.
    pub interval: Duration,
    /// Who exports.
    pub resource: Resource,
    /// The program that made the spans.
    pub scope: InstrumentationScope,
    /// What the queue counts.
    pub dropped: Dropped,
    /// How far the program's stop has come.
    pub ending: Ending,
}

// === impl SpanExporter ===

impl SpanExporter {
    /// Sends until the program ends. Once it has begun to stop, each message has one try.
    pub fn run(self, waiting: mpsc::Receiver<Span>) -> impl Future<Output = ()> + Send {
        self.send_all(waiting)
    }

    async fn send_all(self, mut waiting: mpsc::Receiver<Span>) {
        let mut connected = None;
        let mut standing = Standing::of("traces");
        while let Some(batch) = self.batch(&mut waiting).await {
            let mut batch = Some(batch);
            while let Some(spans) = batch.take() {
                let count = spans.len();
                let is_last_try = self.ending.began.is_cancelled();
                let sent = self.ending.in_time(self.send(&mut connected, spans.clone())).await;
                match sent {
                    Some(Ok(())) => standing.is_back(self.dropped.tell()),
                    Some(Err(Refusal::Later(why))) if !is_last_try => {
                        standing.is_away(&self.collector, &why);
                        batch = Some(spans);
                    }
                    Some(Err(Refusal::Never(why))) => {
                        standing.is_away(&self.collector, &why);
                        self.lose(count);
                    }
                    Some(Err(Refusal::Later(_))) | None => {
                        let spans = count + waiting.len();
                        warn!(spans, "the last spans did not reach the collector");
                        return;
                    }
                }
                if let Some(pause) = standing.pause(&self.collector) {
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = self.ending.began.cancelled() => {}
                    }
                }
            }
        }
    }

    /// The next spans: those that exist when the first has waited for an interval, or a batch is
    /// full. `None` when the program ends and no span is left.
    async fn batch(&self, waiting: &mut mpsc::Receiver<Span>) -> Option<Vec<Span>> {
        let mut batch = Vec::new();
        tokio::select! {
            biased;
            first = waiting.recv() => batch.push(first?),
            () = self.ending.came.cancelled() => return None,
        }
        let more = async {
            while batch.len() < BATCH_MAX && waiting.recv_many(&mut batch, BATCH_MAX - 1).await > 0
            {
            }
        };
        tokio::select! {
            biased;
            () = more => {}
            () = tokio::time::sleep(self.interval) => {}
            () = self.ending.began.cancelled() => {}
        }
        Some(batch)
    }

    async fn send(
        &self,
        connected: &mut Option<Connected>,
        spans: Vec<Span>,
    ) -> Result<(), Refusal> {
        let scope_spans =
            vec![ScopeSpans { scope: Some(self.scope.clone()), spans, ..ScopeSpans::default() }];
        let resource_spans = vec![ResourceSpans {
            resource: Some(self.resource.clone()),
            scope_spans,
            ..ResourceSpans::default()
        }];
        let request = ExportTraceServiceRequest { resource_spans };
        let export = |connected: Connected| async move {
            let request = connected.request(request);
            TraceServiceClient::new(connected.connection).export(request).await
        };
        let answer = self.collector.call(connected, export).await?;
        // The protocol does not allow another attempt for a message that the collector took in
        // part.
        if let Some(part) = answer.into_inner().partial_success
            && part.rejected_spans > 0
        {
            self.lose(usize::try_from(part.rejected_spans).unwrap_or_default());
        }
        Ok(())
    }

    fn lose(&self, spans: usize) {
        self.dropped.add(u64::try_from(spans).unwrap_or(u64::MAX));
    }
}
