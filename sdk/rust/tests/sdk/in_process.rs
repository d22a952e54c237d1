//! A plugin in this process, over a unix socket and over TCP.

use std::future::pending;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use guest_agent_plugin::{
    Address, Arguments, Cleanup, Plugin, PluginError, PluginStatus, ServeError, Server,
    ServiceConfig, StartContext, StatusQuery, StopContext, async_trait, serve_with,
};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Code;

use crate::harness::{Client, PATIENCE, eventually};

const SECOND: Duration = Duration::from_secs(1);

/// Does as its questions and configurations say, and writes down what it was asked.
#[derive(Clone, Default)]
struct Scripted {
    heard: Arc<Mutex<Vec<String>>>,
}

impl Scripted {
    fn hear(&self, what: String) {
        self.heard.lock().expect("not poisoned").push(what);
    }

    fn heard(&self) -> Vec<String> {
        self.heard.lock().expect("not poisoned").clone()
    }
}

#[async_trait]
impl Plugin for Scripted {
    async fn start(&self, context: StartContext) -> Result<(), PluginError> {
        let config = context.config.as_ref().and_then(ServiceConfig::as_str);
        self.hear(format!("start {} {config:?}", context.state_directory.display()));
        match config {
            Some("fail") => {
                let cause = std::io::Error::other("no such licence");
                Err(PluginError::because("cannot begin", cause))
            }
            Some("panic") => panic!("start gone wrong"),
            _ => Ok(()),
        }
    }

    async fn apply(&self, config: Option<ServiceConfig>) -> Result<(), PluginError> {
        let config = config.as_ref().and_then(ServiceConfig::as_str);
        self.hear(format!("apply {config:?}"));
        match config {
            Some("unsupported") => Err(PluginError::Unsupported),
            Some("bad") => Err(PluginError::bad_config("no port")),
            Some("panic") => panic!("apply gone wrong"),
            _ => Ok(()),
        }
    }

    async fn status(&self, query: StatusQuery) -> PluginStatus {
        match query {
            StatusQuery::HealthCheck => PluginStatus::healthy(),
            StatusQuery::Question(question) => match question.as_str() {
                "panic" => panic!("status gone wrong"),
                "hang" => {
                    self.hear("hanging".to_owned());
                    pending().await
                }
                "slow" => {
                    self.hear("slow".to_owned());
                    tokio::time::sleep(SECOND / 5).await;
                    self.hear("slow is done".to_owned());
                    PluginStatus::answer("done")
                }
                other => PluginStatus::unhealthy(7, other),
            },
        }
    }

    async fn stop(&self, context: StopContext) -> Result<(), PluginError> {
        self.hear(format!("stop {:?} {:?}", context.cleanup, context.deadline));
        if context.deadline == Duration::from_millis(50) { pending().await } else { Ok(()) }
    }
}

/// A plugin that is being served.
struct Served {
    plugin: Scripted,
    address: Address,
    end: oneshot::Sender<()>,
    server: JoinHandle<Result<(), ServeError>>,
}

impl Served {
    fn at(address: &Address) -> Served {
        let plugin = Scripted::default();
        let server = Server::bind(plugin.clone(), address).expect("bound");
        let address = server.address().clone();
        let (end, ended) = oneshot::channel::<()>();
        let end_signal = async move {
            if ended.await.is_err() {
                pending::<()>().await;
            }
        };
        let server = tokio::spawn(server.run_until(end_signal));
        Served { plugin, address, end, server }
    }

    fn on_tcp() -> Served {
        Served::at(&Address::parse("tcp", "127.0.0.1:0").expect("loopback"))
    }

    async fn client(&self) -> Client {
        Client::connect(&self.address).await
    }

    async fn ends(self) -> Result<(), ServeError> {
        let over = tokio::time::timeout(PATIENCE, self.server).await;
        over.expect("the server ends").expect("the server does not panic")
    }
}

fn socket_in(directory: &tempfile::TempDir) -> Address {
    Address::unix(directory.path().join("plugin.sock")).expect("a short path")
}

