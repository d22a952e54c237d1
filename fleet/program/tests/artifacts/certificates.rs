//! TLS, and certificates that are renewed while they are served.

use std::path::Path;
use std::time::Duration;

use guest_fleet_server::artifacts::Digest;
use guest_fleet_server::artifacts::listener::{ArtifactListener, ListenerError};
use guest_fleet_server::net::tls::PairFiles;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::artifacts::LONG;
use crate::artifacts::harness::{Rig, bytes, code, options, put};

pub(crate) fn files(folder: &Path) -> PairFiles {
    PairFiles { certificate: folder.join("cert.pem"), key: folder.join("key.pem") }
}

/// Writes a certificate of a new authority, which is returned in PEM.
pub(crate) fn issue(files: &PairFiles) -> String {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    // As programs that renew do it: each file whole, one after the other.
    for (path, text) in [(&files.certificate, certificate.pem()), (&files.key, key.serialize_pem())]
    {
        let next = path.with_extension("next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, path).unwrap();
    }
    authority.pem()
}

fn trusting(authority: &str) -> reqwest::Client {
    drop(rustls::crypto::ring::default_provider().install_default());
    let authority = reqwest::Certificate::from_pem(authority.as_bytes()).unwrap();
    reqwest::Client::builder().no_proxy().tls_certs_only([authority]).build().unwrap()
}

async fn start() -> (Rig, PairFiles, String, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let pair = files(folder.path());
    let authority = issue(&pair);
    let rig = Rig::with(|options| {
        options.tls = Some(pair.clone());
        options.limits.look = Duration::from_millis(20);
        options.limits.handshake = Duration::from_millis(500);
    })
    .await;
    (rig, pair, authority, folder)
}

#[tokio::test]
async fn a_renewed_certificate_is_served_without_a_restart() {
    let (rig, pair, former, _folder) = start().await;
    let text = bytes(300_000);
    let url = rig.url(&put(rig.store.as_ref(), &text).await.unwrap().digest);
    assert!(url.starts_with("https://"));
    let answer = trusting(&former).get(&url).send().await.unwrap();
    assert_eq!(answer.bytes().await.unwrap(), text);
    let renewed = issue(&pair);
    let deadline = tokio::time::Instant::now() + LONG;
    while trusting(&renewed).get(&url).send().await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "it is not served");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(trusting(&former).get(&url).send().await.is_err());
    assert_eq!(rig.listener.trouble(), None);
}

#[tokio::test]
async fn a_torn_certificate_leaves_the_former_one_in_service_and_is_shown() {
    let (rig, pair, authority, _folder) = start().await;
    std::fs::write(&pair.certificate, "torn").unwrap();
    let deadline = tokio::time::Instant::now() + LONG;
    while rig.listener.trouble().is_none() {
        assert!(tokio::time::Instant::now() < deadline, "it is not shown");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let url = rig.url(&Digest::of(b"missing"));
    let answer = trusting(&authority).get(url).send().await.unwrap();
    assert_eq!(code(answer).await, (404, "artifact_missing".to_owned()));
}

#[tokio::test]
async fn clients_that_do_not_agree_on_tls_are_not_waited_for() {
    let (rig, _pair, _authority, _folder) = start().await;
    let answer = rig.raw("").await;
    assert_eq!(answer, "");
    assert!(!rig.raw("GET / HTTP/1.1\r\n\r\n").await.contains("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_pair_that_cannot_be_used_at_the_start_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let store = crate::artifacts::harness::directory(&folder.path().join("store"));
    let mut options = options(std::sync::Arc::new(store));
    options.tls = Some(files(folder.path()));
    let error = ArtifactListener::start(options).await.unwrap_err();
    assert!(matches!(error, ListenerError::Certificate(_)), "{error}");
}
