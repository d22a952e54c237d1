//! TLS on TCP, with and without client certificates.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use guest_agent_lab::{ControlPlane, Deaf, ServerTls, StartError};
use guest_agent_serve_kit::listen::Listen;
use guest_agent_serve_kit::tls::Clients;
use guest_fleet_server::net::tls::{LookError, Pair, PairError, PairFiles, Purpose};
use guest_fleet_sessions::Gateway;
use guest_fleet_sessions::admission::Anyone;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::gateway::client::{Agent, Server, identity, registration};
use crate::gateway::{AGENT, CHANNEL, LONG};

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

fn endpoint(server: &impl Server, tls: ClientTlsConfig) -> Endpoint {
    let endpoint = server.gateway().endpoint();
    assert!(endpoint.starts_with("https://"));
    Endpoint::from_shared(endpoint).unwrap().tls_config(tls.domain_name("localhost")).unwrap()
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

const GATEWAY: Purpose = Purpose { of: "gateway", clients: Clients::Any, protocols: &[b"h2"] };

fn write(folder: &Path, authority: &Authority) -> PairFiles {
    let files = PairFiles { certificate: folder.join("tls.crt"), key: folder.join("tls.key") };
    let (certificate, key) = authority.issue("localhost");
    fs::write(&files.certificate, certificate).unwrap();
    fs::write(&files.key, key).unwrap();
    files
}

#[tokio::test]
async fn a_renewed_certificate_is_served_without_a_restart_and_a_torn_one_never() {
    let folder = tempfile::tempdir().unwrap();
    let (former, renewed) = (Authority::new(), Authority::new());
    let files = write(folder.path(), &former);
    let stop = CancellationToken::new();
    let look = Duration::from_millis(20);
    let pair = Pair::follow(files.clone(), GATEWAY, look, stop.clone()).await.unwrap();
    let gateway = Gateway::builder(Arc::new(Deaf), Arc::new(Anyone))
        .listen(Listen::Tcp((Ipv4Addr::LOCALHOST, 0).into()))
        .secured(pair.secured.clone())
        .start()
        .await
        .unwrap();
    let lets_in = async |authority: &Authority| {
        let trusting =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority.pem()));
        registers(endpoint(&gateway, trusting).connect().await).await
    };
    assert!(lets_in(&former).await);

    fs::write(&files.certificate, "torn").unwrap();
    let mut trouble = pair.trouble.clone();
    let why = tokio::time::timeout(LONG, trouble.wait_for(Option::is_some)).await;
    let why = why.expect("it is reported").unwrap().clone().unwrap();
    assert!(why.contains("the gateway listener keeps its former certificate"), "{why}");
    assert!(why.contains(files.certificate.to_str().unwrap()), "{why}");
    assert!(lets_in(&former).await);

    write(folder.path(), &renewed);
    let mended = tokio::time::timeout(LONG, trouble.wait_for(Option::is_none)).await;
    assert!(mended.expect("it is taken up").unwrap().is_none());
    assert!(lets_in(&renewed).await);
    assert!(!lets_in(&former).await);
    stop.cancel();
}

#[tokio::test]
async fn files_that_cannot_be_used_at_the_start_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let files = write(folder.path(), &Authority::new());
    fs::remove_file(&files.key).unwrap();
    let stop = CancellationToken::new();
    let error = Pair::follow(files, GATEWAY, Duration::from_secs(1), stop).await.unwrap_err();
    assert!(matches!(error, LookError::Pair(PairError::File { .. })), "{error}");
}
