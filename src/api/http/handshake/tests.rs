//! On real sockets: what a client can do before it has TLS, and with it.

use std::net::SocketAddr;
use std::time::SystemTime;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get;
use futures_util::stream;
use guest_agent_serve_kit::certificate::PairFiles;
use guest_agent_serve_kit::connection_counters::ConnectionCounters;
use guest_agent_serve_kit::renewed::Look;
use guest_agent_serve_kit::shares::Most;
use guest_agent_testing_kit::certificate::NOW;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as ClientStream;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::api::http::connections::{Limits, Places, Server};
use crate::net::certificates::Certificates;
use crate::net::pair_files::{files, write};
use crate::net::server_tls::Keeper;

/// Most connections at once.
const CONNECTIONS: usize = 3;

/// Longest that anything may take here.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server with TLS.
struct Served {
    at: SocketAddr,
    keeper: Keeper,
    files: PairFiles,
    counters: ConnectionCounters,
    ending: CancellationToken,
    serving: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

async fn served(handshake: Duration) -> Served {
    let folder = tempfile::tempdir().expect("a directory");
    let files = files(folder.path());
    write(&files, NOW);
    let keeper = Keeper::open(files.clone(), Certificates::default()).await.expect("a pair");
    let limits = Limits {
        connections: Most { all: CONNECTIONS, each: CONNECTIONS },
        spare: Most { all: 2, each: 2 },
        handshake,
        head: PATIENCE,
        stall: PATIENCE,
        end: Duration::from_millis(300),
    };
    let pages = Router::new()
        .route("/small", get(async || "small"))
        .route("/healthz", get(async || "alive"))
        .route("/silent", get(async || Body::from_stream(stream::pending::<io::Result<Bytes>>())));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let at = listener.local_addr().expect("an address");
    let (ending, counters) = (CancellationToken::new(), ConnectionCounters::default());
    let server = Server { pages, limits, ending: ending.clone() };
    let (secrets, places) = (keeper.config(), Places::new(limits, &counters, "http"));
    let serving = tokio::spawn(async move {
        let converse = |server: Server, stream: Placed<TcpStream>, service| {
            let (requested, secrets) = (stream.requested(), secrets.borrow().clone());
            async move {
                let securing = secure(stream, secrets, limits.handshake, limits.stall);
                if let Ok(stream) = securing.await {
                    server.converse(stream, requested, service, None).await;
                }
            }
        };
        server.serve(listener, places, converse).await;
    });
    Served { at, keeper, files, counters, ending, serving, _folder: folder }
}

impl Served {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.at).await.expect("a connection")
    }

    /// A connection with TLS, by a client that trusts the certificate in the file now.
    async fn secured(&self) -> io::Result<ClientStream<TcpStream>> {
        let mut roots = rustls::RootCertStore::empty();
        let trusted = CertificateDer::from_pem_file(&self.files.certificate).expect("one");
        roots.add(trusted).expect("it is usable");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, self.connect().await).await
    }

    /// The answer to a request for this path.
    async fn ask(&self, path: &str) -> String {
        let mut stream = self.secured().await.expect("TLS");
        answer(&mut stream, path).await
    }

    async fn end(self) {
        self.ending.cancel();
        tokio::time::timeout(PATIENCE, self.serving).await.expect("it ends").expect("no panic");
    }
}

/// Sends a request, and reads as much as a small answer has.
async fn answer(stream: &mut ClientStream<TcpStream>, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut bytes = vec![0; 4096];
    let reading = tokio::time::timeout(PATIENCE, stream.read(&mut bytes));
    let read = reading.await.expect("an answer in time").expect("an answer");
    bytes.truncate(read);
    String::from_utf8(bytes).expect("text")
}

/// Reads until the server closes the connection.
async fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    let reading = stream.read_to_end(&mut bytes);
    drop(tokio::time::timeout(PATIENCE, reading).await.expect("the server ends it"));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn pages_are_served_and_a_client_without_tls_gets_a_sentence() {
    let served = served(PATIENCE).await;
    let said = served.ask("/small").await;
    assert!(said.starts_with("HTTP/1.1 200 OK") && said.ends_with("small"), "{said}");
    let mut plain = served.connect().await;
    plain.write_all(b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("sent");
    let said = rest(plain).await;
    assert!(said.starts_with("HTTP/1.1 400 ") && said.contains("https://"), "{said}");
    let (head, body) = said.split_once("\r\n\r\n").expect("a head");
    assert!(head.contains(&format!("content-length: {}", body.len())), "{said}");
    let mut odd = served.connect().await;
    odd.write_all(b"\x05\x01\0 nothing that has a meaning here").await.expect("sent");
    assert!(!rest(odd).await.contains("HTTP"));
    served.end().await;
}

#[tokio::test]
async fn a_handshake_that_is_not_finished_is_given_up() {
    let served = served(Duration::from_millis(300)).await;
    let silent = served.connect().await;
    let mut slow = served.connect().await;
    slow.write_all(&[22, 3, 1]).await.expect("sent");
    for stream in [silent, slow] {
        rest(stream).await;
    }
    assert!(served.ask("/small").await.starts_with("HTTP/1.1 200 OK"));
    served.end().await;
}

#[tokio::test]
async fn handshakes_that_are_not_finished_keep_out_nobody() {
    let served = served(PATIENCE).await;
    let mut slow = Vec::new();
    for number in 0..20 {
        let mut stream = served.connect().await;
        if number % 2 == 0 {
            stream.write_all(&[22, 3, 1]).await.expect("sent");
        }
        slow.push(stream);
    }
    assert!(served.ask("/small").await.starts_with("HTTP/1.1 200 OK"));
    let counted = served.counters.now();
    let usual = counted.iter().find(|it| it.label.places == "usual").expect("counts");
    assert!(usual.shed > 10 && usual.refused == 0, "{usual:?}");
    drop(slow);
    served.end().await;
}

#[tokio::test]
async fn health_is_told_over_tls_where_all_connections_are_in_use() {
    let served = served(PATIENCE).await;
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = served.secured().await.expect("TLS");
        assert!(answer(&mut stream, "/silent").await.starts_with("HTTP/1.1 200 OK"));
        held.push(stream);
    }
    let said = served.ask("/small").await;
    assert!(said.starts_with("HTTP/1.1 503"), "{said}");
    for _ in 0..5 {
        let said = served.ask("/healthz").await;
        assert!(said.starts_with("HTTP/1.1 200 OK"), "{said}");
    }
    served.end().await;
}

#[tokio::test]
async fn a_new_certificate_is_for_new_connections_and_cuts_no_other() {
    let mut served = served(PATIENCE).await;
    let mut before = served.secured().await.expect("TLS");
    assert!(answer(&mut before, "/small").await.contains("200 OK"));
    write(&served.files, NOW);
    assert!(served.secured().await.is_err(), "the former certificate is still in service");
    served.keeper.look(Look::IfChanged, SystemTime::now()).await;
    assert!(served.ask("/small").await.contains("200 OK"));
    assert!(answer(&mut before, "/small").await.contains("200 OK"));
    served.end().await;
}
