//! A plugin made of a tonic server in this process, and the results that the agent makes of its
//! answers.

use std::path::Path;
use std::sync::Arc;

use guest_agent_proto::plugin_comm::guest_agent_plugin_server::{
    GuestAgentPlugin, GuestAgentPluginServer,
};
use guest_agent_proto::plugin_comm::{ApplyResponse, StartResponse, StopResponse};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response};

use super::*;

/// The answers of a test's plugin, and the calls that it received.
#[derive(Clone, Default)]
pub(crate) struct Script {
    /// Start fails with this.
    pub(crate) start: Option<Code>,
    /// Every call but Stop takes this long.
    pub(crate) delay: Duration,
    /// Apply fails with this.
    pub(crate) apply: Option<Code>,
    /// Stop fails with this.
    pub(crate) stop: Option<Code>,
    /// GetStatus answers this.
    pub(crate) results: Vec<String>,
    /// The calls that it received, in words.
    pub(crate) asked: Arc<Mutex<Vec<String>>>,
}

/// A plugin that listens.
pub(crate) struct Server(tokio::task::JoinHandle<()>);

impl Script {
    fn note(&self, what: String) {
        self.asked.lock().unwrap().push(what);
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    /// Listens on a socket until it is stopped or the test ends.
    pub(crate) fn serve(&self, path: &Path) -> Server {
        let listener = UnixListener::bind(path).unwrap();
        let server = tonic::transport::Server::builder()
            .add_service(GuestAgentPluginServer::new(self.clone()))
            .serve_with_incoming(UnixListenerStream::new(listener));
        Server(tokio::spawn(async move { server.await.unwrap() }))
    }
}

#[tonic::async_trait]
impl GuestAgentPlugin for Script {
    async fn start(
        &self,
        request: Request<StartRequest>,
    ) -> Result<Response<StartResponse>, tonic::Status> {
        let request = request.into_inner();
        let dir = request.config.unwrap_or_default().state_directory_path;
        self.note(format!("start {dir} {:?}", request.service_config));
        tokio::time::sleep(self.delay).await;
        match self.start {
            Some(code) => Err(tonic::Status::new(code, "no start")),
            None => Ok(Response::new(StartResponse {})),
        }
    }

    async fn stop(
        &self,
        request: Request<StopRequest>,
    ) -> Result<Response<StopResponse>, tonic::Status> {
        let request = request.into_inner();
        let seconds = request.deadline.unwrap_or_default().seconds;
        self.note(format!("stop {} {seconds}", request.cleanup));
        match self.stop {
            Some(code) => Err(tonic::Status::new(code, "no stop")),
            None => Ok(Response::new(StopResponse {})),
        }
    }

    async fn get_status(
        &self,
        request: Request<GetStatusRequest>,
    ) -> Result<Response<Status>, tonic::Status> {
        self.note(format!("status {:?}", request.into_inner().data));
        tokio::time::sleep(self.delay).await;
        Ok(Response::new(Status { code: 3, results: self.results.clone() }))
    }

    async fn apply(
        &self,
        request: Request<ApplyRequest>,
    ) -> Result<Response<ApplyResponse>, tonic::Status> {
        self.note(format!("apply {:?}", request.into_inner().service_config));
        match self.apply {
            Some(code) => Err(tonic::Status::new(code, "no apply")),
            None => Ok(Response::new(ApplyResponse {})),
        }
    }
}

fn bed() -> (tempfile::TempDir, std::path::PathBuf, Endpoint, GrpcPluginRpc) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.sock");
    let endpoint = Endpoint::unix(path.to_str().unwrap());
    (dir, path, endpoint, GrpcPluginRpc::new())
}

#[tokio::test]
async fn a_health_check_has_no_data_and_a_question_has() {
    let (_dir, path, endpoint, rpc) = bed();
    let script = Script { results: vec!["fine".into()], ..Script::default() };
    let _server = script.serve(&path);
    let health = rpc.health(&endpoint, Duration::from_secs(10)).await.unwrap();
    assert_eq!(health, Health { code: 3, results: vec!["fine".into()] });
    rpc.ask(&endpoint, String::new()).await.unwrap();
    assert_eq!(script.asked(), ["status None", "status Some(\"\")"]);
}

