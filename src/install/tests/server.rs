//! A tiny HTTP server that sends the answers that the test gives it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinHandle;

/// How one request is answered.
#[derive(Clone)]
pub(super) enum Answer {
    /// With this body, and the right length.
    Whole(Vec<u8>),
    /// With only these bytes of the announced body.
    Truncated(Vec<u8>),
    /// With this entity tag and the length of this body, but only so many bytes of it.
    Tagged(&'static str, Vec<u8>, usize),
    /// With this status, these headers and this body, unchanged.
    Raw(Vec<u8>),
    /// With these bytes of the announced body, and then silence.
    Stalled(Vec<u8>),
    /// With these bytes as quickly as the client takes them, and no length.
    Endless(Vec<u8>),
    /// With a status line and headers.
    Status(&'static str),
    /// With no answer.
    Hangup,
}

/// A server that runs until it is dropped.
pub(super) struct Server {
    pub(super) address: String,
    requests: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Server {
    /// Answers the first request with the first answer and so on; the last one is repeated.
    pub(super) async fn new(answers: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("acceptable");
                let number = count.fetch_add(1, Ordering::SeqCst);
                let answer = answers[number.min(answers.len() - 1)].clone();
                tokio::spawn(serve(stream, answer));
            }
        });
        Self { address, requests, task }
    }

    pub(super) fn on_socket(path: &std::path::Path, answer: Answer) -> Self {
        let listener = UnixListener::bind(path).expect("bindable");
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("acceptable");
                count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream, answer.clone()));
            }
        });
        Self { address: format!("unix:{}:", path.display()), requests, task }
    }

    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: Answer) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return,
        }
    }
    let head = |length: usize| {
        format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n")
    };
    // The client may have closed the connection, which it may.
    match answer {
        Answer::Whole(body) => {
            stream.write_all(head(body.len()).as_bytes()).await.ok();
            stream.write_all(&body).await.ok();
        }
        Answer::Truncated(body) => {
            stream.write_all(head(body.len() + 100).as_bytes()).await.ok();
            stream.write_all(&body).await.ok();
        }
        Answer::Tagged(tag, body, sent) => {
            let head = head(body.len()).replacen("\r\n", &format!("\r\netag: {tag}\r\n"), 1);
            stream.write_all(head.as_bytes()).await.ok();
            stream.write_all(&body[..sent]).await.ok();
        }
        Answer::Raw(bytes) => {
            stream.write_all(&bytes).await.ok();
        }
        Answer::Stalled(body) => {
            stream.write_all(head(body.len() + 100).as_bytes()).await.ok();
            stream.write_all(&body).await.ok();
            stream.read_u8().await.ok();
        }
        Answer::Endless(body) => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").await.ok();
            while stream.write_all(&body).await.is_ok() {}
        }
        Answer::Status(text) => {
            let answer =
                format!("HTTP/1.1 {text}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.ok();
        }
        Answer::Hangup => return,
    }
    stream.shutdown().await.ok();
}
