//! Streams that have to leave.

use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::shares::{Most, Peer, Shares};

#[tokio::test]
async fn what_was_sent_is_read_before_the_end_and_the_place_is_free_after_it() {
    let shares = Shares::new("the test", Most { all: 1, each: 1 });
    let first = shares.place(Peer::User(1)).await.expect("there is room");
    let (mut client, stream) = tokio::io::duplex(64);
    let mut server = Placed::new(stream, first);
    client.write_all(b"half a request").await.expect("there is room");
    let next = shares.place(Peer::User(2));
    tokio::pin!(next);
    assert!((&mut next).now_or_never().is_none());
    let mut read = String::new();
    server.read_to_string(&mut read).await.expect("a clean end");
    assert_eq!(read, "half a request");
    assert!(server.left());
    // The client can still get an answer.
    server.write_all(b"no").await.expect("there is room");
    drop(server);
    assert!(next.await.is_some());
    read.clear();
    client.read_to_string(&mut read).await.expect("a clean end");
    assert_eq!(read, "no");
}

#[tokio::test]
async fn a_request_that_is_on_its_way_to_its_server_keeps_its_connection() {
    let shares = Shares::new("the test", Most { all: 1, each: 1 });
    let place = shares.place(Peer::User(1)).await.expect("there is room");
    let (mut client, stream) = tokio::io::duplex(64);
    let mut server = Placed::new(stream, place);
    let requested = server.requested();
    let next = tokio::spawn(async move { shares.place(Peer::User(2)).await.is_some() });
    while !server.left() {
        tokio::task::yield_now().await;
    }
    client.write_all(b"x").await.expect("there is room");
    let reading = async {
        let mut byte = [0];
        server.read_exact(&mut byte).await.expect("a byte");
        // Another task notes it, as servers do.
        tokio::spawn(async move { requested.note() });
        server.read(&mut byte).await
    };
    tokio::select! {
        biased;
        read = reading => panic!("it was made to leave: {read:?}"),
        placed = next => assert!(!placed.expect("no panic"), "nobody is idle"),
    }
}