#[tokio::test]
async fn a_flood_of_results_is_cut() {
    let (_dir, path, endpoint, rpc) = bed();
    let _server = Script { results: vec!["é".repeat(3000); 500], ..Script::default() }.serve(&path);
    let health = rpc.health(&endpoint, Duration::from_secs(10)).await.unwrap();
    assert_eq!(health.results.len(), 64);
    assert!(health.results.iter().all(|line| line.len() == 4096));
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused() {
    let (_dir, path, endpoint, rpc) = bed();
    let _server = Script { results: vec!["x".repeat(5 << 20)], ..Script::default() }.serve(&path);
    let answer = rpc.health(&endpoint, Duration::from_secs(10)).await;
    assert!(matches!(answer, Err(RpcError::Refused { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_slow_answer_times_out() {
    let (_dir, path, endpoint, rpc) = bed();
    let _server = Script { delay: Duration::from_secs(60), ..Script::default() }.serve(&path);
    let timeout = Duration::from_millis(50);
    let answer = rpc.health(&endpoint, timeout).await;
    assert_eq!(answer, Err(RpcError::TimedOut(timeout)));
}

#[tokio::test]
async fn codes_become_what_the_core_decides_on() {
    for (code, expected) in [
        (Code::Unimplemented, RpcError::Unimplemented),
        (
            Code::InvalidArgument,
            RpcError::Refused { code: "INVALID_ARGUMENT".into(), message: "no apply".into() },
        ),
        (Code::DeadlineExceeded, RpcError::TimedOut(APPLY_TIMEOUT)),
    ] {
        let (_dir, path, endpoint, rpc) = bed();
        let _server = Script { apply: Some(code), ..Script::default() }.serve(&path);
        assert_eq!(rpc.apply(&endpoint, None).await, Err(expected));
    }
}

#[tokio::test]
async fn a_configuration_is_handed_over_in_its_form() {
    let (_dir, path, endpoint, rpc) = bed();
    let script = Script::default();
    let _server = script.serve(&path);
    rpc.apply(&endpoint, Some(Config::Text("a".into()))).await.unwrap();
    let empty = prost_types::Struct::default().encode_to_vec();
    rpc.apply(&endpoint, Some(Config::Struct(empty.into()))).await.unwrap();
    rpc.apply(&endpoint, None).await.unwrap();
    let asked = script.asked();
    assert_eq!(asked[0], "apply Some(StringConfig(\"a\"))");
    assert!(asked[1].starts_with("apply Some(StructConfig("), "{asked:?}");
    assert_eq!(asked[2], "apply None");
    let broken = rpc.apply(&endpoint, Some(Config::Struct([0xff].into()))).await;
    assert!(matches!(broken, Err(RpcError::Refused { .. })), "{broken:?}");
}

#[tokio::test]
async fn nobody_there_is_unreachable() {
    let (_dir, _path, endpoint, rpc) = bed();
    let answer = rpc.health(&endpoint, Duration::from_secs(10)).await;
    assert!(matches!(answer, Err(RpcError::Unreachable(_))), "{answer:?}");
    for odd in ["", "unix:relative", "tcp:192.0.2.1:80", "http://x", "tcp:x"] {
        let answer = rpc.health(&Endpoint::from_stored(odd), Duration::from_secs(10)).await;
        let Err(RpcError::Unreachable(reason)) = answer else { panic!("{odd:?}: {answer:?}") };
        assert_eq!(reason, format!("{odd:?} is not a local endpoint"));
    }
}

#[tokio::test]
async fn a_new_process_at_the_same_endpoint_is_reached() {
    let (_dir, path, endpoint, rpc) = bed();
    let first = Script::default();
    let server = first.serve(&path);
    rpc.health(&endpoint, Duration::from_secs(10)).await.unwrap();
    server.0.abort();
    std::fs::remove_file(&path).unwrap();
    rpc.forget(&endpoint);
    let second = Script::default();
    let _server = second.serve(&path);
    rpc.health(&endpoint, Duration::from_secs(10)).await.unwrap();
    assert_eq!((first.asked().len(), second.asked().len()), (1, 1));
}

#[tokio::test]
async fn kept_connections_are_bounded() {
    let (_dir, path, endpoint, rpc) = bed();
    let _server = Script::default().serve(&path);
    let calls = rpc.open(&endpoint, None).await.unwrap();
    for number in 0..KEPT_MAX + 10 {
        rpc.keep(&Endpoint::unix(&format!("/none/{number}")), calls.clone());
    }
    assert_eq!(rpc.lock().len(), KEPT_MAX);
}

#[tokio::test]
async fn of_many_connections_those_for_rare_calls_are_closed() {
    let (_dir, path, endpoint, rpc) = bed();
    let script = Script::default();
    let _server = script.serve(&path);
    let is_open = || rpc.lock()[&endpoint].open.is_some();
    let timeout = Duration::from_secs(5);
    let calls = rpc.open(&endpoint, None).await.unwrap();
    for number in 0..OPEN_MAX {
        rpc.keep(&Endpoint::unix(&format!("/none/{number}")), calls.clone());
    }
    rpc.lock().remove(&endpoint);
    rpc.health(&endpoint, timeout).await.unwrap();
    assert!(!is_open(), "nothing says that another call follows soon");
    for _ in 0..2 {
        rpc.health(&endpoint, timeout).await.unwrap();
        assert!(is_open(), "another call may follow at once");
    }
    rpc.lock().get_mut(&endpoint).unwrap().quick = QUICK_AFTER_START;
    for _ in 0..QUICK_AFTER_START {
        rpc.health(&endpoint, timeout).await.unwrap();
        assert!(!is_open(), "that calls follow Start quickly says nothing of those to come");
    }
    for _ in 0..2 {
        let long_ago = Instant::now().checked_sub(RARE).unwrap();
        rpc.lock().get_mut(&endpoint).unwrap().used = long_ago;
        rpc.health(&endpoint, timeout).await.unwrap();
        assert!(!is_open(), "the next call is probably as far away as the last one was");
    }
    rpc.health(&endpoint, timeout).await.unwrap();
    assert!(is_open());
    // One of the others ended.
    rpc.forget(&Endpoint::unix("/none/0"));
    rpc.lock().get_mut(&endpoint).unwrap().used = Instant::now().checked_sub(RARE).unwrap();
    rpc.health(&endpoint, timeout).await.unwrap();
    assert!(is_open(), "there is room for it");
    assert_eq!(script.asked().len(), 9);
}
