//! Opens the link to the control plane, with the configured address or the metadata server's.
//!
//! An endpoint or resource id that is not configured is derived from the metadata server's answers.
//! Only the link waits for them, without a limit and without polling: the watcher of the attributes
//! reports when the server answers. Meanwhile the link shows why it has no connection.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use actix::{Addr, Recipient};
use async_trait::async_trait;
use guest_agent_actors::control_plane::ControlPlaneActor;
use guest_agent_actors::error::Chain;
use guest_agent_actors::messages::{LinkChanged, Received};
use guest_agent_actors::ports::{Cause, InboundMessage, ServerKind};
use guest_agent_actors::system::System;
use guest_agent_serve_kit::backoff::{Backoff, Jitter, Schedule};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::config::{Auth, Config, ControlPlaneConfig};
use crate::hostinfo::metadata::{Client, IdentityToken, Location, State};
use crate::link::{self, Link, LinkConfig, LinkListener, Undecided};
use crate::net::endpoint::Endpoint;
use crate::net::tls::{ClientCertificate, TlsFiles};
use crate::net::token::FileToken;

/// The waits before the agent asks the metadata server again for a missing value.
const WAITS: Schedule =
    Schedule::doubling(Duration::from_secs(1), Duration::from_secs(60), Jitter::UpperHalf);

/// The destination of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leads {
    /// No control plane is configured.
    Nowhere,
    /// To the configured endpoint.
    Somewhere,
    /// To an endpoint that the metadata server gives.
    WhereMetadataSays,
}

/// A link that is wired, but does nothing before its task runs.
pub(super) struct Opened {
    pub(super) link: Link,
    pub(super) task: Option<Pin<Box<dyn Future<Output = ()>>>>,
    pub(super) leads: Leads,
}

/// Why a link cannot be opened.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("control_plane.auth is \"metadata\", but the metadata server is turned off")]
    NoTokens,
    #[error(
        "no resource id is configured, and the metadata server, which would give it, is turned off"
    )]
    NoResource,
}

/// The values that the metadata server has to give.
struct Search {
    control: ControlPlaneConfig,
    client: Client,
    state: watch::Receiver<State>,
    /// Gets the address of the control plane.
    service_url: watch::Sender<Arc<str>>,
}

/// The name of the control plane in admission requests, before the first answer of the metadata
/// server.
pub(super) fn service_url(config: &Config) -> Arc<str> {
    let control = &config.control_plane;
    match &control.endpoint {
        Some(endpoint) if control.enabled => endpoint.to_string().into(),
        // Orders come from this machine, at least for now.
        Some(_) | None => "local".into(),
    }
}

/// Checks the configuration before the first request.
pub(super) fn check(control: &ControlPlaneConfig) -> Result<(), Cause> {
    if control.enabled {
        let somewhere = "http://127.0.0.1:1".parse()?;
        let resource = Some(&*control.resource).filter(|resource| !resource.is_empty());
        LinkConfig::new(somewhere, resource.unwrap_or("unknown"), &control.channel)?;
    }
    Ok(())
}

/// Opens the link as configured. The link stays disabled when `control_plane.enabled` is false, and
/// without both an endpoint and a metadata server; the agent then takes orders only from this
/// machine.
pub(super) fn open(
    config: &Config,
    client: Option<Client>,
    state: watch::Receiver<State>,
    listener: &Arc<Listener>,
    service_url: watch::Sender<Arc<str>>,
) -> Result<Opened, Cause> {
    let control = &config.control_plane;
    check(control)?;
    let endpoint = control.endpoint.clone();
    if !control.enabled || (endpoint.is_none() && client.is_none()) {
        info!("no control plane is configured; orders come from this machine only");
        return Ok(Opened { link: Link::disabled(), task: None, leads: Leads::Nowhere });
    }
    if let Some(endpoint) = &endpoint
        && !control.resource.is_empty()
    {
        let config = link_config(control, endpoint.clone(), &control.resource, client)?;
        let (link, task) = link::connect(config, listener.clone());
        let task: Pin<Box<dyn Future<Output = ()>>> = Box::pin(task.run());
        return Ok(Opened { link, task: Some(task), leads: Leads::Somewhere });
    }
    let client = client.ok_or(OpenError::NoResource)?;
    let (link, undecided) = link::connect_later(listener.clone());
    let search = Search { control: control.clone(), client, state, service_url };
    let leads = if endpoint.is_some() { Leads::Somewhere } else { Leads::WhereMetadataSays };
    Ok(Opened { link, task: Some(Box::pin(search.run(undecided))), leads })
}

