//! What watches the server: the listener of health and metrics, and what they are made of.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::Args;
use guest_agent_serve_kit::listen::Listen;
use guest_fleet_core::duration;
use guest_fleet_ledger::SharedLedger;
use guest_fleet_server::enroll::ends::Ends;
use guest_fleet_server::net::outbound::grpc::GrpcServer;
use guest_fleet_server::observe::fleet::FleetReader;
use guest_fleet_server::observe::health::{Health, Stage};
use guest_fleet_server::observe::http::HttpServer;
use guest_fleet_server::observe::ledger::ObservedLedger;
use guest_fleet_server::observe::snapshot::Sources;
use guest_fleet_server::orders::Orders;
use guest_fleet_server::telemetry::figures::Figures;
use guest_fleet_server::telemetry::traces::{OrderSpans, Prepared, TraceSettings};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The options of it.
#[derive(Args)]
#[group(skip)]
pub(crate) struct Options {
    /// Where /healthz, /readyz and /metrics are: `unix:/path`, or an address of this machine such as
    /// 127.0.0.1:9464.
    #[arg(long, value_name = "ADDRESS")]
    http_listen: Option<Listen>,
    /// Send a span for each order to this OTLP collector (gRPC): `https://HOST[:PORT]`, or on this
    /// machine `http://127.0.0.1:4317` or `unix:/path`.
    #[arg(long, value_name = "ENDPOINT")]
    otlp_endpoint: Option<GrpcServer>,
    /// File with headers for the collector, a `name: value` per line; read for every connection.
    #[arg(long, value_name = "FILE", requires = "otlp_endpoint")]
    otlp_headers_file: Option<PathBuf>,
    /// Authorities that may have signed the collector's certificate, PEM, in place of those of this
    /// machine.
    #[arg(long, value_name = "FILE", requires = "otlp_endpoint")]
    otlp_ca_file: Option<PathBuf>,
    /// Longest time for which spans wait for others before they are sent.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = otlp_wait,
          requires = "otlp_endpoint")]
    otlp_interval: Duration,
    /// How long the collector may take for one message.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = otlp_wait,
          requires = "otlp_endpoint")]
    otlp_timeout: Duration,
}

/// Longest waits of the exporter.
const OTLP_WAIT: Duration = Duration::from_secs(600);

fn otlp_wait(text: &str) -> Result<Duration, String> {
    let wait = duration::parse(text)?;
    if wait.is_zero() || wait > OTLP_WAIT {
        return Err(format!("`{text}` is not from 1s to {}s", OTLP_WAIT.as_secs()));
    }
    Ok(wait)
}

/// What is counted, from the start on.
pub(crate) struct Observed {
    /// The counts.
    pub(crate) figures: Arc<Figures>,
    /// The ledger, as all others use it.
    pub(crate) ledger: SharedLedger,
    engine: &'static str,
    stage: watch::Sender<Stage>,
    started_at: SystemTime,
}

/// What the listener shows.
pub(crate) struct Shown<'a> {
    pub(crate) orders: &'a Arc<Orders>,
    pub(crate) ends: Ends,
    pub(crate) failed: Option<CancellationToken>,
    pub(crate) spans: OrderSpans,
}

// === impl Options ===

impl Options {
    /// What exports spans, where that is wanted.
    pub(crate) fn traces(&self) -> Option<Prepared> {
        let settings = TraceSettings {
            endpoint: self.otlp_endpoint.clone()?,
            headers_file: self.otlp_headers_file.clone(),
            ca_file: self.otlp_ca_file.clone(),
            interval: self.otlp_interval,
            timeout: self.otlp_timeout,
        };
        Some(Prepared::new(settings))
    }
}

// === impl Observed ===

impl Observed {
    /// Begins to count on a ledger.
    pub(crate) fn new(ledger: SharedLedger, engine: &'static str) -> Self {
        let figures = Arc::<Figures>::default();
        let ledger = ObservedLedger::new(ledger, figures.clone());
        let (stage, started_at) = (watch::Sender::new(Stage::Starting), SystemTime::now());
        Self { figures, ledger, engine, stage, started_at }
    }

    /// Listens, where that is wanted. `/readyz` reports what is not bound yet.
    pub(crate) async fn listen(
        &self,
        options: &Options,
        shown: Shown<'_>,
    ) -> anyhow::Result<Option<HttpServer>> {
        let Some(address) = &options.http_listen else { return Ok(None) };
        let health = Health {
            ledger: self.ledger.clone(),
            failed: shown.failed,
            orders: Some(shown.orders.clone()),
            stage: self.stage.subscribe(),
        };
        let sources = Sources {
            figures: self.figures.clone(),
            fleet: FleetReader::default(),
            health,
            engine: self.engine,
            ends: shown.ends,
            spans: shown.spans,
            started_at: self.started_at,
        };
        let server = HttpServer::start(address, sources).await;
        server.map(Some).context("health and metrics cannot be served: see --http-listen")
    }

    /// How far the server has come, for `/readyz`.
    pub(crate) fn is(&self, stage: Stage) {
        self.stage.send_replace(stage);
    }
}
