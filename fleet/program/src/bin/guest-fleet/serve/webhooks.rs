//! Webhooks of the server.

use std::path::PathBuf;

use clap::Args;
use guest_fleet_server::net::outbound::AllowedHost;
use guest_fleet_server::webhooks::settings::{self, Webhook};
use guest_fleet_server::webhooks::{Timings, Webhooks};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::observe::Observed;

/// The options of it.
#[derive(Args)]
#[group(skip)]
pub(crate) struct Options {
    /// File with the webhooks that events are sent to.
    #[arg(long, value_name = "FILE")]
    webhooks: Option<PathBuf>,
    /// Host that webhooks may be sent to, such as hooks.example or *.example; may be given several
    /// times. Without it they may be sent to all.
    #[arg(long = "webhook-host", value_name = "HOST", requires = "webhooks")]
    hosts: Vec<AllowedHost>,
}

// === impl Options ===

impl Options {
    /// Reads the file.
    pub(crate) fn read(&self) -> anyhow::Result<Vec<Webhook>> {
        let Some(path) = &self.webhooks else { return Ok(Vec::new()) };
        settings::read(path, &self.hosts).map_err(|problems| {
            let lines: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
            anyhow::anyhow!("the webhooks cannot be used:\n{}", lines.join("\n"))
        })
    }

    /// Delivers them until `ending`.
    pub(crate) fn start(
        &self,
        webhooks: Vec<Webhook>,
        observed: &Observed,
        ending: &CancellationToken,
        tasks: &mut JoinSet<()>,
    ) {
        if webhooks.is_empty() {
            return;
        }
        let shared = Webhooks {
            ledger: observed.ledger.clone(),
            allowed: self.hosts.clone().into(),
            figures: observed.figures.clone(),
            timings: Timings::default(),
        };
        tasks.spawn(shared.run(webhooks, ending.clone()));
    }
}
