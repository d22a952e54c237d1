//! An issuer on loopback, over HTTPS, that behaves well and badly.

use std::sync::atomic::{AtomicUsize, Ordering};

use guest_agent_serve_kit::tls::{self, Clients};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::admission::jwt::verify::tests::Issuer;

/// An issuer that answers every request with the text that is in place.
struct Site {
    place: KeySource,
    answer: Arc<Mutex<String>>,
    asked: Arc<AtomicUsize>,
    _directory: tempfile::TempDir,
}

async fn site(answer: String) -> Site {
    let mut params = CertificateParams::new(Vec::new()).expect("names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let authority = CertifiedIssuer::self_signed(params, key).expect("an authority");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("names");
    let certificate = params.signed_by(&key, &authority).expect("signed").pem();
    let certified = tls::certified(&certificate, &key.serialize_pem()).expect("a pair");
    let config = tls::server_config(certified, Clients::Any, &[]).expect("a configuration");
    let directory = tempfile::tempdir().expect("a directory");
    let ca = directory.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).expect("written");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let url = format!("https://{}/keys", listener.local_addr().expect("an address"));
    let (answer, asked) = (Arc::new(Mutex::new(answer)), Arc::new(AtomicUsize::new(0)));
    let (answers, count) = (answer.clone(), asked.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = TlsAcceptor::from(config.clone()).accept(stream).await else {
                continue;
            };
            count.fetch_add(1, Ordering::SeqCst);
            let mut head = [0; 4096];
            drop(stream.read(&mut head).await);
            let text = lock(&answers).clone();
            drop(stream.write_all(text.as_bytes()).await);
            drop(stream.shutdown().await);
        }
    });
    Site { place: KeySource::Url { url, ca: Some(ca) }, answer, asked, _directory: directory }
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn keys_are_read_once_and_again_for_a_key_that_is_new() {
    let (first, second) = (Issuer::new(), Issuer::new());
    let site = site(ok(&first.jwks())).await;
    let source = Source::open(site.place.clone()).await.expect("an address");
    assert_eq!(site.asked.load(Ordering::SeqCst), 0, "an issuer that is away keeps nobody out");
    let keys = source.keys().await.expect("keys");
    source.keys().await.expect("keys");
    assert_eq!(site.asked.load(Ordering::SeqCst), 1);
    *lock(&site.answer) = ok(&second.jwks());
    let same = source.newer(&keys).await.expect("keys");
    assert!(Arc::ptr_eq(&same, &keys), "they were read just now");
    lock(&source.state).tried = None;
    let newer = source.newer(&keys).await.expect("keys");
    assert!(!Arc::ptr_eq(&newer, &keys));
    assert_eq!(site.asked.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn what_an_issuer_answers_badly_is_an_error_and_former_keys_stay() {
    let issuer = Issuer::new();
    let site = site(ok(&issuer.jwks())).await;
    let large = ok(&format!("{}{}", issuer.jwks(), " ".repeat(SET_BYTES)));
    for bad in [
        "HTTP/1.1 302 Found\r\nlocation: https://127.0.0.1/\r\ncontent-length: 0\r\n\r\n"
            .to_owned(),
        "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n".to_owned(),
        large,
        ok("{"),
        "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{".to_owned(),
        "garbage".to_owned(),
        String::new(),
    ] {
        let source = Source::open(site.place.clone()).await.expect("an address");
        *lock(&site.answer) = ok(&issuer.jwks());
        let keys = source.keys().await.expect("keys");
        lock(&site.answer).clone_from(&bad);
        assert!(source.read().await.is_err(), "{}", &bad[..bad.len().min(60)]);
        assert!(Arc::ptr_eq(&source.keys().await.expect("the former keys"), &keys));
    }
    let KeySource::Url { url, .. } = &site.place else { panic!("an address") };
    let untrusted = KeySource::Url { url: url.clone(), ca: None };
    assert!(Source::open(untrusted).await.expect("an address").keys().await.is_err());
}

#[tokio::test]
async fn keys_in_a_file_are_read_at_the_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("keys.json");
    assert!(Source::open(KeySource::File(path.clone())).await.is_err());
    std::fs::write(&path, Issuer::new().jwks()).expect("written");
    let source = Source::open(KeySource::File(path.clone())).await.expect("keys");
    std::fs::write(&path, "torn").expect("written");
    source.keys().await.expect("the former keys");
    let plain = KeySource::Url { url: "http://127.0.0.1/".to_owned(), ca: None };
    assert!(Source::open(plain).await.is_err());
}