/// The whole conversation, the same on either transport.
async fn check_conversation(address: &Address) {
    let served = Served::at(address);
    let mut client = served.client().await;

    let early = client.apply(Some("x")).await.expect_err("not started yet");
    assert_eq!(early.code(), Code::FailedPrecondition);

    client.start(Path::new("/state"), Some("first")).await.expect("started");
    client.start(Path::new("/state"), Some("first")).await.expect("started already");
    assert_eq!(client.health().await.expect("healthy").code, 0);
    let answer = client.ask("how are you").await.expect("answered");
    assert_eq!((answer.code, answer.results), (7, vec!["how are you".to_owned()]));
    assert_eq!(client.ask("").await.expect("an empty question is a question").code, 7);
    client.apply(Some("second")).await.expect("applied");
    client.apply(None).await.expect("cleared");
    client.stop(true, 5 * SECOND).await.expect("stopped");

    let plugin = served.plugin.clone();
    served.ends().await.expect("a good end");
    let expected =
        ["start /state Some(\"first\")", "apply Some(\"second\")", "apply None", "stop Remove 5s"];
    assert_eq!(plugin.heard(), expected);
}

#[tokio::test]
async fn the_whole_conversation_works_over_a_unix_socket() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let address = socket_in(&directory);
    check_conversation(&address).await;
    let Address::Unix(path) = address else { panic!("{address} is not a unix socket") };
    assert!(!path.exists(), "the socket's file goes with the server");
}

#[tokio::test]
async fn the_whole_conversation_works_over_loopback_tcp() {
    check_conversation(&Address::parse("tcp", "127.0.0.1:0").expect("loopback")).await;
}

/// Google's agent passes `[::]:PORT` to every plugin.
#[tokio::test]
async fn an_unspecified_address_is_served_on_the_loopback_addresses_and_on_no_other() {
    let served = Served::at(&Address::parse("tcp", "[::]:0").expect("loopback"));
    let addresses = match served.address {
        Address::Loopback { port } => vec![format!("[::1]:{port}"), format!("127.0.0.1:{port}")],
        // A machine without IPv6.
        Address::Tcp(only) => vec![only.to_string()],
        Address::Unix(_) => panic!("{} is not a port", served.address),
    };
    let mut clients = Vec::new();
    for address in &addresses {
        let address = Address::parse("tcp", address).expect("loopback");
        clients.push(Client::connect(&address).await);
    }
    clients[0].start(Path::new("/state"), None).await.expect("started");
    for client in &mut clients {
        assert_eq!(client.ask("which one").await.expect("answered").code, 7);
    }
    if let Some(ip) = outward_address() {
        let port = addresses[0].rsplit(':').next().and_then(|port| port.parse().ok());
        let outward = std::net::SocketAddr::new(ip, port.expect("a port"));
        let refused = tokio::net::TcpStream::connect(outward).await;
        assert!(refused.is_err(), "{outward} answers");
    }
    clients[0].stop(false, SECOND).await.expect("stopped");
    served.ends().await.expect("a good end");
}

/// The address of this machine on its way to others, if there is one. No packet is sent.
fn outward_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}

#[tokio::test]
async fn a_predecessors_stale_socket_is_replaced() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let address = socket_in(&directory);
    drop(std::os::unix::net::UnixListener::bind(directory.path().join("plugin.sock")));
    check_conversation(&address).await;
}

#[tokio::test]
async fn errors_of_the_plugin_become_the_codes_the_agent_acts_on() {
    let served = Served::on_tcp();
    let mut client = served.client().await;
    let error = client.start(Path::new("/"), Some("fail")).await.expect_err("refused");
    assert_eq!((error.code(), error.message()), (Code::Internal, "cannot begin: no such licence"));

    client.start(Path::new("/"), None).await.expect("a failed start may be tried again");
    let error = client.apply(Some("unsupported")).await.expect_err("unsupported");
    assert_eq!(error.code(), Code::Unimplemented);
    let error = client.apply(Some("bad")).await.expect_err("refused");
    assert_eq!(
        (error.code(), error.message()),
        (Code::InvalidArgument, "bad configuration: no port")
    );
}

#[tokio::test]
async fn a_plugin_that_only_starts_is_healthy_and_asks_for_a_restart_on_apply() {
    struct Minimal;
    #[async_trait]
    impl Plugin for Minimal {
        async fn start(&self, _context: StartContext) -> Result<(), PluginError> {
            Ok(())
        }
    }
    let address = Address::parse("tcp", "127.0.0.1:0").expect("loopback");
    let server = Server::bind(Minimal, &address).expect("bound");
    let mut client = {
        let address = server.address().clone();
        tokio::spawn(server.run());
        Client::connect(&address).await
    };
    client.start(Path::new("/"), None).await.expect("started");
    assert_eq!(client.health().await.expect("healthy").code, 0);
    assert_eq!(client.ask("why").await.expect("answered").code, 1);
    let error = client.apply(Some("x")).await.expect_err("unsupported");
    assert_eq!(error.code(), Code::Unimplemented);
    client.stop(false, SECOND).await.expect("stopped");
}

