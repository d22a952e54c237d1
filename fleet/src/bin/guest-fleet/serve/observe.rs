//! What watches the server: the listener of health and metrics, and what they are made of.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context;
use clap::Args;
use guest_fleet::Listen;
use guest_fleet::enroll::Authorities;
use guest_fleet::gateway::orders::Orders;
use guest_fleet::ledger::SharedLedger;
use guest_fleet::observe::figures::Figures;
use guest_fleet::observe::health::{Health, Stage};
use guest_fleet::observe::http::HttpServer;
use guest_fleet::observe::ledger::ObservedLedger;
use guest_fleet::observe::snapshot::Sources;
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
    pub(crate) authorities: Option<&'a Authorities>,
    pub(crate) certificates: [(&'static str, Option<&'a PathBuf>); 2],
    pub(crate) failed: Option<CancellationToken>,
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
        let files = shown.certificates.into_iter();
        let sources = Sources {
            figures: self.figures.clone(),
            health,
            engine: self.engine,
            authorities: shown.authorities.cloned(),
            certificates: files.filter_map(|(what, path)| Some((what, path?.clone()))).collect(),
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
