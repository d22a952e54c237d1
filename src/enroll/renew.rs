//! The renewal of the machine's certificate, at two thirds of its life.
//!
//! A renewal that fails is tried again, less and less often, until long after the certificate
//! ended: the server takes it for a while then. The link reads the files for its next stream.

use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use guest_agent_actors::error::Chain;
use guest_agent_serve_kit::backoff::{Backoff, Jitter, Schedule};
use tracing::{info, warn};

use super::files::{Enrolled, Identity, IdentityError};
use super::key::Key;
use super::request::{RequestError, Server, Trust};
use crate::net::tls::ClientCertificate;

/// Longest sleep: clocks of machines jump, and machines are suspended.
const LOOK: Duration = Duration::from_secs(60);
/// Waits after failures.
const WAITS: Schedule =
    Schedule::doubling(Duration::from_secs(30), Duration::from_secs(3600), Jitter::UpperHalf);
/// The share of the time that is left at the renewal by which it may be later, so that machines that
/// were enrolled together do not renew together.
const SPREAD: f64 = 0.2;

/// Why there is no new certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum RenewError {
    #[error(transparent)]
    Files(#[from] IdentityError),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the files could not be used in time")]
    Aborted,
}

/// Renews the certificate for as long as the agent runs. Without an enrolment it only waits for one.
pub async fn keep(identity: Identity) -> Infallible {
    let (mut backoff, mut jitter) = (Backoff::new(WAITS), rand::random());
    loop {
        let enrolled = read(&identity).await;
        let wait = match &enrolled {
            Ok(Some(enrolled)) => {
                let wait = due(enrolled, jitter).saturating_sub(now());
                (!wait.is_zero()).then_some(wait)
            }
            Ok(None) => Some(LOOK),
            Err(_) => None,
        };
        if let Some(wait) = wait {
            tokio::time::sleep(wait.min(LOOK)).await;
            continue;
        }
        let renewed = match enrolled {
            Ok(Some(enrolled)) => renew(&identity, &enrolled).await,
            Ok(None) => continue,
            Err(error) => Err(error),
        };
        jitter = rand::random();
        match renewed {
            Ok(enrolled) => {
                info!(agent = enrolled.agent_id, "the agent's certificate was renewed");
                if let Some(wait) = pause(&enrolled, now(), (&mut backoff, jitter)) {
                    warn!(
                        wait = ?wait,
                        "the new certificate is to be renewed already: the clock of this machine is ahead of \
                         the fleet's; set it"
                    );
                    tokio::time::sleep(wait).await;
                }
            }
            Err(error) => {
                let wait = backoff.next(jitter);
                warn!(error = %Chain(&error), wait = ?wait, "the agent's certificate was not renewed");
                tokio::time::sleep(wait).await;
            }
        }
    }
}

/// The time since 1970.
fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// The pause after a renewal: a certificate that is due at once would be renewed without one, for as long as
/// the clock of the machine is wrong.
fn pause(
    enrolled: &Enrolled,
    now: Duration,
    (backoff, jitter): (&mut Backoff, f64),
) -> Option<Duration> {
    if due(enrolled, jitter) > now {
        backoff.reset();
        return None;
    }
    Some(backoff.next(jitter))
}

/// When a certificate is renewed, as the time since 1970; the jitter is between 0 and 1. The times of a
/// file or of a fleet's answer may be later than any that a clock has.
fn due(enrolled: &Enrolled, jitter: f64) -> Duration {
    let left = Duration::from_secs(enrolled.ends.saturating_sub(enrolled.renew_at));
    let renew_at = Duration::from_secs(enrolled.renew_at);
    renew_at.saturating_add(left.mul_f64(SPREAD * jitter))
}

async fn read(identity: &Identity) -> Result<Option<Enrolled>, RenewError> {
    let identity = identity.clone();
    let reading = tokio::task::spawn_blocking(move || identity.enrolled());
    Ok(reading.await.map_err(|_| RenewError::Aborted)??)
}

/// Gets the next certificate, with a new key, and puts it in place.
pub(super) async fn renew(
    identity: &Identity,
    enrolled: &Enrolled,
) -> Result<Enrolled, RenewError> {
    let shown = ClientCertificate { certificate: identity.agent(), key: identity.agent() };
    let server = Server::new(&enrolled.server, &Trust::File(identity.trust()), Some(shown)).await?;
    let key = Key::make().map_err(IdentityError::Key)?;
    let granted = server.renew(key.request().map_err(IdentityError::Key)?).await?;
    if granted.agent_id != enrolled.agent_id || granted.fleet_id != enrolled.fleet_id {
        let problem = "it is for another agent or fleet".to_owned();
        return Err(IdentityError::Answer(problem).into());
    }
    let (identity, address) = (identity.clone(), enrolled.server.clone());
    let putting = tokio::task::spawn_blocking(move || identity.put(&address, &key, &granted));
    Ok(putting.await.map_err(|_| RenewError::Aborted)??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_at_its_time_or_a_little_later() {
        let enrolled = Enrolled {
            server: String::new(),
            agent_id: String::new(),
            fleet_id: String::new(),
            renew_at: 2000,
            ends: 3000,
        };
        let at = Duration::from_secs;
        assert_eq!(due(&enrolled, 0.0), at(2000));
        assert_eq!(due(&enrolled, 1.0), at(2200));
        assert_eq!(due(&Enrolled { ends: 0, ..enrolled }, 1.0), at(2000));
    }

    #[test]
    fn a_clock_that_is_ahead_of_the_fleets_renews_less_and_less_often() {
        let certificate = |renew_at| Enrolled {
            server: String::new(),
            agent_id: String::new(),
            fleet_id: String::new(),
            renew_at,
            ends: renew_at,
        };
        let mut backoff = Backoff::new(WAITS);
        let mut pause = |renew_at| {
            super::pause(&certificate(renew_at), Duration::from_secs(5000), (&mut backoff, 1.0))
        };
        let waits: Vec<_> = (0..12).map(|_| pause(2000).expect("it is due")).collect();
        assert!(waits[0] >= Duration::from_secs(15), "{waits:?}");
        assert!(waits.is_sorted() && waits[11] >= Duration::from_secs(1800), "{waits:?}");
        assert_eq!(pause(6000), None);
        assert_eq!(pause(2000), Some(waits[0]), "a good one ends that");
    }

    #[test]
    fn times_that_no_clock_reaches_are_never_due() {
        let enrolled = |renew_at, ends| Enrolled {
            server: String::new(),
            agent_id: String::new(),
            fleet_id: String::new(),
            renew_at,
            ends,
        };
        let centuries = Duration::from_secs(1 << 40);
        for (renew_at, ends) in [(u64::MAX, 0), (u64::MAX, u64::MAX), (u64::MAX / 2, u64::MAX)] {
            assert!(due(&enrolled(renew_at, ends), 1.0) > centuries, "{renew_at} {ends}");
        }
    }
}
