//! TLS on TCP, with and without client certificates.

use std::net::Ipv4Addr;

use guest_fleet::{ControlPlane, ServerTls, StartError};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::client::{Agent, identity, registration};
use crate::{AGENT, CHANNEL};

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Certificate and key for a name.
    pub(crate) fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }
}

async fn start(authority: &Authority, client_ca: Option<String>) -> ControlPlane {
    let (certificate, key) = authority.issue("localhost");
    ControlPlane::builder()
        .listen_tcp((Ipv4Addr::LOCALHOST, 0).into())
        .tls(ServerTls { certificate, key, client_ca })
        .start()
        .await
        .unwrap()
}

fn endpoint(control_plane: &ControlPlane, tls: ClientTlsConfig) -> Endpoint {
    assert!(control_plane.endpoint().starts_with("https://"));
    Endpoint::from_shared(control_plane.endpoint())
        .unwrap()
        .tls_config(tls.domain_name("localhost"))
        .unwrap()
}

/// Registers; false when the connection or the stream is refused.
async fn registers(channel: Result<Channel, tonic::transport::Error>) -> bool {
    let Ok(channel) = channel else { return false };
    let Ok(mut agent) = Agent::open(channel, &identity()).await else { return false };
    agent.send(registration("1", AGENT, CHANNEL)).await;
    matches!(agent.next().await, Ok(Some(_)))
}

#[tokio::test]
async fn an_agent_registers_over_tls() {
    let authority = Authority::new();
    let control_plane = start(&authority, None).await;
    let trusting = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority.pem()));
    assert!(registers(endpoint(&control_plane, trusting).connect().await).await);
}

#[tokio::test]
async fn an_agent_that_trusts_another_authority_does_not_connect() {
    let control_plane = start(&Authority::new(), None).await;
    let other = Certificate::from_pem(Authority::new().pem());
    let distrusting = ClientTlsConfig::new().ca_certificate(other);
    assert!(!registers(endpoint(&control_plane, distrusting).connect().await).await);
}

#[tokio::test]
async fn with_a_client_authority_only_its_agents_register() {
    let authority = Authority::new();
    let control_plane = start(&authority, Some(authority.pem())).await;
    let trusting = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority.pem()));
    assert!(!registers(endpoint(&control_plane, trusting.clone()).connect().await).await);
    let (certificate, key) = Authority::new().issue("agent");
    let foreign = trusting.clone().identity(Identity::from_pem(certificate, key));
    assert!(!registers(endpoint(&control_plane, foreign).connect().await).await);
    let (certificate, key) = authority.issue("agent");
    let known = trusting.identity(Identity::from_pem(certificate, key));
    assert!(registers(endpoint(&control_plane, known).connect().await).await);
}

#[tokio::test]
async fn an_unusable_certificate_is_an_error_at_the_start() {
    let tls = ServerTls { certificate: "nothing".into(), key: "nothing".into(), client_ca: None };
    let started =
        ControlPlane::builder().listen_tcp((Ipv4Addr::LOCALHOST, 0).into()).tls(tls).start().await;
    assert!(matches!(started.err(), Some(StartError::Tls(_))));
}
