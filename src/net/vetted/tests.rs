//! Judgements of connections, and a gRPC server whose idle connections have to leave.

use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use futures_util::FutureExt;
use guest_agent_proto::plugin_comm::guest_agent_plugin_client::GuestAgentPluginClient;
use guest_agent_proto::plugin_comm::guest_agent_plugin_server::{
    GuestAgentPlugin, GuestAgentPluginServer,
};
use guest_agent_proto::plugin_comm::{
    ApplyRequest, ApplyResponse, GetStatusRequest, StartRequest, StartResponse,
    Status as PluginStatus, StopRequest, StopResponse,
};
use guest_agent_serve_kit::accept::Acceptor;
use guest_agent_serve_kit::shares::{Most, Shares};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::Response;
use tonic::service::InterceptorLayer;
use tonic::transport::{Channel, Endpoint, Server, Uri};

use super::*;

#[test]
fn who_logged_in_is_named_beside_the_user_of_the_process() {
    let named = |uid, login| {
        Caller { uid, gid: 7, groups: Arc::default(), login }.named(|uid| format!("u{uid}"))
    };
    assert_eq!(named(0, Some(1000)), "u1000 as u0");
    assert_eq!(named(0, Some(0)), "u0");
    assert_eq!(named(0, None), "u0");
}

#[tokio::test]
async fn a_connection_whose_judgement_is_dropped_is_not_lost() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("x.sock");
    let judged = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&judged);
    let vet: Vet = Arc::new(move |_| {
        let first = count.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if first {
                std::future::pending::<()>().await;
            }
            Ok(())
        }
        .boxed()
    });
    let listener = VettingListener::new(UnixListener::bind(&path).expect("a socket"), vet);
    let _client = UnixStream::connect(&path).await.expect("it listens");
    tokio::select! {
        biased;
        _ = listener.accept() => panic!("its judgement does not end"),
        () = async {
            while judged.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
        } => {}
    }
    assert!(listener.accept().await.expect("the same one").result().is_ok());
    assert_eq!(judged.load(Ordering::SeqCst), 2);
}

/// A server that answers with the number of calls so far.
#[derive(Default)]
struct Counts(AtomicI32);

#[tonic::async_trait]
impl GuestAgentPlugin for Counts {
    async fn get_status(
        &self,
        _: Request<GetStatusRequest>,
    ) -> Result<Response<PluginStatus>, Status> {
        let code = self.0.fetch_add(1, Ordering::Relaxed);
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
        .layer(InterceptorLayer::new(admit))
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
