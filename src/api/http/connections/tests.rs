//! On real sockets: what a client can do to the server.

use std::net::SocketAddr;

use axum::body::{Body, Bytes};
use axum::routing::get;
use futures_util::stream;
use guest_agent_serve_kit::write_timeout::WriteTimeout;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::*;

const REQUEST: &[u8] = b"GET /small HTTP/1.1\r\nhost: x\r\n\r\n";

/// Most connections at once.
const CONNECTIONS: usize = 3;

/// Longest that anything may take here.
const PATIENCE: Duration = Duration::from_secs(20);

struct Served {
    at: SocketAddr,
    ending: CancellationToken,
    serving: JoinHandle<()>,
}

fn limits() -> Limits {
    Limits {
        connections: Most { all: CONNECTIONS, each: CONNECTIONS },
        spare: Most { all: 2, each: 2 },
        handshake: Duration::from_millis(300),
        head: Duration::from_millis(300),
        stall: Duration::from_millis(300),
        end: Duration::from_millis(300),
    }
}

fn pages() -> Router {
    let endless =
        || stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; 65_536])));
    Router::new()
        .route("/small", get(async || "small"))
        .route("/healthz", get(async || "alive"))
        .route("/endless", get(async move || Body::from_stream(endless())))
        .route(
            "/silent",
            get(async || Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>())),
        )
}

async fn served(limits: Limits) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let at = listener.local_addr().expect("an address");
    let ending = CancellationToken::new();
    let server = Server { pages: pages(), limits, ending: ending.clone() };
    let serving = tokio::spawn(async move {
        let places = Places::new(limits, &ConnectionCounters::default(), "http");
        let converse = |server: Server, stream: Placed<TcpStream>, service| {
            let requested = stream.requested();
            let stream = WriteTimeout::new(stream, server.limits.stall);
            server.converse(stream, requested, service, None)
        };
        server.serve(listener, places, converse).await;
    });
    Served { at, ending, serving }
}

impl Served {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.at).await.expect("a connection")
    }

    async fn ask(&self, path: &str) -> TcpStream {
        let mut stream = self.connect().await;
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        stream
    }

    /// Whether a connection is served now.
    async fn answers(&self) -> bool {
        let mut stream = self.connect().await;
        let mut bytes = [0; 15];
        let sent = stream.write_all(REQUEST).await;
        sent.is_ok() && stream.read_exact(&mut bytes).await.is_ok() && &bytes == b"HTTP/1.1 200 OK"
    }

    async fn end(self) {
        self.ending.cancel();
        tokio::time::timeout(PATIENCE, self.serving).await.expect("it ends").expect("no panic");
        assert!(TcpStream::connect(self.at).await.is_err(), "nobody listens any more");
    }
}

/// Reads until the server closes the connection.
async fn read_to_end(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let reading = stream.read_to_end(&mut bytes);
    // A connection that is reset has ended as well.
    drop(tokio::time::timeout(PATIENCE, reading).await.expect("the server ends it"));
    bytes
}

#[tokio::test]
async fn one_who_never_finishes_a_request_and_one_who_never_begins_are_let_go() {
    let served = served(limits()).await;
    let mut slow = served.connect().await;
    slow.write_all(b"GET / HTTP/1.1\r\nho").await.expect("sent");
    let silent = served.connect().await;
    let idle = served.ask("/small").await;
    for stream in [slow, silent, idle] {
        read_to_end(stream).await;
    }
    assert!(served.answers().await);
    served.end().await;
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let served = served(limits()).await;
    let mut stream = served.connect().await;
    let head = format!("GET / HTTP/1.1\r\nx: {}", "x".repeat(4 * BUFFER_MAX));
    // It may be refused before all of it was sent.
    drop(stream.write_all(head.as_bytes()).await);
    let said = read_to_end(stream).await;
    assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 431"), "{}", said.escape_ascii());
    assert!(served.answers().await);
    served.end().await;
}

#[tokio::test]
async fn health_is_told_and_all_else_refused_where_all_connections_are_in_use() {
    let served = served(limits()).await;
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = served.ask("/silent").await;
        let mut byte = [0];
        stream.read_exact(&mut byte).await.expect("it is served");
        held.push(stream);
    }
    // Some that say nothing are in the spare places.
    let silent = [served.connect().await, served.connect().await, served.connect().await];
    for _ in 0..20 {
        let said = read_to_end(served.ask("/healthz").await).await;
        assert!(said.starts_with(b"HTTP/1.1 200"), "{}", said.escape_ascii());
        let said = read_to_end(served.ask("/small").await).await;
        let said = String::from_utf8_lossy(&said);
        assert!(said.starts_with("HTTP/1.1 503"), "{said}");
        assert!(said.contains("retry-after: 1") && said.contains("too many connections"), "{said}");
    }
    drop(silent);
    held.pop();
    let served_again = async { while !served.answers().await {} };
    tokio::time::timeout(PATIENCE, served_again).await.expect("there is a place");
    served.end().await;
}

