//! What a collector gets, over real sockets.

use std::net::SocketAddr;

use data_encoding::HEXLOWER;
use guest_agent_observe_kit::otlp::WAITING_MAX;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status as Refusal};

use super::*;

const LONG: Duration = Duration::from_secs(20);

/// What tells who exported a span, and the span.
type Taken = (Vec<KeyValue>, Span);

/// A collector on loopback; it stops with the last clone.
#[derive(Clone)]
struct Stand {
    taken: Arc<watch::Sender<Vec<Taken>>>,
    token: Option<&'static str>,
}

#[tonic::async_trait]
impl TraceService for Stand {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Refusal> {
        let shown = request.metadata().get("authorization").and_then(|it| it.to_str().ok());
        if shown != self.token {
            return Err(Refusal::unauthenticated("no token"));
        }
        for part in request.into_inner().resource_spans {
            let who = part.resource.unwrap_or_default().attributes;
            let spans = part.scope_spans.into_iter().flat_map(|scope| scope.spans);
            let spans = spans.map(|span| (who.clone(), span));
            self.taken.send_modify(|taken| taken.extend(spans));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Stand {
    fn new(token: Option<&'static str>) -> Self {
        Self { taken: Arc::new(watch::Sender::new(Vec::new())), token }
    }

    async fn listen(&self, at: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind(at).await.expect("a port");
        let at = listener.local_addr().expect("an address");
        let server = tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(self.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        at
    }

    /// Waits until so many spans are there.
    async fn spans(&self, count: usize) -> Vec<Taken> {
        let mut taken = self.taken.subscribe();
        let there = taken.wait_for(|taken| taken.len() >= count);
        let there = tokio::time::timeout(LONG, there).await.expect("they come");
        there.expect("it is kept").clone()
    }
}

fn any_port() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// A port that nothing listens on.
async fn nowhere() -> SocketAddr {
    let listener = TcpListener::bind(any_port()).await.expect("a port");
    listener.local_addr().expect("an address")
}

fn settings(at: SocketAddr) -> TraceSettings {
    TraceSettings {
        endpoint: format!("http://{at}").parse().expect("an address"),
        headers_file: None,
        ca_file: None,
        interval: Duration::from_millis(10),
        timeout: Duration::from_secs(5),
    }
}

fn order<'a>(message_id: &'a str, outcome: Outcome<'a>) -> Ended<'a> {
    let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
    Ended {
        resource: "fleet/1",
        plugin: "web",
        revision: "2",
        generation: 1_790_000_000,
        assignment: "web-prod",
        message_id,
        outcome,
        made: at(100),
        ended: at(107),
    }
}

fn fields(attributes: &[KeyValue]) -> Vec<(&str, String)> {
    let plain = |it: &KeyValue| match it.value.as_ref().and_then(|value| value.value.clone()) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{other:?}"),
    };
    attributes.iter().map(|it| (it.key.as_str(), plain(it))).collect()
}

#[tokio::test]
async fn an_order_that_ended_is_a_span_in_the_trace_of_its_agent() {
    let stand = Stand::new(None);
    let prepared = Prepared::new(settings(stand.listen(any_port()).await));
    let spans = prepared.spans();
    // What ends before the exporter runs is not lost.
    spans.ended(&order("m1", Outcome::Ok));
    let traces = prepared.start("gateway-1");
    let taken = stand.spans(1).await;
    let (who, span) = &taken[0];
    let who = fields(who);
    assert_eq!(who[0], ("service.name", "guest-fleet".to_owned()));
    assert_eq!(who[2], ("service.instance.id", "gateway-1".to_owned()));
    assert_eq!(span.name, "order");
    // printf 'guest-agent\0trace\0message\0%s' m1 | sha256sum | cut -c1-32
    assert_eq!(HEXLOWER.encode(&span.trace_id), "d8bd8b0c70cec1cb77cb808989db36f2");
    // printf 'guest-fleet\0span\0order\0%s' m1 | sha256sum | cut -c1-16
    assert_eq!(HEXLOWER.encode(&span.span_id), "9ef8b48d01667f4b");
    assert!(span.parent_span_id.is_empty());
    let (start, end) = (span.start_time_unix_nano, span.end_time_unix_nano);
    assert_eq!((start, end), (100_000_000_000, 107_000_000_000));
    assert_eq!(span.status.as_ref().map(|status| status.code()), Some(StatusCode::Ok));
    let expected = [
        ("resource", "fleet/1"),
        ("plugin", "web"),
        ("revision", "2"),
        ("generation", "1790000000"),
        ("assignment", "web-prod"),
        ("message_id", "m1"),
        ("outcome", "ok"),
    ];
    assert_eq!(fields(&span.attributes), expected.map(|(key, value)| (key, value.to_owned())));
    assert_eq!(spans.dropped().expect("it exports").in_all(), 0);
    traces.end().await;
}

#[tokio::test]
async fn outcomes_are_told_with_their_reasons() {
    let stand = Stand::new(None);
    let prepared = Prepared::new(settings(stand.listen(any_port()).await));
    let spans = prepared.spans();
    let outcomes =
        [Outcome::Failed("no space"), Outcome::TakenBack("it crashed"), Outcome::Superseded];
    outcomes.into_iter().for_each(|outcome| spans.ended(&order("m1", outcome)));
    let traces = prepared.start("gateway-1");
    let told: Vec<_> = stand.spans(3).await;
    let told = told.iter().map(|(_, span)| {
        let outcome = fields(&span.attributes).pop().expect("an outcome").1;
        (outcome, span.status.clone().map(|status| (status.code(), status.message)))
    });
    let error = |reason: &str| Some((StatusCode::Error, reason.to_owned()));
    let expected = [
        ("failed".to_owned(), error("no space")),
        ("taken_back".to_owned(), error("it crashed")),
        ("superseded".to_owned(), None),
    ];
    assert_eq!(told.collect::<Vec<_>>(), expected);
    traces.end().await;
}

#[tokio::test]
async fn headers_of_a_file_are_shown_to_the_collector() {
    let folder = tempfile::tempdir().expect("a folder");
    let headers = folder.path().join("headers");
    std::fs::write(&headers, "authorization: Bearer secret\n").expect("written");
    let stand = Stand::new(Some("Bearer secret"));
    let mut settings = settings(stand.listen(any_port()).await);
    settings.headers_file = Some(headers);
    let prepared = Prepared::new(settings);
    prepared.spans().ended(&order("m1", Outcome::Ok));
    let traces = prepared.start("gateway-1");
    assert_eq!(stand.spans(1).await.len(), 1);
    traces.end().await;
}

#[tokio::test]
async fn what_a_collector_refuses_for_good_is_counted() {
    let stand = Stand::new(Some("Bearer secret"));
    let prepared = Prepared::new(settings(stand.listen(any_port()).await));
    let dropped = prepared.spans().dropped().expect("it exports");
    prepared.spans().ended(&order("m1", Outcome::Ok));
    let traces = prepared.start("gateway-1");
    let deadline = Instant::now() + LONG;
    while dropped.in_all() == 0 {
        assert!(Instant::now() < deadline, "it is not counted");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(dropped.in_all(), 1);
    traces.end().await;
}

#[tokio::test]
async fn while_the_collector_is_away_nobody_waits_and_what_does_not_fit_is_counted() {
    let at = nowhere().await;
    let prepared = Prepared::new(settings(at));
    let (spans, dropped) = (prepared.spans(), prepared.spans().dropped().expect("it exports"));
    let traces = prepared.start("gateway-1");
    let count = WAITING_MAX * 2;
    // This thread is the exporter's too: nothing of the queue is taken before the loop is over.
    for number in 0..count {
        spans.ended(&order(&number.to_string(), Outcome::Ok));
    }
    assert_eq!(dropped.in_all(), (count - WAITING_MAX) as u64);
    // It comes back and gets what waited, each span once.
    let stand = Stand::new(None);
    stand.listen(at).await;
    let mut ids: Vec<_> =
        stand.spans(WAITING_MAX).await.into_iter().map(|(_, span)| span.span_id).collect();
    assert_eq!(ids.len(), WAITING_MAX);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), WAITING_MAX);
    traces.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_collector_that_swallows_messages_delays_no_stop() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("collector.sock");
    // It accepts every connection and reads from none.
    let _listener = tokio::net::UnixListener::bind(&path).expect("a socket");
    let endpoint = format!("unix:{}", path.display()).parse().expect("an address");
    let prepared = Prepared::new(TraceSettings { endpoint, ..settings(any_port()) });
    prepared.spans().ended(&order("m1", Outcome::Ok));
    let traces = prepared.start("gateway-1");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let began = Instant::now();
    traces.end().await;
    assert!(began.elapsed() <= Duration::from_millis(501), "{:?}", began.elapsed());
}

#[test]
fn without_an_exporter_nothing_is_made() {
    let spans = OrderSpans::default();
    spans.ended(&order("m1", Outcome::Ok));
    assert!(spans.dropped().is_none());
}
