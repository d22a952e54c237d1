//! How often the client sends keepalive pings over the connections to one endpoint.
//!
//! It sends an HTTP/2 PING over a connection that is quiet. A server that permits fewer ends the
//! connection with GOAWAY, ENHANCE_YOUR_CALM and the debug data `too_many_pings`; the client then
//! doubles the interval for the connections that follow (gRFC A8).

use std::error::Error;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::net::endpoint::{Endpoint, Kind};

/// The interval until a server asks for a longer one.
const FIRST: Duration = Duration::from_secs(60);

/// What the interval does not exceed: what A8 permits at any server.
const LONGEST: Duration = Duration::from_secs(2 * 3600);

/// How long the answer to a ping may take.
pub(crate) const ANSWER: Duration = Duration::from_secs(10);

/// The interval of the pings to one endpoint. The connections to it share one, so that a new
/// connection keeps what an earlier one learned.
#[derive(Debug)]
pub(crate) struct Keepalive(Mutex<Option<Duration>>);

// === impl Keepalive ===

impl Keepalive {
    /// The interval for an endpoint to which no connection was made before. The kernel reports the
    /// end of a process on a unix socket, so the client sends no pings over one.
    pub(crate) fn of(endpoint: &Endpoint) -> Self {
        match endpoint.0 {
            Kind::Unix(_) => Self(Mutex::new(None)),
            Kind::Http { .. } | Kind::Https { .. } | Kind::Vsock { .. } => Self::every(FIRST),
        }
    }

    /// The client sends a ping after a connection was quiet for this interval.
    pub(crate) const fn every(interval: Duration) -> Self {
        Self(Mutex::new(Some(interval)))
    }

    /// How long a connection that is opened now may be quiet before the client sends a ping. `None`
    /// means never.
    pub(crate) fn interval(&self) -> Option<Duration> {
        *self.lock()
    }

    /// A server ended a connection because pings at this interval came too often. Returns the
    /// interval for the connections that follow. Two connections of the same interval double it
    /// once.
    pub(super) fn is_too_short(&self, used: Duration) -> Duration {
        let mut interval = self.lock();
        let longer = used.saturating_mul(2).min(LONGEST);
        let now = interval.map_or(longer, |interval| interval.max(longer));
        *interval = Some(now);
        now
    }

    fn lock(&self) -> MutexGuard<'_, Option<Duration>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the server ended the connection because pings came too often.
pub(super) fn is_too_many_pings(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.find_map(|cause| cause.downcast_ref::<h2::Error>()).is_some_and(|error| {
        error.is_go_away()
            && error.is_remote()
            && error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM)
            // The error gives its debug data nowhere else.
            && error.to_string().ends_with("(b\"too_many_pings\")")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(endpoint: &str) -> Keepalive {
        Keepalive::of(&endpoint.parse().expect("an endpoint"))
    }

    #[test]
    fn a_unix_socket_is_never_asked_and_everything_else_every_minute() {
        assert_eq!(of("unix:/run/cp.sock").interval(), None);
        for endpoint in ["http://127.0.0.1:1", "https://cp.example", "vsock:2:1"] {
            assert_eq!(of(endpoint).interval(), Some(Duration::from_secs(60)), "{endpoint}");
        }
    }

    #[test]
    fn each_complaint_doubles_the_interval_up_to_what_every_server_permits() {
        let keepalive = of("https://cp.example");
        for expected in [120, 240, 480, 960, 1_920, 3_840, 7_200, 7_200] {
            let used = keepalive.interval().expect("pings");
            assert_eq!(keepalive.is_too_short(used), Duration::from_secs(expected));
        }
    }

    #[test]
    fn two_connections_of_one_interval_double_it_once() {
        let keepalive = of("https://cp.example");
        let used = keepalive.interval().expect("pings");
        keepalive.is_too_short(used);
        assert_eq!(keepalive.is_too_short(used), Duration::from_secs(120));
    }

    #[test]
    fn other_errors_are_no_complaint() {
        for reason in [h2::Reason::ENHANCE_YOUR_CALM, h2::Reason::NO_ERROR] {
            assert!(!is_too_many_pings(&h2::Error::from(reason)));
        }
        assert!(!is_too_many_pings(&std::io::Error::other("too_many_pings")));
    }
}
