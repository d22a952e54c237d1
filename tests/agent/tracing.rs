//! Followed orders: the spans a collector gets, and the lines a log has. In `metrics`: the metrics
//! it gets.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use guest_agent_lab::{ArtifactFaults, CutOff};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::MetricsServiceServer;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use crate::harness::{Bed, orders};

mod metrics;

/// What a sender's own trace looks like.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// A span, and what it says of who exported it.
type Exported = (BTreeMap<String, String>, Span);

/// A collector on a unix socket, which keeps all that it is sent.
struct Collector {
    spans: Arc<Mutex<Vec<Exported>>>,
    /// The newest of each, by name.
    metrics: Arc<Mutex<BTreeMap<String, Metric>>>,
    server: JoinHandle<()>,
}

#[derive(Clone)]
struct Service {
    spans: Arc<Mutex<Vec<Exported>>>,
    metrics: Arc<Mutex<BTreeMap<String, Metric>>>,
}

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        authorize(&request)?;
        for resource in request.into_inner().resource_spans {
            let who = resource.resource.unwrap_or_default().attributes;
            let who: BTreeMap<_, _> =
                who.iter().map(|pair| (pair.key.clone(), plain(pair.value.as_ref()))).collect();
            for scope in resource.scope_spans {
                let mut spans = self.spans.lock().unwrap();
                spans.extend(scope.spans.into_iter().map(|span| (who.clone(), span)));
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn authorize<T>(request: &Request<T>) -> Result<(), Status> {
    match request.metadata().get("authorization") {
        Some(token) if token == "Bearer secret" => Ok(()),
        _ => Err(Status::unauthenticated("no token")),
    }
}

fn plain(value: Option<&opentelemetry_proto::tonic::common::v1::AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(flag)) => flag.to_string(),
        _ => String::new(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn field(span: &Span, name: &str) -> String {
    let found = span.attributes.iter().find(|attribute| attribute.key == name);
    found.map(|attribute| plain(attribute.value.as_ref())).unwrap_or_default()
}

fn code(span: &Span) -> StatusCode {
    span.status.as_ref().map_or(StatusCode::Unset, |status| status.code())
}

// === impl Collector ===

impl Collector {
    /// A collector that listens at this path; it keeps what the collector before it received.
    fn listen(path: PathBuf, before: Option<Self>) -> Self {
        drop(std::fs::remove_file(&path));
        let (spans, metrics) =
            before.map(|before| (before.spans, before.metrics)).unwrap_or_default();
        let listener = UnixListenerStream::new(UnixListener::bind(path).unwrap());
        let service = Service { spans: spans.clone(), metrics: metrics.clone() };
        let server = tonic::transport::Server::builder()
            .add_service(TraceServiceServer::new(service.clone()))
            .add_service(MetricsServiceServer::new(service));
        let server = tokio::spawn(async move {
            server.serve_with_incoming(listener).await.unwrap();
        });
        Self { spans, metrics, server }
    }

    fn all(&self) -> Vec<Span> {
        self.spans.lock().unwrap().iter().map(|(_, span)| span.clone()).collect()
    }

    /// Waits for a span of this name with this field.
    async fn span(&self, bed: &Bed, name: &str, (key, value): (&str, &str)) -> Span {
        let found = async || {
            self.all().into_iter().find(|span| span.name == name && field(span, key) == value)
        };
        bed.until(&format!("a span {name} with {key}={value}"), found).await
    }

    /// The spans below one, by name; those of other traces or without a parent that arrived are a
    /// failure.
    async fn below(&self, bed: &Bed, root: &Span, wanted: &[&str]) -> Vec<Span> {
        let of_trace = || {
            let all = self.all().into_iter();
            all.filter(|span| span.trace_id == root.trace_id).collect::<Vec<_>>()
        };
        bed.until(&format!("the spans {wanted:?}"), async || {
            let all = of_trace();
            wanted.iter().all(|name| all.iter().any(|span| span.name == *name)).then_some(())
        })
        .await;
        let all = of_trace();
        for name in wanted {
            let mut span = all.iter().find(|span| span.name == *name).unwrap();
            // Up to the root, through spans that arrived, in as many steps as there can be.
            for _ in 0..all.len() {
                if span.span_id == root.span_id {
                    break;
                }
                let above = all.iter().find(|other| other.span_id == span.parent_span_id);
                span = above.unwrap_or_else(|| panic!("{name} hangs in the air: {all:#?}"));
            }
            assert_eq!(span.span_id, root.span_id, "{name} is not below the order");
        }
        all
    }
}

/// A bed whose agent exports to a collector at `otlp.sock`; with the token that it wants.
async fn bed() -> (Bed, PathBuf) {
    let mut bed =
        Bed::builder().set("telemetry.interval=100ms").set("log.format=json").build().await;
    let socket = bed.dir().join("otlp.sock");
    let headers = bed.dir().join("headers");
    std::fs::write(&headers, "authorization: Bearer secret\n").unwrap();
    bed.set(format!("telemetry.otlp_endpoint=unix:{}", socket.display()));
    bed.set(format!("telemetry.otlp_headers_file={}", headers.display()));
    (bed, socket)
}

/// The parts of an installation and a launch of a daemon.
const PARTS: [&str; 12] = [
    "receive",
    "install",
    "admission",
    "queue",
    "download",
    "unpack",
    "verify",
    "publish",
    "launch",
    "spawn",
    "connect",
    "start",
];

#[tokio::test]
async fn an_order_is_followed_from_its_frame_to_the_process() {
    let (mut bed, socket) = bed().await;
    let collector = Collector::listen(socket, None);
    bed.start_agent().await;
    let mut echo = bed.echo().await;
    echo.url.push_str("?signature=topsecret");
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    let running = bed.running("echo", "1").await;
    let order = collector.span(&bed, "order", ("plugin", "echo")).await;
    assert_eq!((code(&order), field(&order, "outcome")), (StatusCode::Ok, "ok".to_owned()));
    assert_eq!(field(&order, "revision"), "1");
    assert!(!field(&order, "message_id").is_empty() && order.parent_span_id.is_empty());
    let all = collector.below(&bed, &order, &PARTS).await;
    let spawn = all.iter().find(|span| span.name == "spawn").unwrap();
    assert_eq!(field(spawn, "pid"), running.pid.unwrap().to_string());
    let inside = |span: &Span| {
        span.start_time_unix_nano >= order.start_time_unix_nano
            && span.end_time_unix_nano >= span.start_time_unix_nano
    };
    assert!(all.iter().all(inside), "{all:#?}");
    assert!(!format!("{all:?}").contains("topsecret"), "signatures are secret");
    let (who, _) = collector.spans.lock().unwrap()[0].clone();
    assert_eq!((&*who["service.name"], &*who["host.id"]), ("guest-agent", "test"));

    // The same request in the log: by message, by order, by plugin.
    let lines: Vec<serde_json::Value> =
        bed.log().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told = lines.iter().find(|line| line["message"] == "is done").unwrap();
    assert_eq!(told["message_id"], field(&order, "message_id"));
    assert_eq!((&told["plugin"], &told["revision"]), (&"echo".into(), &"1".into()));
    assert_eq!(told["order"].to_string(), field(&order, "order"));
    assert_eq!(told["trace_id"], hex(&order.trace_id));

    // A crash is followed on its own way back.
    crate::harness::signal(running.pid.unwrap(), nix::sys::signal::Signal::SIGKILL);
    let back = collector.span(&bed, "restart", ("plugin", "echo")).await;
    assert_eq!(field(&back, "outcome"), "ok");
    assert_ne!(back.trace_id, order.trace_id);
    collector.below(&bed, &back, &["launch", "spawn", "start"]).await;
    bed.finish().await;
}

#[tokio::test]
async fn an_order_is_followed_through_the_death_of_the_agent() {
    let (mut bed, socket) = bed().await;
    let collector = Collector::listen(socket, None);
    bed.start_agent().await;
    let echo = bed.echo().await;
    let stall = Some(CutOff { after_bytes: 100, requests: 1 });
    let faults = ArtifactFaults { stall, ..ArtifactFaults::default() };
    bed.artifacts.set_faults(&echo.name, faults);
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    // The first life gets no further than this; the second one is not kept waiting.
    bed.status_where("echo", "its download stalls", |status| {
        status.progress.as_ref().is_some_and(|progress| progress.received_bytes == 100)
    })
    .await;
    bed.until("the reception was exported", async || {
        collector.all().iter().any(|span| span.name == "receive").then_some(())
    })
    .await;
    let unfinished = collector.all();
    assert!(unfinished.iter().all(|span| span.name != "order"), "the order is still under way");
    bed.kill_agent().await;
    bed.start_agent().await;
    bed.running("echo", "1").await;
    let order = collector.span(&bed, "order", ("plugin", "echo")).await;
    assert_eq!(field(&order, "outcome"), "ok");
    // What the first life did is below the span that the second one told of.
    collector.below(&bed, &order, &PARTS).await;
    let received = unfinished.iter().find(|span| span.name == "receive").unwrap();
    assert_eq!(order.start_time_unix_nano, received.start_time_unix_nano);
    let pids: std::collections::BTreeSet<_> =
        collector.spans.lock().unwrap().iter().map(|(who, _)| who["process.pid"].clone()).collect();
    assert_eq!(pids.len(), 2, "two lives of the agent");
    bed.finish().await;
}

#[tokio::test]
async fn refusals_and_failures_say_why_and_a_sender_finds_its_own_trace() {
    let (mut bed, socket) = bed().await;
    let collector = Collector::listen(socket, None);
    bed.start_agent().await;
    bed.set_environment(vec![("TRACEPARENT".to_owned(), format!("00-{TRACE}-{PARENT}-01"))]);
    let mut echo = bed.echo().await;
    echo.url.push_str("?signature=topsecret");
    let wrong = "0".repeat(64);
    let said = bed
        .cli(&[
            "install",
            "echo",
            "--revision",
            "1",
            "--url",
            &echo.url,
            "--sha256",
            &wrong,
            "--entry-point",
            "bin/plugin",
            "--wait",
        ])
        .await;
    assert_ne!(said.code, 0, "{said:?}");
    let failed = collector.span(&bed, "order", ("plugin", "echo")).await;
    assert_eq!(
        (code(&failed), field(&failed, "outcome")),
        (StatusCode::Error, "failed".to_owned())
    );
    let why = failed.status.clone().unwrap().message;
    assert!(why.contains("sha256") || why.contains("SHA-256") || why.contains("checksum"), "{why}");
    assert!(!format!("{:?}", collector.all()).contains("topsecret"), "{why}");
    assert_eq!((hex(&failed.trace_id), hex(&failed.parent_span_id)), (TRACE.into(), PARENT.into()));
    // An order that cannot be carried out, and one that cannot be decoded.
    bed.configure(vec![orders::apply("nobody", None), orders::remove("../x")]).await;
    let nobody = collector.span(&bed, "order", ("plugin", "nobody")).await;
    assert!(nobody.status.clone().unwrap().message.contains("no plugin has this name"));
    let nonsense = collector.span(&bed, "order", ("plugin", "../x")).await;
    assert_eq!(code(&nonsense), StatusCode::Error);
    assert_eq!(nonsense.trace_id, nobody.trace_id, "of one message");
    bed.finish().await;
}

#[tokio::test]
async fn a_collector_that_is_away_holds_nothing_up_and_gets_what_waited() {
    let (mut bed, socket) = bed().await;
    bed.start_agent().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.running("echo", "1").await;
    let away = "the collector does not accept traces";
    bed.until("one warning", async || bed.log().contains(away).then_some(())).await;
    let collector = Collector::listen(socket.clone(), None);
    let order = collector.span(&bed, "order", ("plugin", "echo")).await;
    collector.below(&bed, &order, &PARTS).await;
    bed.until("a word that it is back", async || {
        bed.log().contains("the collector accepts").then_some(())
    })
    .await;
    assert_eq!(bed.log().matches(away).count(), 1, "said once");
    // It restarts, and is sent what comes then.
    collector.server.abort();
    let collector = Collector::listen(socket, Some(collector));
    bed.configure(vec![orders::remove("echo")]).await;
    bed.gone("echo").await;
    let count = async || {
        let orders = collector.all().iter().filter(|span| span.name == "order").count();
        (orders >= 2).then_some(())
    };
    bed.until("the second order", count).await;
    bed.finish().await;
}
