//! The certificate of the fleet's own listeners, which the process renews itself.
//!
//! The key is made when the process starts and is nowhere but in its memory. What a listener shows
//! is the certificate, what leads to the former authority, and the authority itself: an agent that
//! enrols knows the authority by its fingerprint alone, and finds it there.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_agent_serve_kit::certificate::Facts;
use guest_agent_serve_kit::renewed::Secured;
use guest_agent_serve_kit::tls::{self, Clients, TlsError};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::CertifiedKey;
use thiserror::Error;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::ca::{Authorities, Authority, AuthorityError};
use crate::chain::Chain;

/// How long a certificate of a listener is valid.
pub const LIFE: Duration = Duration::from_secs(90 * 24 * 3600);
/// How often the time is looked at; clocks of machines jump.
const LOOK: Duration = Duration::from_secs(60);

/// Which clients a listener of the fleet lets in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admits {
    /// All; no certificate is asked for.
    Anyone,
    /// Agents of this fleet.
    Agents,
    /// Anyone, and agents of this fleet whose certificate ended by at most this long ago.
    AnyoneAndLateAgents(Duration),
}

/// Why a listener has no certificate.
#[derive(Debug, Error)]
pub enum ListenerError {
    /// The authority makes none.
    #[error("the listener gets no certificate")]
    Authority(#[from] AuthorityError),
    /// TLS does not take it.
    #[error("the listener cannot be secured")]
    Tls(#[from] TlsError),
}

/// Makes the certificate of a listener that is reached under these DNS names and IP addresses, and
/// keeps it and the authorities current until `shutdown`.
///
/// # Errors
/// See [`ListenerError`].
pub fn secure(
    authorities: &Authorities,
    names: Vec<String>,
    admits: Admits,
    protocols: &'static [&'static [u8]],
    shutdown: CancellationToken,
) -> Result<Secured, ListenerError> {
    Ok(secure_and_tell(authorities, names, admits, protocols, shutdown)?.0)
}

/// The same as [`secure`], and what the newest certificate says.
///
/// # Errors
/// See [`ListenerError`].
pub fn secure_and_tell(
    authorities: &Authorities,
    names: Vec<String>,
    admits: Admits,
    protocols: &'static [&'static [u8]],
    shutdown: CancellationToken,
) -> Result<(Secured, watch::Receiver<Facts>), ListenerError> {
    let keeper = Keeper { names, admits, protocols };
    let made = keeper.make(&authorities.current(), SystemTime::now())?;
    let (sender, secured) = watch::channel(made.config);
    let (facts, told) = watch::channel(made.facts);
    tokio::spawn(keeper.keep(authorities.clone(), made.renew_at, sender, facts, shutdown));
    Ok((secured, told))
}

/// A certificate that was made.
struct Made {
    config: Arc<ServerConfig>,
    facts: Facts,
    renew_at: SystemTime,
}

struct Keeper {
    names: Vec<String>,
    admits: Admits,
    protocols: &'static [&'static [u8]],
}

// === impl Keeper ===

impl Keeper {
    /// What the listener is secured with, and when it has to be made anew.
    fn make(&self, authority: &Authority, now: SystemTime) -> Result<Made, ListenerError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(AuthorityError::Make)?;
        let issued = authority.issue_server(&key, &self.names, LIFE, now)?;
        let facts = issued.facts;
        let mut chain = vec![issued.der];
        chain.extend(authority.chain().iter().cloned());
        chain.push(authority.certificate().clone());
        let private = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let signing = ring::sign::any_supported_type(&private).map_err(TlsError::Setup)?;
        let clients = match self.admits {
            Admits::Anyone => Clients::Any,
            Admits::Agents => Clients::Known(authority.trust(now)),
            Admits::AnyoneAndLateAgents(grace) => Clients::Lenient(authority.trust(now), grace),
        };
        let config =
            tls::server_config(CertifiedKey::new(chain, signing), clients, self.protocols)?;
        let left = facts.ends.duration_since(now).unwrap_or_default();
        Ok(Made { config, facts, renew_at: now + left * 2 / 3 })
    }

    async fn keep(
        self,
        authorities: Authorities,
        mut renew_at: SystemTime,
        sender: watch::Sender<Arc<ServerConfig>>,
        facts: watch::Sender<Facts>,
        shutdown: CancellationToken,
    ) {
        let mut changes = authorities.changes();
        loop {
            let is_new = tokio::select! {
                Ok(()) = changes.changed() => true,
                () = tokio::time::sleep(LOOK) => false,
                () = shutdown.cancelled() => return,
                () = sender.closed() => return,
            };
            let now = SystemTime::now();
            if !is_new && now < renew_at {
                continue;
            }
            match self.make(&authorities.current(), now) {
                Ok(made) => {
                    renew_at = made.renew_at;
                    facts.send_replace(made.facts);
                    sender.send_replace(made.config);
                    tracing::info!(names = ?self.names, "a listener has a new certificate");
                }
                Err(error) => {
                    let error = Chain(&error);
                    tracing::error!(names = ?self.names, %error, "the former certificate stays");
                }
            }
        }
    }
}
