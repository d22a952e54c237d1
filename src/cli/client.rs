//! The connection to the running agent, and the questions more than one verb asks.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use guest_agent_actors::control_plane::TRACEPARENT;
use guest_agent_proto::local::local_agent_client::LocalAgentClient;
use guest_agent_proto::local::{GetStatusRequest, GetStatusResponse};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

use super::failure::{Exit, Failure};
use crate::config::Environment;
use crate::process::silent::Silent;

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the agent may take for its first words, after which the kernel is asked about it. They come
/// from its connection alone, which no work of it holds up.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the agent may take for them where its state may end by itself.
const GREETING_PATIENCE: Duration = Duration::from_secs(8);

/// How long the kernel may take to say what it knows of a process.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);

/// The first words of a client in HTTP/2, and its settings, which are those by default (RFC 9113, 3.4).
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The length of the head of a frame.
const FRAME_HEAD: usize = 9;

/// The type of a frame with settings, in the fourth byte of its head.
const SETTINGS: u8 = 4;

/// How long the agent may take to begin an answer. Longer than what it allows a plugin.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a connection may be silent before the client sends a keepalive ping, and how long the
/// agent has to answer it. Without pings, following an agent that hangs would never end.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// A connection to the agent.
pub(super) type Client = LocalAgentClient<Channel>;

/// Connects to the agent's socket.
pub(super) async fn connect(socket: &Path) -> Result<Client, Failure> {
    Ok(LocalAgentClient::new(channel(socket).await?))
}

/// Connects to the agent's socket, for a client of any of its services.
pub(super) async fn channel(socket: &Path) -> Result<Channel, Failure> {
    // The first connection is made here, where the operating system's reason can still be seen.
    match tokio::time::timeout(CONNECT_TIMEOUT, UnixStream::connect(socket)).await {
        Ok(Ok(probe)) => greet(probe, socket).await?,
        Ok(Err(error)) => return Err(unreachable_because(socket, &error)),
        Err(_elapsed) => {
            return Err(Failure::new(
                Exit::Unreachable,
                format_args!("the agent did not accept a connection on {}", socket.display()),
            ));
        }
    }
    let path: PathBuf = socket.to_owned();
    let connector = tower::service_fn(move |_: http::Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://agent")
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(ANSWER_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .connect_with_connector(connector)
        .await
        .map_err(|error| {
            let what =
                format_args!("failed to talk to the agent on {}", socket.display()).to_string();
            Failure::new(Exit::Unreachable, what).because(&error)
        })
}

/// Has the agent say its first words, before anything is asked of it: whether a question reached an
/// agent that hangs could not be known.
async fn greet(mut probe: UnixStream, socket: &Path) -> Result<(), Failure> {
    let pid = probe.peer_cred().ok().and_then(|peer| u32::try_from(peer.pid()?).ok());
    let greeting = async {
        probe.write_all(GREETING).await?;
        let mut head = [0; FRAME_HEAD];
        probe.read_exact(&mut head).await.map(|_| head[3] == SETTINGS)
    };
    tokio::pin!(greeting);
    let mut known = None;
    let mut answer = tokio::time::timeout(GREETING_TIMEOUT, &mut greeting).await;
    if answer.is_err() {
        known = look_at(pid).await;
        if !known.as_ref().is_some_and(Silent::stays_silent) {
            answer = tokio::time::timeout(GREETING_PATIENCE, greeting).await;
            // Its state of eight seconds ago says little.
            known = if answer.is_err() { look_at(pid).await } else { None };
        }
    }
    match answer {
        Ok(Ok(true)) => Ok(()),
        // It ends the connection. Why, it says to the first question.
        Ok(Err(_)) => Ok(()),
        Ok(Ok(false)) => Err(Failure::new(
            Exit::Unreachable,
            format_args!("{} is not the socket of an agent", socket.display()),
        )
        .hint("name the agent's socket with --socket")),
        Err(_) => Err(silent(socket, known.as_ref())),
    }
}

/// A process as the kernel shows it; `None` where the kernel says nothing, or not soon.
async fn look_at(pid: Option<u32>) -> Option<Silent> {
    let (found, looked) = tokio::sync::oneshot::channel();
    let pid = pid?;
    // A thread that the kernel keeps must not keep this program from ending.
    std::thread::spawn(move || drop(found.send(Silent::look_at(pid))));
    tokio::time::timeout(LOOK_TIMEOUT, looked).await.ok()?.ok()?
}

/// The failure of an agent that does not answer, with what is known without it.
fn silent(socket: &Path, known: Option<&Silent>) -> Failure {
    let Some(known) = known else {
        return Failure::new(
            Exit::Unreachable,
            format_args!("the agent does not answer on {}", socket.display()),
        )
        .hint("see `systemctl status guest-agent`; a restart of the service harms no plugin");
    };
    let failure = Failure::new(
        Exit::Unreachable,
        format_args!("the agent does not answer: {}", known.what()),
    );
    let failure = known.facts().into_iter().fold(failure, Failure::cause);
    Failure { silent: Some(known.pid), ..failure.hint(known.fix()) }
}

/// A request that is part of the trace that the variable `TRACEPARENT` names, if it is set: a
/// pipeline that calls this program finds the order in its own trace.
pub(super) fn traced<T>(message: T, environment: &dyn Environment) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    if let Some(parent) = environment.variable("TRACEPARENT").and_then(|text| text.parse().ok()) {
        request.metadata_mut().insert(TRACEPARENT, parent);
    }
    request
}

fn unreachable_because(socket: &Path, error: &std::io::Error) -> Failure {
    let path = socket.display();
    let (reason, hint) = match error.kind() {
        ErrorKind::NotFound => (
            format!("the agent is not reachable: the socket {path} does not exist"),
            "is the service running? see `systemctl status guest-agent`, or name its socket with \
             --socket",
        ),
        ErrorKind::ConnectionRefused => (
            format!("the agent is not reachable: nothing listens on {path}"),
            "the service has ended without removing its socket; see `systemctl status guest-agent`",
        ),
        ErrorKind::PermissionDenied => {
            let what = format!("the agent is not reachable: no permission to use {path}");
            (what, "run as root, or as a member of agent.socket_group or agent.admin_group")
        }
        // Nobody takes the connections that wait.
        ErrorKind::WouldBlock => (
            format!("the agent does not answer on {path}: its queue of connections is full"),
            "look at its process: `ps -o pid,stat,etime,args -C guest-agent`; state T: `kill -CONT`",
        ),
        _ => (
            format!("the agent is not reachable on {path}"),
            "see `systemctl status guest-agent`, or name another socket with --socket",
        ),
    };
    Failure::new(Exit::Unreachable, reason).because(error).hint(hint).kind(error.kind())
}

/// The status of everything.
pub(super) async fn status(client: &mut Client) -> Result<GetStatusResponse, Failure> {
    Ok(client.get_status(GetStatusRequest::default()).await?.into_inner())
}

/// Whether a stream has an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// It ends, and each message must come soon.
    Soon,
    /// It lasts until the agent ends.
    Forever,
}

