//! Streams that have to leave, and a gRPC server whose connections do.

use std::path::Path;

use futures_util::FutureExt;
use guest_agent_proto::plugin_comm::guest_agent_plugin_client::GuestAgentPluginClient;
use guest_agent_proto::plugin_comm::guest_agent_plugin_server::{
    GuestAgentPlugin, GuestAgentPluginServer,
};
use guest_agent_proto::plugin_comm::{
    ApplyRequest, ApplyResponse, GetStatusRequest, StartRequest, StartResponse,
    Status as PluginStatus, StopRequest, StopResponse,
};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tonic::service::InterceptorLayer;
use tonic::transport::{Channel, Endpoint, Server, Uri};
use tonic::{Request, Response, Status};

use std::sync::Arc;

use super::*;
use crate::net::accept::Acceptor;
use crate::net::shares::{Most, Peer, Shares};
use crate::net::vetted::{self, VettingListener};

/// A server that answers with the number of calls so far.
#[derive(Default)]
struct Counts(std::sync::atomic::AtomicI32);

#[tonic::async_trait]
impl GuestAgentPlugin for Counts {
    async fn get_status(
        &self,
        _: Request<GetStatusRequest>,
    ) -> Result<Response<PluginStatus>, Status> {
        let code = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(Response::new(PluginStatus { code, results: Vec::new() }))
    }

    async fn start(&self, _: Request<StartRequest>) -> Result<Response<StartResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn stop(&self, _: Request<StopRequest>) -> Result<Response<StopResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn apply(&self, _: Request<ApplyRequest>) -> Result<Response<ApplyResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

/// One connection, which is not made a second time.
async fn client(path: &Path) -> GuestAgentPluginClient<Channel> {
    let mut stream = UnixStream::connect(path).await.ok();
    let connector = tower::service_fn(move |_: Uri| {
        let stream = stream.take().ok_or(io::ErrorKind::NotConnected);
        async move { Ok::<_, io::Error>(TokioIo::new(stream?)) }
    });
    let endpoint = Endpoint::from_static("http://test.local");
    let channel = endpoint.connect_with_connector(connector).await.expect("it is accepted");
    GuestAgentPluginClient::new(channel)
}

#[tokio::test]
async fn idle_connections_keep_no_grpc_client_out_and_one_that_called_is_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("x.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    let listener =
        VettingListener::new(listener, Arc::new(|_| Box::pin(std::future::ready(Ok(())))));
    let shares = Shares::new("the test", Most { all: 3, each: 3 });
    let incoming = Acceptor::new(listener, shares, |_| ()).incoming();
    let server = Server::builder()
        .layer(InterceptorLayer::new(vetted::admit))
        .add_service(GuestAgentPluginServer::new(Counts::default()));
    let served = tokio::spawn(server.serve_with_incoming(incoming));
    let ask = async |client: &mut GuestAgentPluginClient<Channel>| {
        let answer = client.get_status(GetStatusRequest::default()).await;
        answer.expect("it is answered").into_inner().code
    };
    let mut first = client(&path).await;
    assert_eq!(ask(&mut first).await, 0);
    let mut idle = Vec::new();
    for number in 0..200 {
        let mut stream = UnixStream::connect(&path).await.expect("it listens");
        if number % 2 == 0 {
            // As far as a client gets that never asks.
            stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.ok();
        }
        idle.push(stream);
    }
    let mut second = client(&path).await;
    assert_eq!(ask(&mut second).await, 1);
    assert_eq!(ask(&mut first).await, 2, "over its first connection");
    // The oldest of them ended, and the newest did not.
    let mut bytes = Vec::new();
    drop(idle.remove(0).read_to_end(&mut bytes).await);
    let mut byte = [0];
    let newest = idle.pop().expect("there are many");
    let end = newest.try_read(&mut byte);
    assert!(!matches!(end, Ok(0)), "it was made to leave");
    served.abort();
}

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
