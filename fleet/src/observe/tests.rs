//! The page over a real socket, what it says of a whole fleet, and the reference that is made from the catalogue.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_agent_observe_kit::page::{self, Format};
use guest_agent_serve_kit::socket::SocketError;
use guest_fleet_ledger::{Failure, MemoryLedger, Verb};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;

use super::catalogue::{Kind, METRICS};
use super::fleet::FleetReader;
use super::health::{Health, Stage};
use super::http::{HttpError, HttpServer};
use super::ledger::ObservedLedger;
use super::process::Process;
use super::snapshot::{Certificate, Snapshot, Sources};
use crate::enroll::ends::Ends;
use crate::telemetry::figures::{Asked, Figures, Listener, OrderStep};
use crate::telemetry::traces::OrderSpans;

mod fleet;

/// Counts of everything that there is a metric for.
fn counted() -> Arc<Figures> {
    let figures = Arc::<Figures>::default();
    figures.streams(3);
    figures.stream_opened();
    figures.refused(tonic::Code::PermissionDenied);
    figures.order(OrderStep::Failed);
    figures.settled(OrderStep::Failed, Duration::from_secs(7));
    figures.order_frame();
    figures.journal_conflict();
    figures.session_replaced();
    figures.event(true);
    figures.event(false);
    figures.operation(Verb::Append, Duration::from_millis(3), Some(Failure::Conflict));
    figures.artifact_read(5);
    figures.artifact_written(6);
    figures.certificate(Asked::Renewal);
    figures.certificate_refused(Asked::Enrolment, "token_unknown");
    figures.connection_closed(Listener::Gateway);
    figures.webhook("pager", |webhook| {
        webhook.is_ours = true;
        webhook.waiting_since = Some(SystemTime::now() - Duration::from_secs(60));
    });
    figures
}

fn snapshot(figures: &Figures) -> Snapshot {
    Snapshot {
        now: SystemTime::now(),
        started_at: SystemTime::now(),
        engine: "memory",
        counted: figures.now(),
        fleet: Some(Arc::new(fleet::counts())),
        checks: vec![super::health::Check { name: "view", problem: Some("why".to_owned()) }],
        spans_dropped: 1,
        view_age: Some(Duration::from_secs(2)),
        certificates: vec![Certificate {
            of: "authority",
            ends: SystemTime::now(),
            is_stuck: true,
        }],
        process: Process::measure(),
    }
}

fn sources() -> (Sources, watch::Sender<Stage>) {
    let figures = counted();
    let ledger = ObservedLedger::new(Arc::new(MemoryLedger::new()), figures.clone());
    let (stage, seen) = watch::channel(Stage::Starting);
    let health = Health { ledger, failed: None, orders: None, stage: seen };
    let sources = Sources {
        figures,
        fleet: FleetReader::default(),
        health,
        engine: "memory",
        ends: Ends::default(),
        spans: OrderSpans::default(),
        started_at: SystemTime::now(),
    };
    (sources, stage)
}

#[test]
fn every_metric_of_the_catalogue_is_on_the_page_with_its_labels() {
    let text = page::render(snapshot(&counted()), Format::OpenMetrics).expect("a page");
    for metric in METRICS {
        let line = format!("# TYPE {} {}\n", metric.family(), metric.kind.as_str());
        assert!(text.contains(&line), "{line} is missing:\n{text}");
        let sample = format!(
            "{}{}",
            metric.family(),
            match metric.kind {
                Kind::Histogram => "_bucket",
                _ => metric.suffix(),
            }
        );
        let found = text.lines().find(|line| {
            line.strip_prefix(&sample).is_some_and(|rest| rest.starts_with(['{', ' ']))
        });
        let found = found.unwrap_or_else(|| panic!("no sample of {sample}"));
        for label in metric.labels {
            assert!(found.contains(&format!("{label}=\"")), "{found}");
        }
    }
    for sample in [
        "guest_fleet_orders_total{state=\"failed\"} 1",
        "guest_fleet_orders_total{state=\"done\"} 0",
        "guest_fleet_refused_total{status=\"permission_denied\"} 1",
        "guest_fleet_ready{check=\"view\"} 0",
        "guest_fleet_agents{presence=\"never_seen\"} 3",
        "guest_fleet_standings{state=\"out_of_memory\"} 2",
        "guest_fleet_index_age_seconds 7",
        "guest_fleet_gateways{state=\"silent\"} 1",
        "guest_fleet_stops{cause=\"many_drifted\"} 1",
        "guest_fleet_rollouts{state=\"waiting_for_approval\"} 1",
        "guest_fleet_rollout_state{assignment=\"web\",state=\"waiting_for_approval\"} 1",
        "guest_fleet_rollout_failed{assignment=\"web\"} 4",
        "guest_fleet_events_total{kind=\"known\"} 1",
        "guest_fleet_ledger_failures_total{engine=\"memory\",verb=\"append\",failure=\"conflict\"} 1",
        "guest_fleet_order_duration_seconds_bucket{le=\"10.0\",outcome=\"failed\"} 1",
    ] {
        assert!(text.lines().any(|line| line.starts_with(sample)), "{sample}:\n{text}");
    }
}

/// The reference page, from the catalogue alone.
fn reference() -> String {
    let mut page = String::from(
        "# Metrics of a fleet\n\n\
         <!-- Made from fleet/src/observe/catalogue.rs: UPDATE_GENERATED=1 cargo test -p guest-fleet-server --lib \
         observe::tests -->\n\n\
         `/metrics` on `--http-listen` of `guest-fleet serve` is in the OpenMetrics text format for clients that \
         accept it, and in Prometheus' text format 0.0.4 for all others. Counters begin anew with every start. \
         What is not known is absent. No label has the name of an agent or of a plugin: their number has no bound. Every gateway shows \
         the same counts of the whole fleet, at most ten seconds later than the ledger has them.\n\n\
         | metric | type | labels | what it says | when it looks bad |\n|---|---|---|---|---|\n",
    );
    page.extend(METRICS.iter().map(|metric| metric.row()));
    page
}

