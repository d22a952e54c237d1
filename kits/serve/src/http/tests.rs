//! Connections that end in every way.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper::{Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::Notify;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

const HTTP: Http =
    Http { head: SECOND, buffer_bytes: 16 << 10, requests: Requests::Many, life: None };

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n";

async fn answer(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from_static(b"yes"))))
}

/// Reads until the end of an answer.
async fn read_answer(client: &mut DuplexStream) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"yes") {
        assert_ne!(client.read_buf(&mut text).await.expect("it can be read"), 0, "no end");
    }
    String::from_utf8(text).expect("text")
}

#[tokio::test(start_paused = true)]
async fn requests_follow_one_another_until_the_connection_is_idle_for_too_long() {
    let (mut client, server) = tokio::io::duplex(1024);
    let ending = CancellationToken::new();
    let client = async {
        for _ in 0..3 {
            client.write_all(REQUEST).await.expect("it is taken");
            read_answer(&mut client).await;
            tokio::time::sleep(SECOND / 2).await;
        }
        assert_eq!(client.read(&mut [0]).await.expect("a clean end"), 0);
    };
    let (served, ()) = tokio::join!(HTTP.converse(server, service_fn(answer), &ending), client);
    drop(served);
}

#[tokio::test(start_paused = true)]
async fn a_connection_for_one_request_ends_with_its_answer() {
    let (mut client, server) = tokio::io::duplex(1024);
    client.write_all(REQUEST).await.expect("there is room");
    let http = Http { requests: Requests::One, ..HTTP };
    let ending = CancellationToken::new();
    http.converse(server, service_fn(answer), &ending).await.expect("a clean end");
    assert!(read_answer(&mut client).await.contains("connection: close"));
}

#[tokio::test(start_paused = true)]
async fn no_connection_lives_longer_than_it_may() {
    let (_client, server) = tokio::io::duplex(1024);
    let http = Http { head: 10 * SECOND, life: Some(3 * SECOND), ..HTTP };
    let begun_at = tokio::time::Instant::now();
    let ending = CancellationToken::new();
    let ended = http.converse(server, service_fn(answer), &ending).await;
    assert!(matches!(ended, Err(Broken::Life)), "{ended:?}");
    assert_eq!(begun_at.elapsed(), 3 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn the_answer_that_is_on_its_way_is_finished_when_the_listener_ends() {
    let (mut client, server) = tokio::io::duplex(1024);
    client.write_all(REQUEST).await.expect("there is room");
    let (asked, may) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let ending = CancellationToken::new();
    let slow = service_fn(|request| {
        let (asked, may) = (Arc::clone(&asked), Arc::clone(&may));
        async move {
            asked.notify_one();
            may.notified().await;
            answer(request).await
        }
    });
    let steps = async {
        asked.notified().await;
        ending.cancel();
        tokio::task::yield_now().await;
        may.notify_one();
        read_answer(&mut client).await
    };
    let (served, answer) = tokio::join!(HTTP.converse(server, slow, &ending), steps);
    served.expect("a clean end");
    assert!(answer.contains("connection: close"), "{answer}");
}

/// Connections that were made before, and then none.
struct Made(Vec<u32>);

impl Connections for Made {
    type Connection = u32;

    async fn next(&mut self) -> Option<u32> {
        match self.0.pop() {
            None => std::future::pending().await,
            connection => connection,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn connections_have_a_bounded_time_to_end() {
    let ending = CancellationToken::new();
    let ended = Arc::new(std::sync::Mutex::new(Vec::new()));
    let converse = |seconds: u32| {
        let (ending, ended) = (ending.clone(), Arc::clone(&ended));
        async move {
            ending.cancelled().await;
            tokio::time::sleep(seconds * SECOND).await;
            ended.lock().expect("no panic").push(seconds);
        }
    };
    let begun_at = tokio::time::Instant::now();
    let serving = serve(Made(vec![1, 2, 60]), converse, &ending, 5 * SECOND);
    tokio::join!(serving, async {
        tokio::time::sleep(SECOND).await;
        ending.cancel();
    });
    assert_eq!(begun_at.elapsed(), 6 * SECOND);
    assert_eq!(*ended.lock().expect("no panic"), [1, 2], "the last one was cut");
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_failed_for_good_ends_the_loop() {
    let (sender, connections) = mpsc::channel::<io::Result<u32>>(4);
    sender.try_send(Err(io::ErrorKind::Other.into())).expect("there is room");
    sender.try_send(Ok(7)).expect("there is room");
    drop(sender);
    let served = Arc::new(std::sync::Mutex::new(Vec::new()));
    let converse = |number: u32| {
        let served = Arc::clone(&served);
        async move { served.lock().expect("no panic").push(number) }
    };
    serve(connections, converse, &CancellationToken::new(), SECOND).await;
    assert_eq!(*served.lock().expect("no panic"), [7]);
}
