//! The listener on `api.http_listen`, with TLS where `api.http_tls_cert` names a certificate.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_agent_actors::error::Chain;
use guest_agent_serve_kit::certificate::PairFiles;
use guest_agent_serve_kit::placed::Placed;
use guest_agent_serve_kit::renewed::Look;
use guest_agent_serve_kit::write_timeout::WriteTimeout;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::connections::{Limits, Places, Server};
use super::handshake;
use super::listening::Listening;
use super::scheme::Scheme;
use super::shared::{Shared, router};
use super::site::Reach;
use crate::config::{ApiConfig, Config};
use crate::net::server_tls::Keeper;

/// How often the files of the certificate are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// The listener on an address.
pub(super) struct Address<'a>(pub(super) &'a Shared);

/// The address, and whether it has TLS.
pub(super) type Wanted = (SocketAddr, Scheme);

/// The files of the certificate; `None` where connections have no TLS.
fn pair(api: &ApiConfig) -> Option<PairFiles> {
    let certificate = Some(&api.http_tls_cert).filter(|file| !file.is_empty())?;
    Some(PairFiles { certificate: certificate.into(), key: api.http_tls_key.clone().into() })
}

impl Listening for Address<'_> {
    type Wanted = Wanted;
    type Opened = (TcpListener, SocketAddr, Option<Keeper>);

    fn wanted(&self, config: &Config) -> Option<Wanted> {
        let scheme = if pair(&config.api).is_some() { Scheme::Https } else { Scheme::Http };
        Some((config.api.http_listen?, scheme))
    }

    async fn open(&self, (address, _): &Wanted, config: &Config) -> Result<Self::Opened, String> {
        let keeper = match pair(&config.api) {
            None => None,
            Some(files) => {
                let opening = Keeper::open(files, self.0.certificates.clone()).await;
                Some(opening.map_err(|error| {
                    format!(
                        "HTTP is off: the certificate of api.http_tls_cert and the key of \
                         api.http_tls_key cannot be used: {}; put a certificate and its key \
                         there, and send SIGHUP",
                        Chain(&error)
                    )
                })?)
            }
        };
        let listener = TcpListener::bind(*address).await.map_err(|error| {
            format!(
                "HTTP is off: the agent cannot listen on {address}: {error}; see with `ss -ltnp` \
                 which process does, or change api.http_listen"
            )
        })?;
        let at = listener.local_addr().unwrap_or(*address);
        Ok((listener, at, keeper))
    }

    async fn serve(
        &self,
        (listener, at, keeper): Self::Opened,
        config: watch::Receiver<Arc<Config>>,
        ending: CancellationToken,
    ) {
        let scheme = if keeper.is_some() { Scheme::Https } else { Scheme::Http };
        self.0.health.send_modify(|health| {
            health.at = Some(at);
            health.is_encrypted = keeper.is_some();
            health.address_trouble = None;
        });
        info!(%at, scheme = scheme.as_str(), "serves HTTP");
        let reach = if at.ip().is_loopback() { Reach::Loopback } else { Reach::Network };
        let site = self.0.site(reach, scheme, ending.clone());
        let limits = Limits::default();
        let server = Server { pages: router(site), limits, ending };
        let places = Places::new(limits, &self.0.counters, "http");
        let Some(keeper) = keeper else {
            let converse = |server: Server, stream: Placed<TcpStream>, service| {
                let requested = stream.requested();
                let stream = WriteTimeout::new(stream, limits.stall);
                server.converse(stream, requested, service, None)
            };
            return server.serve(listener, places, converse).await;
        };
        let secrets = keeper.config();
        let converse = |server: Server, stream: Placed<TcpStream>, service| {
            // What is in service now, also for this handshake.
            let (requested, secrets) = (stream.requested(), secrets.borrow().clone());
            async move {
                let securing = handshake::secure(stream, secrets, limits.handshake, limits.stall);
                match securing.await {
                    Ok(stream) => server.converse(stream, requested, service, None).await,
                    Err(error) => debug!(%error, "a client did not agree on TLS"),
                }
            }
        };
        tokio::select! {
            () = server.serve(listener, places, converse) => {}
            never = follow(keeper, config) => match never {},
        }
    }

    fn closed(&self, trouble: Option<String>) {
        self.0.health.send_modify(|health| {
            health.at = None;
            health.is_encrypted = false;
            health.address_trouble = trouble;
        });
    }
}

/// Keeps the certificate current: with every reload of the configuration, and when other programs
/// replace its files.
async fn follow(mut keeper: Keeper, mut config: watch::Receiver<Arc<Config>>) -> Infallible {
    let mut beat = tokio::time::interval(LOOK_INTERVAL);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let look = tokio::select! {
            _ = beat.tick() => Look::IfChanged,
            Ok(()) = config.changed() => Look::Anyway,
        };
        let now = config.borrow_and_update().clone();
        if let Some(files) = pair(&now.api) {
            keeper.use_files(files);
        }
        keeper.look(look, SystemTime::now()).await;
    }
}
