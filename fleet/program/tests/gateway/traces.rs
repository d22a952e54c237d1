//! The program and a collector of spans: an order becomes a span under the id of its message.

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use crate::gateway::binary::{Machine, Served, ask, declare};
use crate::gateway::{AGENT, LONG};

struct Collector(mpsc::UnboundedSender<Span>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for resource in request.into_inner().resource_spans {
            for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                drop(self.0.send(span));
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn text(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|it| it.key == key).and_then(|it| it.value.clone());
    match found.and_then(|it| it.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => panic!("{key} is {other:?}"),
    }
}

#[tokio::test]
async fn an_order_is_a_span_of_its_message_and_without_a_collector_orders_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (taken, mut spans) = mpsc::unbounded_channel();
    let collector = tonic::transport::Server::builder()
        .add_service(TraceServiceServer::new(Collector(taken)))
        .serve_with_incoming(TcpListenerStream::new(listener));
    let collector = tokio::spawn(collector);
    let options = ["--otlp-endpoint", &endpoint, "--otlp-interval", "1s"];
    let served = Served::start_with(path, &options).await;
    declare(path, "1").await;
    let mut machine = Machine::connect(path, "").await;
    ask(path, &["agent", "label", AGENT, "env=prod"]).await;
    let (id, _, generation) = machine.ordered().await;
    machine.does(&id, "1").await;
    let span = tokio::time::timeout(LONG, spans.recv()).await.expect("it comes").unwrap();
    // What docs/tracing.md has agents call the trace of this message.
    let digest = Sha256::digest(format!("guest-agent\0trace\0message\0{id}"));
    assert_eq!((span.name.as_str(), &span.trace_id[..]), ("order", &digest[..16]));
    assert_eq!(text(&span, "message_id"), id);
    assert_eq!(text(&span, "resource"), AGENT);
    assert_eq!(text(&span, "plugin"), "monitor");
    assert_eq!(text(&span, "revision"), "1");
    assert_eq!(text(&span, "generation"), generation.to_string());
    assert_eq!(text(&span, "outcome"), "ok");
    assert!(span.start_time_unix_nano <= span.end_time_unix_nano);

    collector.abort();
    declare(path, "2").await;
    let (id, revision, _) = machine.ordered().await;
    machine.does(&id, &revision).await;
    let explained = ask(path, &["explain", AGENT, "monitor"]).await;
    assert!(explained.contains("done"), "{explained}");
    served.stop().await;
}