/// The next message of a stream; `None` at its end.
pub(super) async fn next<T>(
    stream: &mut tonic::Streaming<T>,
    patience: Patience,
) -> Result<Option<T>, Failure> {
    match patience {
        Patience::Forever => match stream.message().await? {
            Some(message) => Ok(Some(message)),
            None => Err(Failure::new(Exit::Unreachable, "the agent ended while it was followed")),
        },
        Patience::Soon => match tokio::time::timeout(ANSWER_TIMEOUT, stream.message()).await {
            Ok(message) => Ok(message?),
            Err(_elapsed) => {
                Err(Failure::new(Exit::TimedOut, "the agent stopped in the middle of its answer"))
            }
        },
    }
}

/// The known name that is most like this one.
pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known.map(|known| (strsim::jaro_winkler(name, known), known));
    let nearest = scored.max_by(|a, b| a.0.total_cmp(&b.0));
    nearest.filter(|(score, _)| *score > 0.7).map(|(_, known)| known)
}

/// The failure for an unknown plugin, with the known name that is most like it.
pub(super) fn unknown_plugin<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Failure {
    let failure = Failure::failed(format_args!("no plugin has the name {name}"));
    match nearest(name, known) {
        Some(known) => failure.hint(format_args!("did you mean {known}?")),
        None => failure.hint("`guest-agent status` lists all plugins"),
    }
}

/// Turns an error about one plugin into a failure; for an unknown plugin, suggests a known one.
pub(super) async fn about(client: &mut Client, name: &str, error: tonic::Status) -> Failure {
    if error.code() != tonic::Code::NotFound {
        return error.into();
    }
    match status(client).await {
        Ok(all) => unknown_plugin(name, all.plugins.iter().map(|plugin| plugin.name.as_str())),
        Err(_the_first_error_says_more) => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_a_socket_is_out_of_reach_has_its_advice() {
        let advice = |kind: ErrorKind| {
            let failure = unreachable_because(Path::new("/x"), &kind.into());
            assert_eq!(failure.exit, Exit::Unreachable);
            failure.hint.expect("advice")
        };
        assert!(advice(ErrorKind::NotFound).contains("is the service running?"));
        assert!(advice(ErrorKind::ConnectionRefused).contains("systemctl status guest-agent"));
        assert!(advice(ErrorKind::PermissionDenied).starts_with("run as root, or as a member"));
        assert!(advice(ErrorKind::TimedOut).contains("--socket"));
        assert!(advice(ErrorKind::WouldBlock).contains("kill -CONT"));
    }

    #[test]
    fn far_names_are_not_suggested() {
        let failure = unknown_plugin("metrics", ["zzz"].into_iter());
        assert_eq!(failure.hint.as_deref(), Some("`guest-agent status` lists all plugins"));
    }
}