#[test]
fn the_reference_is_what_the_catalogue_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/fleet-metrics.md");
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::write(&path, reference()).expect("written");
    }
    let found = std::fs::read_to_string(&path).expect("the page");
    let hint = "UPDATE_GENERATED=1 cargo test -p guest-fleet-server --lib observe::tests writes it";
    assert!(found == reference(), "{} is not what the catalogue says; {hint}", path.display());
}

#[test]
fn names_keep_the_conventions_and_texts_fit_a_table() {
    let mut names = BTreeSet::new();
    for metric in METRICS {
        for name in metric.samples() {
            assert!(
                name.bytes().all(|c| c.is_ascii_lowercase() || c == b'_' || c.is_ascii_digit())
            );
            assert!(names.insert(name.clone()), "{name} stands twice");
        }
        let is_ours = metric.name.starts_with("guest_fleet_");
        assert!(is_ours || metric.name.starts_with("process_"), "{}", metric.name);
        assert!(!metric.name.ends_with("_total"), "{}: its kind appends that", metric.name);
        for text in [metric.help, metric.then] {
            assert!(text.ends_with(['.', ')']) && !text.contains(['|', '\n', '\\']), "{text}");
        }
    }
}

/// What the server answers to a request.
async fn ask(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, head: &str) -> String {
    let request = format!("{head}\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer
}

#[tokio::test]
async fn health_and_metrics_are_answered_on_loopback() {
    let (sources, stage) = sources();
    let listen = "127.0.0.1:0".parse().expect("an address");
    let server = HttpServer::start(&listen, sources).await.expect("it listens");
    let at = server.endpoint().strip_prefix("http://").expect("an endpoint").to_owned();
    let get = async |head: &str| ask(TcpStream::connect(&at).await.expect("connected"), head).await;

    let alive = get("GET /healthz HTTP/1.1").await;
    assert!(alive.starts_with("HTTP/1.1 200 "), "{alive}");
    let starting = get("GET /readyz HTTP/1.1").await;
    assert!(starting.starts_with("HTTP/1.1 503 "), "{starting}");
    let (_, body) = starting.split_once("\r\n\r\n").expect("a body");
    let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(body["status"], "not ready");
    let check = serde_json::json!({
        "check": "listeners", "passed": false, "reason": "not all listeners are bound yet",
    });
    assert!(body["checks"].as_array().expect("checks").contains(&check), "{body}");
    stage.send_replace(Stage::Serving);
    let ready = get("GET /readyz HTTP/1.1").await;
    assert!(ready.starts_with("HTTP/1.1 200 "), "{ready}");

    let old = get("GET /metrics HTTP/1.1").await;
    assert!(old.contains("text/plain; version=0.0.4") && !old.contains("# EOF"), "{old}");
    assert!(old.contains("guest_fleet_streams 3"), "{old}");
    let new = get("GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text").await;
    assert!(new.contains("application/openmetrics-text") && new.contains("# EOF"), "{new}");
    assert!(get("GET /x HTTP/1.1").await.starts_with("HTTP/1.1 404 "));
    assert!(get("POST /metrics HTTP/1.1").await.starts_with("HTTP/1.1 405 "));
    server.shutdown().await;
    assert!(TcpStream::connect(&at).await.is_err(), "it does not listen any more");
}

#[tokio::test]
async fn a_unix_socket_is_for_its_owner_and_goes_with_the_server() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("http.sock");
    let listen = guest_agent_serve_kit::listen::Listen::Unix(path.clone());
    let server = HttpServer::start(&listen, sources().0).await.expect("it listens");
    let mode = std::fs::metadata(&path).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let second = HttpServer::start(&listen, sources().0).await;
    assert!(matches!(second, Err(HttpError::Socket(SocketError::InUse(_)))));
    let stream = UnixStream::connect(&path).await.expect("connected");
    assert!(ask(stream, "GET /healthz HTTP/1.1").await.starts_with("HTTP/1.1 200 "));
    server.shutdown().await;
    assert!(!path.exists());
}

#[tokio::test]
async fn other_machines_are_not_served() {
    let listen = "0.0.0.0:0".parse().expect("an address");
    let refused = HttpServer::start(&listen, sources().0).await;
    assert!(matches!(refused, Err(HttpError::OffLoopback(_))));
}

#[tokio::test]
async fn clients_that_say_nothing_keep_no_other_out() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("http.sock");
    let server =
        HttpServer::start(&guest_agent_serve_kit::listen::Listen::Unix(path.clone()), sources().0)
            .await
            .expect("listens");
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(UnixStream::connect(&path).await.expect("connected"));
    }
    // Of those beyond the bound nothing is kept: they are closed at once.
    let mut byte = [0];
    let last = silent.last_mut().expect("one");
    let read = tokio::time::timeout(Duration::from_secs(30), last.read(&mut byte)).await;
    assert_eq!(read.expect("it is closed").unwrap_or(0), 0);
    drop(silent);
    let served = async {
        loop {
            let stream = UnixStream::connect(&path).await.expect("connected");
            let mut stream = stream;
            let request = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            let mut answer = String::new();
            if stream.write_all(request.as_bytes()).await.is_ok()
                && stream.read_to_string(&mut answer).await.is_ok()
                && answer.starts_with("HTTP/1.1 200 ")
            {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), served).await.expect("others are served");
    server.shutdown().await;
}