#[tokio::test]
async fn connections_whose_requests_are_answered_make_room() {
    let patient = Limits { head: PATIENCE, ..limits() };
    let served = served(patient).await;
    let mut kept = Vec::new();
    for _ in 0..10 * CONNECTIONS {
        let mut stream = served.ask("/small").await;
        let mut bytes = [0; 15];
        stream.read_exact(&mut bytes).await.expect("it is served");
        assert_eq!(&bytes, b"HTTP/1.1 200 OK");
        kept.push(stream);
    }
    // Its answer was sent as a whole before it left.
    let first = read_to_end(kept.remove(0)).await;
    assert!(first.ends_with(b"small"), "{}", first.escape_ascii());
    // The newest can be used again.
    let mut newest = kept.pop().expect("there are many");
    let mut rest = [0; 1024];
    let _rest = newest.read(&mut rest).await.expect("the rest of its answer");
    newest.write_all(REQUEST).await.expect("sent");
    let mut bytes = [0; 15];
    newest.read_exact(&mut bytes).await.expect("it is served");
    served.end().await;
}

#[tokio::test]
async fn idle_connections_of_one_user_keep_out_neither_its_requests_nor_those_of_others() {
    let connections = Most { all: CONNECTIONS + 1, each: CONNECTIONS };
    let served = served(Limits { connections, head: PATIENCE, ..limits() }).await;
    let mut other = other_user(served.at);
    if let Some(other) = &mut other {
        let mut byte = [0];
        let output = other.stdout.as_mut().expect("a pipe");
        output.read_exact(&mut byte).await.expect("it is connected");
    }
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(served.connect().await);
    }
    // Long before the idle ones are let go for their silence.
    assert!(served.answers().await);
    if let Some(other) = &mut other {
        other.stdin.take().expect("a pipe").write_all(b"now\n").await.expect("it waits");
        let mut said = String::new();
        let output = other.stdout.as_mut().expect("a pipe");
        let reading = output.read_to_string(&mut said);
        tokio::time::timeout(PATIENCE, reading).await.expect("an answer").expect("text");
        assert_eq!(said, "HTTP/1.1 200 OK", "it was kept, and is served");
    }
    // The oldest left, and the newest are there.
    let newest = idle.pop().expect("there are many");
    assert_eq!(read_to_end(idle.remove(0)).await, b"");
    let mut byte = [0];
    let silence = newest.try_read(&mut byte).expect_err("it is open, and has nothing to say");
    assert_eq!(silence.kind(), std::io::ErrorKind::WouldBlock);
    served.end().await;
}

/// Another user's process, which is connected and sends a request when it is let.
fn other_user(at: SocketAddr) -> Option<tokio::process::Child> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can connect as another user");
        return None;
    }
    let script = format!(
        "exec 3<>/dev/tcp/{}/{}; echo; read -r _; \
         printf 'GET /small HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n' >&3; head -c 15 <&3",
        at.ip(),
        at.port()
    );
    let child = tokio::process::Command::new("bash")
        .args(["-c", &script])
        .uid(12_345)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    Some(child.expect("bash"))
}

#[tokio::test]
async fn who_reads_nothing_is_let_go_and_holds_nobody_up() {
    let served = served(limits()).await;
    let greedy: Vec<_> = [served.ask("/endless").await, served.ask("/endless").await].into();
    assert!(served.answers().await, "while they wait");
    tokio::time::sleep(limits().stall * 4).await;
    let places = async { while !(served.answers().await && served.serving_is_free().await) {} };
    tokio::time::timeout(PATIENCE, places).await.expect("all places are free");
    drop(greedy);
    served.end().await;
}

#[tokio::test]
async fn a_response_that_goes_on_is_cut_at_the_end() {
    let served = served(limits()).await;
    let silent = served.ask("/silent").await;
    let endless = served.ask("/endless").await;
    served.end().await;
    assert!(read_to_end(silent).await.len() < 1000);
    drop(endless);
}

impl Served {
    /// Whether as many connections as there may be are served at once.
    async fn serving_is_free(&self) -> bool {
        let mut held = Vec::new();
        for _ in 0..CONNECTIONS {
            // One that is answered is idle, and would make room for the next.
            let mut stream = self.ask("/silent").await;
            let mut bytes = [0; 15];
            if stream.read_exact(&mut bytes).await.is_err() || &bytes != b"HTTP/1.1 200 OK" {
                return false;
            }
            held.push(stream);
        }
        true
    }
}
