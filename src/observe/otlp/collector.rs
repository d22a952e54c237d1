//! The way of the agent to its collector, and what the agent calls itself there.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use guest_agent_actors::error::Chain;
use guest_agent_observe_kit::otlp::{self, Collector, Connection, Dial};
use guest_agent_serve_kit::backoff::{Jitter, Schedule};
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use tonic::body::Body;
use tower::ServiceExt;

use crate::config::TelemetryConfig;
use crate::net::dial;
use crate::net::endpoint::Endpoint;
use crate::net::keepalive::Keepalive;
use crate::net::tls::TlsFiles;

/// Pauses after failures.
const PAUSES: Schedule =
    Schedule::doubling(Duration::from_secs(1), Duration::from_secs(60), Jitter::UpperHalf);

/// Connects to an endpoint.
#[derive(Debug)]
struct Way {
    endpoint: Endpoint,
    tls: TlsFiles,
}

/// The collector that is configured, if one is.
pub(super) fn configured(telemetry: &TelemetryConfig) -> Option<Collector> {
    let file = |path: &str| (!path.is_empty()).then(|| PathBuf::from(path));
    let tls = TlsFiles { authorities: file(&telemetry.otlp_ca_file), client: None };
    let way = Way { endpoint: telemetry.otlp_endpoint.clone()?, tls };
    Some(Collector {
        dial: Arc::new(way),
        headers_file: file(&telemetry.otlp_headers_file),
        timeout: telemetry.timeout,
    })
}

/// The scope of all messages.
pub(super) fn scope() -> InstrumentationScope {
    otlp::scope("guest-agent", env!("CARGO_PKG_VERSION"))
}

// === impl Way ===

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.endpoint.fmt(f)
    }
}

#[async_trait]
impl Dial for Way {
    async fn dial(&self) -> Result<Connection, String> {
        // Calls are short, and without a call there are no pings: so the link's memory of ping
        // intervals is not needed.
        let keepalive = Arc::new(Keepalive::of(&self.endpoint));
        let connection = dial::dial(&self.endpoint, &self.tls, &keepalive).await;
        let connection = connection.map_err(|error| Chain(&error).to_string())?;
        Ok(Connection::new(connection.map_response(|answer| answer.map(Body::new))))
    }

    fn pause(&self, failures: u32, random: f64) -> Duration {
        PAUSES.wait(failures.saturating_sub(1), random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn law_pauses_are_never_short_and_never_endless(failures in 1u32.., jitter in -1.0f64..2.0) {
            let endpoint = "http://127.0.0.1:4317".parse().expect("an endpoint");
            let pause = Way { endpoint, tls: TlsFiles::default() }.pause(failures, jitter);
            proptest::prop_assert!(pause >= PAUSES.first / 2 && pause <= PAUSES.ceiling);
        }
    }
}