#[tokio::test]
async fn a_panic_fails_its_call_and_the_plugin_lives_on() {
    let served = Served::on_tcp();
    let mut client = served.client().await;
    let error = client.start(Path::new("/"), Some("panic")).await.expect_err("panicked");
    assert_eq!(error.code(), Code::Internal);
    assert_eq!(error.message(), "start panicked: start gone wrong");
    client.start(Path::new("/"), None).await.expect("started");
    let error = client.apply(Some("panic")).await.expect_err("panicked");
    assert_eq!(error.message(), "apply panicked: apply gone wrong");
    let error = client.ask("panic").await.expect_err("panicked");
    assert_eq!(error.message(), "status panicked: status gone wrong");
    assert_eq!(client.health().await.expect("still alive").code, 0);
    client.stop(false, SECOND).await.expect("stopped");
    served.ends().await.expect("a good end");
}

#[tokio::test]
async fn calls_in_flight_are_answered_before_the_end() {
    let served = Served::on_tcp();
    let mut client = served.client().await;
    let mut other = served.client().await;
    let slow = tokio::spawn(async move { other.ask("slow").await });
    let heard = || async { served.plugin.heard().contains(&"slow".to_owned()).then_some(()) };
    eventually("the slow question arrives", heard).await;
    client.stop(false, 5 * SECOND).await.expect("stopped");
    let plugin = served.plugin.clone();
    served.ends().await.expect("a good end");
    assert!(plugin.heard().contains(&"slow is done".to_owned()), "the end waits for the answer");
    let answer = slow.await.expect("no panic").expect("answered though stopping");
    assert_eq!(answer.results, ["done"]);
}

#[tokio::test]
async fn a_call_that_hangs_delays_the_end_by_two_seconds_at_most() {
    let served = Served::on_tcp();
    let mut client = served.client().await;
    let mut other = served.client().await;
    let hanging = tokio::spawn(async move { other.ask("hang").await });
    let heard = || async { served.plugin.heard().contains(&"hanging".to_owned()).then_some(()) };
    eventually("the hanging question arrives", heard).await;
    let before = Instant::now();
    client.stop(false, 30 * SECOND).await.expect("stopped");
    served.ends().await.expect("a good end");
    assert!(before.elapsed() < 10 * SECOND, "took {:?}", before.elapsed());
    hanging.abort();
}

#[tokio::test]
async fn a_stop_that_hangs_is_answered_at_its_deadline_and_ends_the_server() {
    let served = Served::on_tcp();
    let mut client = served.client().await;
    let error = client.stop(false, Duration::from_millis(50)).await.expect_err("it hangs");
    assert_eq!(error.code(), Code::DeadlineExceeded);
    served.ends().await.expect("the caller got the error; nothing else is wrong");
}

#[tokio::test]
async fn the_end_signal_stops_without_cleanup() {
    let served = Served::on_tcp();
    let plugin = served.plugin.clone();
    let Served { end, server, .. } = served;
    end.send(()).expect("the server waits for it");
    let ended = tokio::time::timeout(PATIENCE, server).await.expect("the server ends");
    ended.expect("no panic").expect("a good end");
    assert_eq!(plugin.heard(), ["stop Keep 10s"]);
    assert!(plugin.heard()[0].contains(&format!("{:?}", Cleanup::Keep)));
}

#[tokio::test]
async fn a_failed_stop_after_a_signal_is_an_error_of_the_server() {
    struct Clinging;
    #[async_trait]
    impl Plugin for Clinging {
        async fn start(&self, _context: StartContext) -> Result<(), PluginError> {
            Ok(())
        }
        async fn stop(&self, _context: StopContext) -> Result<(), PluginError> {
            Err("still holding on".into())
        }
    }
    let address = Address::parse("tcp", "127.0.0.1:0").expect("loopback");
    let server = Server::bind(Clinging, &address).expect("bound");
    let error = server.run_until(async {}).await.expect_err("stop failed");
    assert!(matches!(error, ServeError::Stop(_)), "{error:?}");
}

#[tokio::test]
async fn an_error_of_serve_with_is_in_the_error_log() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let log = directory.path().join("plugin.log");
    let address = Address::unix("/nonexistent/plugin.sock").expect("a short path");
    let arguments = Arguments::new(address).with_error_log(&log);
    let error = serve_with(Scripted::default(), arguments).await.expect_err("no such directory");
    assert!(matches!(error, ServeError::Bind(_)), "{error:?}");
    let text = std::fs::read_to_string(log).expect("there is an error log");
    assert!(
        text.contains("cannot listen on unix:/nonexistent/plugin.sock: No such file"),
        "{text}"
    );
}
