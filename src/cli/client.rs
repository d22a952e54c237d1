//! The connection to the running agent, and the questions more than one verb asks.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use guest_agent_actors::control_plane::TRACEPARENT;
use guest_agent_proto::local::local_agent_client::LocalAgentClient;
use guest_agent_proto::local::{GetStatusRequest, GetStatusResponse};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

use super::failure::{Exit, Failure};
use crate::config::Environment;

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

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
        Ok(Ok(_probe)) => {}
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
    }

    #[test]
    fn far_names_are_not_suggested() {
        let failure = unknown_plugin("metrics", ["zzz"].into_iter());
        assert_eq!(failure.hint.as_deref(), Some("`guest-agent status` lists all plugins"));
    }
}