fn link_config(
    control: &ControlPlaneConfig,
    endpoint: Endpoint,
    resource: &str,
    client: Option<Client>,
) -> Result<LinkConfig, Cause> {
    let mut link = LinkConfig::new(endpoint, resource, &control.channel)?;
    let mut tls = TlsFiles {
        authorities: (!control.ca_file.is_empty()).then(|| control.ca_file.clone().into()),
        client: None,
    };
    match control.auth {
        Auth::None => {}
        Auth::TokenFile => {
            link = link.with_tokens(Arc::new(FileToken::new(control.token_file.clone().into())));
        }
        Auth::Mtls => {
            tls.client = Some(ClientCertificate {
                certificate: control.client_cert.clone().into(),
                key: control.client_key.clone().into(),
            });
        }
        Auth::Metadata => {
            let client = client.ok_or(OpenError::NoTokens)?;
            link = link.with_tokens(Arc::new(IdentityToken::new(client)));
        }
    }
    Ok(link.with_tls(tls))
}

// === impl Search ===

impl Search {
    /// Finds the destination of the link, then keeps the link connected until it is closed.
    async fn run(mut self, undecided: Undecided) {
        let config = tokio::select! {
            config = self.find(&undecided) => config,
            () = undecided.closed() => return,
        };
        undecided.decide(config).run().await;
    }

    async fn find(&mut self, undecided: &Undecided) -> LinkConfig {
        let mut backoff = Backoff::new(WAITS);
        loop {
            self.somebody_answers(undecided).await;
            match self.ask().await {
                Ok(config) => return config,
                Err(error) => self.explain(undecided, &Chain(&*error).to_string()),
            }
            tokio::time::sleep(backoff.next(rand::random())).await;
        }
    }

    /// One request for each value. Requests to a broken server end after a short time.
    async fn ask(&self) -> Result<LinkConfig, Cause> {
        let place = Location::ask(&self.client).await?;
        let endpoint = match &self.control.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => place.endpoint()?,
        };
        let derived = place.resource();
        let configured = Some(&self.control.resource).filter(|resource| !resource.is_empty());
        let resource = configured.unwrap_or(&derived);
        self.service_url.send_replace(endpoint.to_string().into());
        info!(%endpoint, resource, "the metadata server gave the address of the control plane");
        link_config(&self.control, endpoint, resource, Some(self.client.clone()))
    }

    async fn somebody_answers(&mut self, undecided: &Undecided) {
        loop {
            let state = self.state.borrow_and_update().clone();
            match state {
                State::Present { .. } => return,
                State::Unknown => self.explain(undecided, "the agent is asking it"),
                State::Absent { reason } => self.explain(undecided, &reason),
            }
            if self.state.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn explain(&self, undecided: &Undecided, why: &str) {
        let lacking = match (&self.control.endpoint, &*self.control.resource) {
            (None, "") => "neither endpoint nor resource is configured",
            (None, _) => "no endpoint is configured",
            (Some(_), _) => "no resource is configured",
        };
        undecided.wait_because(format!("{lacking}, and the metadata server did not answer: {why}"));
    }
}

// === Listener ===

/// Hands messages to the control-plane actor, and the state of the connection to the outbox and to
/// the report actor. All of them are made after the link.
#[derive(Default)]
pub(super) struct Listener {
    control_plane: OnceLock<Addr<ControlPlaneActor>>,
    link_changed: OnceLock<[Recipient<LinkChanged>; 2]>,
}

impl Listener {
    pub(super) fn serve(&self, system: &System) {
        // Set once, before the link's task runs.
        drop(self.control_plane.set(system.control_plane.clone()));
        drop(self.link_changed.set([system.link_changed.clone(), system.report.clone()]));
    }

    fn tell(&self, change: LinkChanged) {
        for receiver in self.link_changed.get().into_iter().flatten() {
            receiver.do_send(change.clone());
        }
    }
}

#[async_trait]
impl LinkListener for Listener {
    async fn received(&self, message: InboundMessage) {
        if let Some(control_plane) = self.control_plane.get()
            && let Err(error) = control_plane.send(Received(message)).await
        {
            warn!(%error, "a message was not taken; the control plane sends it again");
        }
    }

    fn connected(&self, stream: u64, server: ServerKind) {
        info!(stream, is_fleet = server == ServerKind::Fleet, "the control plane is connected");
        self.tell(LinkChanged::Connected { stream, server });
    }

    fn disconnected(&self, reason: String) {
        info!(reason, "the control plane is not connected");
        self.tell(LinkChanged::Disconnected { reason: reason.into() });
    }
}
