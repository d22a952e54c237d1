//! Tells the gateway of a fleet what the agent and its plugins are.
//!
//! ```text
//!   link ── a stream of a fleet ──►┐
//!   ManagerActor ── roster moved ──┤► ReportActor ── one report, when it changed ──► ControlLink
//!   ControlPlaneActor ── numbers ──┘
//! ```
//!
//! A report is sent on each new stream of a server that announced itself as a fleet, and again when
//! it says something else, at most one a second. It is not stored: a stream that begins gets the
//! newest one. Other servers get none.

mod faults;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::control_plane::fleet::FleetGenerations;
use crate::messages::{LinkChanged, ListViews};
use crate::ports::{DeliveryError, OutboundMessage, Ports, ServerKind};
use crate::wire::{self, AgentFacts, HostFacts};
use faults::Faults;

/// The least time between two looks at what there is to report.
const PAUSE: Duration = Duration::from_secs(1);

/// How often one report is tried on one stream. The next is tried when something changes, or on the
/// next stream.
const ATTEMPTS_MAX: u32 = 10;

/// What reports are made from.
pub struct ReportSources {
    /// What the agent says of itself.
    pub agent: AgentFacts,
    /// The machine's own labels.
    pub labels: Arc<BTreeMap<String, String>>,
    /// Knows what plugins look like.
    pub views: Recipient<ListViews>,
    /// Moves whenever a plugin looks different.
    pub roster: watch::Receiver<u64>,
    /// The numbers of the fleet's newest orders.
    pub generations: watch::Receiver<FleetGenerations>,
}

/// The report actor.
pub struct ReportActor {
    /// The stream to report on, if there is one.
    stream: watch::Sender<Option<u64>>,
    reporter: Option<Reporter>,
}

/// The loop that sends reports.
struct Reporter {
    ports: Ports,
    sources: ReportSources,
    stream: watch::Receiver<Option<u64>>,
    /// The release of the kernel, once it was asked for: it stays as long as the boot.
    kernel: Option<String>,
    faults: Faults,
    /// What the stream has.
    sent: Option<Sent>,
}

/// The newest report that a stream has, or was tried on it.
struct Sent {
    stream: u64,
    message: OutboundMessage,
    /// Attempts so far; `None` when the server acknowledged it.
    attempts: Option<u32>,
}

// === impl ReportActor ===

impl ReportActor {
    /// An actor that reports when the first stream of a fleet is registered.
    #[must_use]
    pub fn new(ports: Ports, sources: ReportSources) -> Self {
        let stream = watch::Sender::new(None);
        let reporter = Reporter {
            ports,
            sources,
            stream: stream.subscribe(),
            kernel: None,
            faults: Faults::default(),
            sent: None,
        };
        Self { stream, reporter: Some(reporter) }
    }
}

impl Actor for ReportActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        if let Some(reporter) = self.reporter.take() {
            ctx.spawn(reporter.run().into_actor(self));
        }
    }
}

impl Handler<LinkChanged> for ReportActor {
    type Result = ();

    fn handle(&mut self, change: LinkChanged, _: &mut Self::Context) {
        self.stream.send_replace(match change {
            LinkChanged::Connected { stream, server: ServerKind::Fleet } => Some(stream),
            LinkChanged::Connected { server: ServerKind::Public, .. }
            | LinkChanged::Disconnected { .. } => None,
        });
    }
}

// === impl Reporter ===

impl Reporter {
    async fn run(mut self) {
        loop {
            let fleet = self.stream.wait_for(Option::is_some).await.map(|stream| *stream);
            // The senders end with the actors.
            let Ok(Some(stream)) = fleet else { return };
            let looked_at = Instant::now();
            let retry = self.report(stream).await;
            tokio::time::sleep_until(looked_at + PAUSE).await;
            if self.reason_to_look(retry.map(|pause| looked_at + pause)).await.is_err() {
                return;
            }
        }
    }

    /// Waits until a report is to be tried again, or there may be something new to report.
    async fn reason_to_look(
        &mut self,
        retry: Option<Instant>,
    ) -> Result<(), watch::error::RecvError> {
        let Some(retry) = retry else { return self.moved().await };
        tokio::select! {
            // In this order, so that a simulated life follows from its seed.
            biased;
            moved = self.stream.changed() => moved,
            () = tokio::time::sleep_until(retry) => Ok(()),
        }
    }

    async fn moved(&mut self) -> Result<(), watch::error::RecvError> {
        let due = self.faults.due();
        let faults_are_due = async {
            match due {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            moved = self.stream.changed() => moved,
            moved = self.sources.roster.changed() => moved,
            moved = self.sources.generations.changed() => moved,
            () = faults_are_due => Ok(()),
        }
    }

    /// Sends the newest report on a stream that does not have it; gives the pause after which it is
    /// to be tried again, if it is.
    async fn report(&mut self, stream: u64) -> Option<Duration> {
        // Whatever moves from now on is another reason to look.
        self.sources.roster.mark_unchanged();
        self.sources.generations.mark_unchanged();
        let message = self.newest().await?;
        let before = self.sent.take().filter(|sent| sent.stream == stream);
        let attempts = match before {
            Some(sent) if sent.message.body == message.body => match sent.attempts {
                None => {
                    self.sent = Some(sent);
                    return None;
                }
                // The same report, under the same id.
                Some(attempts) => {
                    self.sent = Some(sent);
                    attempts
                }
            },
            Some(_) | None => {
                let message = OutboundMessage { id: self.ports.ids.message_id(), ..message };
                self.sent = Some(Sent { stream, message, attempts: Some(0) });
                0
            }
        };
        let sent = self.sent.as_mut()?;
        let result = self.ports.link.deliver_on(stream, sent.message.clone()).await;
        let attempt = attempts.saturating_add(1);
        sent.attempts = Some(attempt).filter(|_| result.is_err());
        let error = result.err()?;
        debug!(%error, attempt, "a report was not taken");
        match error {
            // Another stream gets the newest report at once.
            DeliveryError::NotConnected => None,
            DeliveryError::TimedOut | DeliveryError::Exhausted(_) | DeliveryError::Refused(_)
                if attempt >= ATTEMPTS_MAX =>
            {
                warn!(%error, "the fleet does not take the report; it gets the next one");
                None
            }
            DeliveryError::TimedOut | DeliveryError::Exhausted(_) | DeliveryError::Refused(_) => {
                Some(error.pause(attempt, &sent.message.id))
            }
        }
    }

    /// The report as of now; `None` while it is not known which plugins there are.
    async fn newest(&mut self) -> Option<OutboundMessage> {
        let machine = &self.ports.machine;
        let kernel = match self.kernel.take() {
            Some(kernel) => kernel,
            None => machine.os().await.kernel_release,
        };
        self.kernel = Some(kernel.clone());
        let host = HostFacts {
            labels: self.sources.labels.clone(),
            host_name: machine.host_name(),
            kernel,
            boot: machine.boot_id(),
        };
        let views = self.sources.views.send(ListViews).await.ok().flatten()?;
        let now = (self.ports.clock.now(), Instant::now());
        let faults = self.faults.look(&views, now);
        let generations = self.sources.generations.borrow_and_update();
        Some(wire::encode_report(&self.sources.agent, &host, (&views, &faults), &generations))
    }
}
