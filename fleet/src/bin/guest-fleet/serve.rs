//! The verb `serve`: starts the servers, prints events, stops on a signal.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use guest_fleet::store::{FileStore, Store, StoreBounds};
use guest_fleet::{AgentEvent, ArtifactServer, ControlPlane, Listen, ServerTls};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::broadcast::error::RecvError;

use crate::desired::{self, Desired};

/// The options of `serve`.
#[derive(Args)]
pub(crate) struct Options {
    /// Where agents connect: `unix:/path` or `ADDRESS:PORT`; may be given several times.
    #[arg(long, required = true, value_name = "ADDRESS")]
    listen: Vec<Listen>,
    /// TLS certificate chain for the TCP addresses, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Authority whose certificates agents must show, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// File with the bearer token that agents must show.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Keep state in this directory; without it state is lost at the end.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Send every agent the plugins in this directory: one JSON ConfigurePlugin per file.
    #[arg(long, value_name = "DIR")]
    desired: Option<PathBuf>,
    /// Serve the files in this directory over HTTP.
    #[arg(long, value_name = "DIR")]
    artifacts: Option<PathBuf>,
    /// Loopback address of the artifact server.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", requires = "artifacts")]
    artifacts_listen: SocketAddr,
}

/// Serves until SIGTERM or SIGINT.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;

    let mut desired = read_desired(&options)?;
    let artifacts = start_artifacts(&options).await?;
    let control_plane = start_control_plane(&options).await?;
    for endpoint in control_plane.endpoints() {
        say(format_args!("listening {endpoint}"));
    }
    let events = tokio::spawn(print_events(control_plane.clone()));

    let mut changes = control_plane.connection_changes();
    let mut greeted = HashSet::new();
    loop {
        greet_new_agents(&control_plane, &desired, &mut greeted).await;
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => {
                match read_desired(&options) {
                    Ok(new) => {
                        desired = new;
                        send_to_all(&control_plane, &desired).await;
                    }
                    Err(error) => eprintln!("the desired state was not read again: {error:#}"),
                }
            }
            changed = changes.changed() => changed.context("the control plane ended")?,
        }
    }
    say(format_args!("stopping"));
    control_plane.shutdown().await;
    events.abort();
    if let Some(artifacts) = artifacts {
        artifacts.shutdown().await;
    }
    Ok(())
}

async fn start_control_plane(options: &Options) -> anyhow::Result<ControlPlane> {
    let mut builder = ControlPlane::builder();
    for address in &options.listen {
        builder = builder.listen(address.clone());
    }
    if let (Some(certificate), Some(key)) = (&options.tls_cert, &options.tls_key) {
        builder = builder.tls(ServerTls {
            certificate: read_text(certificate)?,
            key: read_text(key)?,
            client_ca: options.tls_client_ca.as_ref().map(read_text).transpose()?,
        });
    }
    if let Some(path) = &options.token_file {
        builder = builder.bearer_token(read_text(path)?.trim());
    }
    if let Some(directory) = &options.state {
        let store = FileStore::open(directory, StoreBounds::default())
            .with_context(|| format!("failed to open the state in `{}`", directory.display()))?;
        for path in store.set_aside() {
            eprintln!("a damaged file was set aside as `{}`", path.display());
        }
        let store: Arc<dyn Store> = Arc::new(store);
        builder = builder.store(store);
    }
    Ok(builder.start().await?)
}

async fn start_artifacts(options: &Options) -> anyhow::Result<Option<ArtifactServer>> {
    let Some(directory) = &options.artifacts else { return Ok(None) };
    let server = ArtifactServer::start(options.artifacts_listen).await?;
    server.publish_directory(directory);
    say(format_args!("artifacts {}", server.url("")));
    Ok(Some(server))
}

fn read_desired(options: &Options) -> anyhow::Result<Desired> {
    options.desired.as_deref().map_or_else(|| Ok(Desired::new()), desired::read)
}

fn read_text(path: &PathBuf) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("failed to read `{}`", path.display()))
}

/// Prints which streams began and ended, and sends newly connected agents the entries that they
/// lack.
async fn greet_new_agents(
    control_plane: &ControlPlane,
    desired: &Desired,
    greeted: &mut HashSet<(u64, Arc<str>)>,
) {
    let connected: HashSet<_> =
        control_plane.agents().into_iter().map(|agent| (agent.stream, agent.resource)).collect();
    for (_, resource) in greeted.difference(&connected) {
        say(format_args!("disconnected {}", resource.escape_debug()));
    }
    for (_, resource) in connected.difference(greeted) {
        say(format_args!("connected {}", resource.escape_debug()));
        send_missing(control_plane, resource, desired).await;
    }
    *greeted = connected;
}

/// Sends new entries to every known agent, connected or not.
async fn send_to_all(control_plane: &ControlPlane, desired: &Desired) {
    match control_plane.store().resources().await {
        Ok(resources) => {
            let connected = control_plane.agents().into_iter().map(|a| a.resource.to_string());
            let all: HashSet<String> = resources.into_iter().chain(connected).collect();
            for resource in all {
                send_missing(control_plane, &resource, desired).await;
            }
        }
        Err(error) => {
            eprintln!("{:#}", anyhow::Error::from(error).context("the agents cannot be listed"))
        }
    }
}

async fn send_missing(control_plane: &ControlPlane, resource: &str, desired: &Desired) {
    let shown = resource.escape_debug();
    match desired::bring_up_to_date(control_plane, resource, desired).await {
        Ok(0) => {}
        Ok(count) => say(format_args!("configured {shown} plugins={count}")),
        Err(error) => eprintln!("{shown} was not configured: {error:#}"),
    }
}

async fn print_events(control_plane: ControlPlane) {
    let mut events = control_plane.subscribe_events();
    loop {
        match events.recv().await {
            Ok(event) => say(format_args!("{}", line(&event))),
            Err(RecvError::Lagged(missed)) => say(format_args!("missed events={missed}")),
            Err(RecvError::Closed) => return,
        }
    }
}

/// The event as one line; control characters in an agent's texts are escaped.
fn line(event: &AgentEvent) -> String {
    let at = event.event.event_timestamp.map(|at| at.to_string()).unwrap_or_default();
    format!(
        "event {} {} plugin={:?} revision={:?} at={at} details={:?}",
        event.resource.escape_debug(),
        event.kind().as_str_name(),
        event.plugin(),
        event.revision(),
        event.details(),
    )
}

/// Prints a line to stdout. A closed stdout does not stop the server.
fn say(line: std::fmt::Arguments<'_>) {
    let mut stdout = std::io::stdout().lock();
    drop(writeln!(stdout, "{line}").and_then(|()| stdout.flush()));
}
