//! The ways to a control plane other than the unix socket that the other tests use.

use std::path::Path;

use guest_agent_lab::{ControlPlane, ServerTls};

use crate::harness::{Bed, orders};

/// Installs and removes a plugin over whatever link the bed has.
async fn the_main_job_works(bed: Bed) {
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.expect_events("echo", &[1, 4, 3]).await;
    bed.running("echo", "1").await;
    bed.finish().await;
}

/// A bed whose agent is configured with this control plane instead of the usual one.
async fn bed_with(control_plane: ControlPlane, settings: &[String]) -> Bed {
    let endpoint = format!("control_plane.endpoint={}", control_plane.endpoint());
    let builder = settings
        .iter()
        .fold(Bed::builder().set(endpoint), |builder, setting| builder.set(setting.clone()));
    let mut bed = builder.build().await;
    bed.control_plane.shutdown().await;
    bed.use_control_plane(control_plane);
    bed.start_agent().await;
    bed
}

#[tokio::test]
async fn a_loopback_port_with_a_token_from_a_file_is_a_link() {
    let secrets = tempfile::tempdir().unwrap();
    let token = secrets.path().join("token");
    std::fs::write(&token, "s3cret\n").unwrap();
    let control_plane = ControlPlane::builder()
        .listen_tcp(([127, 0, 0, 1], 0).into())
        .bearer_token("s3cret")
        .start()
        .await
        .unwrap();
    let settings = [
        "control_plane.auth=token-file".to_owned(),
        format!("control_plane.token_file={}", token.display()),
    ];
    the_main_job_works(bed_with(control_plane, &settings).await).await;
}

#[tokio::test]
async fn https_with_certificates_on_both_sides_is_a_link() {
    let secrets = tempfile::tempdir().unwrap();
    let path = |name: &str| secrets.path().join(name).display().to_string();
    let tls = certificates(secrets.path(), "127.0.0.1");
    let control_plane = ControlPlane::builder()
        .listen_tcp(([127, 0, 0, 1], 0).into())
        .tls(tls)
        .start()
        .await
        .unwrap();
    assert!(control_plane.endpoint().starts_with("https://"));
    let settings = [
        "control_plane.auth=mtls".to_owned(),
        format!("control_plane.ca_file={}", path("ca.pem")),
        format!("control_plane.client_cert={}", path("agent.pem")),
        format!("control_plane.client_key={}", path("agent.key")),
    ];
    the_main_job_works(bed_with(control_plane, &settings).await).await;
}

/// An authority with certificates for the agent, written to `dir`, and for the server at this
/// address.
pub(crate) fn certificates(dir: &Path, server: &str) -> ServerTls {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).unwrap().pem();
    let issuer = rcgen::Issuer::new(params, key);
    let signed = |host: &str| {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new([host.to_owned()]).unwrap();
        (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    };
    let (agent, agent_key) = signed("agent.example");
    for (name, text) in [("ca.pem", &authority), ("agent.pem", &agent), ("agent.key", &agent_key)] {
        std::fs::write(dir.join(name), text).unwrap();
    }
    let (certificate, key) = signed(server);
    ServerTls { certificate, key, client_ca: Some(authority) }
}
