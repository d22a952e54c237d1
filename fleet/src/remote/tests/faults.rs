//! Servers that do not answer, or answer what is no answer: every verb ends, and says what to try.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::StatusCode;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::{Ran, Served, asked, plain, run};
use crate::api::listener::ApiListener;
use crate::api::router;
use crate::api::tests::{api, fleet};
use crate::cli::failure::Exit;

/// What a command comes to at a server that answers every call so.
async fn at(answer: fn() -> Response, words: &[&str]) -> Ran {
    let routes = Router::new().fallback(move || async move { answer() });
    let listen = "127.0.0.1:0".parse().expect("an address");
    let listener = ApiListener::start(&listen, None, routes).await.expect("it listens");
    let folder = tempfile::tempdir().expect("a folder");
    let ran = asked(&mut plain(listener.endpoint(), folder.path()), words).await;
    listener.shutdown().await;
    ran
}

/// An answer of gRPC whose body comes in these pieces, one a second, for ever.
fn endless(piece: &'static [u8]) -> Response {
    let pieces = futures_util::stream::unfold((), move |()| async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Some((Ok::<_, std::io::Error>(Bytes::from_static(piece)), ()))
    });
    ([("content-type", "application/grpc")], Body::from_stream(pieces)).into_response()
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_given_up_and_a_change_may_have_happened() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("it listens");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    let silent = tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            kept.push(stream);
        }
    });
    let folder = tempfile::tempdir().expect("a folder");
    let mut link = plain(&endpoint, folder.path());
    let ran = asked(&mut link, &["status"]).await;
    assert!(ran.exit == Exit::TimedOut && ran.err.contains("did not answer GetStatus"), "{ran:?}");
    assert!(ran.err.contains("try: try again"), "{ran:?}");
    let ran = asked(&mut link, &["rollout", "pause", "x"]).await;
    assert_eq!(ran.exit, Exit::TimedOut, "{ran:?}");
    assert!(ran.err.contains("it may have happened"), "{ran:?}");
    silent.abort();
}

#[tokio::test(start_paused = true)]
async fn answers_without_an_end_are_given_up() {
    // Empty messages after the first, and one of 16 MiB that comes five bytes at a time.
    for answer in [|| endless(&[0, 0, 0, 0, 0]), || endless(&[0, 1, 1, 1, 1])] {
        let ran = at(answer, &["status"]).await;
        assert_eq!(ran.exit, Exit::TimedOut, "{ran:?}");
    }
    // A message of 2 GiB.
    let ran = at(|| endless(&[0, 0x7f, 0xff, 0xff, 0xff]), &["status"]).await;
    assert!(ran.exit == Exit::Failed && ran.err.contains("is no answer of the API"), "{ran:?}");
    assert!(ran.err.contains("too large"), "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_no_answer_is_told_with_what_to_check() {
    let ran = at(|| StatusCode::NOT_FOUND.into_response(), &["status"]).await;
    assert!(ran.exit == Exit::Failed && ran.err.contains("has no call GetStatus"), "{ran:?}");
    let ran = at(|| "<html>".into_response(), &["status"]).await;
    assert!(ran.exit != Exit::Done && ran.err.contains("--server"), "{ran:?}");
    // Bytes that are no message.
    let broken = || {
        let body = Body::from(&[0, 0, 0, 0, 2, 0xff, 0xff][..]);
        let headers = [("content-type", "application/grpc"), ("grpc-status", "0")];
        (headers, body).into_response()
    };
    let ran = at(broken, &["status"]).await;
    assert!(ran.exit == Exit::Failed && ran.err.contains("cannot be read"), "{ran:?}");
    // What moves the cursor of a terminal comes to nobody.
    let ran = at(
        || ([("grpc-status", "9"), ("grpc-message", "a%1b[2Jb")], "").into_response(),
        &["status"],
    )
    .await;
    assert!(ran.exit != Exit::Done && !ran.err.contains('\u{1b}'), "{ran:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_of_another_protocol_is_told_from_one_that_is_away() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("it listens");
    let address = listener.local_addr().expect("an address");
    let other = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let said = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n");
            drop(said.await);
        }
    });
    let folder = tempfile::tempdir().expect("a folder");
    let mut link = plain(&format!("http://{address}"), folder.path());
    let ran = asked(&mut link, &["status"]).await;
    assert!(ran.exit == Exit::Unreachable && ran.err.contains("broke before"), "{ran:?}");
    other.abort();
    drop(other.await);
    let mut link = plain(&format!("http://{address}"), folder.path());
    let ran = asked(&mut link, &["rollout", "pause", "x"]).await;
    assert!(ran.exit == Exit::Unreachable && ran.err.contains("cannot be reached"), "{ran:?}");
    assert!(!ran.err.contains("may have happened"), "it was never sent: {ran:?}");
}

#[tokio::test]
async fn a_change_whose_answer_was_lost_is_asked_for_again_and_happens_once() {
    let ledger = fleet::in_memory().await;
    let is_lost = Arc::new(AtomicBool::new(true));
    let losing = move |request: Request, next: Next| {
        let is_lost = is_lost.clone();
        async move {
            let answer = next.run(request).await;
            if is_lost.swap(false, Ordering::SeqCst) {
                return StatusCode::SERVICE_UNAVAILABLE.into_response();
            }
            answer
        }
    };
    let routes = router(api(ledger.clone())).layer(middleware::from_fn(losing));
    let served = Served::with(ledger, routes, &["127.0.0.1"]).await;
    let before = run(None, &*served.ledger, &["audit", "verify"], "").await;
    let ran = asked(&mut served.link("admin"), &["retry", "prodassignment"]).await;
    assert!(ran.exit == Exit::Done && ran.out.contains("attempt 1"), "{ran:?}");
    let audit = run(None, &*served.ledger, &["audit", "--limit", "100"], "").await;
    assert_eq!(audit.out.matches("  retry").count(), 1, "{} after {}", audit.out, before.out);
    served.listener.shutdown().await;
}
