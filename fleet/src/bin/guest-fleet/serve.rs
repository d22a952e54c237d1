//! The verb `serve`: opens the ledger, starts everything on it, stops on a signal.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::ledger::Opened;
use anyhow::Context;
use clap::Args;
use guest_fleet::artifacts::Digest;
use guest_fleet::artifacts::listener::{ArtifactListener, Delivery, Limits, ListenerOptions};
use guest_fleet::artifacts::named::Named;
use guest_fleet::artifacts::place::Place;
use guest_fleet::artifacts::store::Bounds;
use guest_fleet::artifacts::tls::PairFiles;
use guest_fleet::configuration::Configuration;
use guest_fleet::enroll::listener::{Admits, secure};
use guest_fleet::enroll::{Authorities, Enrolment, Revocations, Server, Settings, server};
use guest_fleet::gateway::admission::{Mutual, Watched};
use guest_fleet::gateway::orders::{OrderSettings, Orders, UnknownAgents};
use guest_fleet::ledger::{Bucket, SharedLedger};
use guest_fleet::{ControlPlane, Listen, ServerTls};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How often the releases are looked at where nothing reports a change.
const LOOK: Duration = Duration::from_secs(5);

/// The options of `serve`.
#[derive(Args)]
pub(crate) struct Options {
    /// Where agents connect: `unix:/path` or `ADDRESS:PORT`; may be given several times.
    #[arg(long, required = true, value_name = "ADDRESS")]
    listen: Vec<Listen>,
    /// Directory of the fleet's authority (`guest-fleet ca init`): agents have to be enrolled, and
    /// the TCP addresses get their certificates from it.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["tls_cert", "token_file"])]
    ca: Option<PathBuf>,
    /// DNS name or IP address under which agents reach this machine; may be given several times.
    #[arg(long = "name", value_name = "NAME", default_value = "127.0.0.1", requires = "ca")]
    names: Vec<String>,
    /// Where machines enrol, over HTTPS.
    #[arg(long, value_name = "ADDRESS", requires = "ca")]
    enroll_listen: Option<SocketAddr>,
    /// the address of the gateway in answers to machines that enrol, such as `https://fleet.example:7443`.
    #[arg(long, value_name = "URL", requires = "enroll_listen")]
    gateway_url: Option<String>,
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
    /// Serve artifacts from here: a directory or `s3://bucket/prefix`.
    #[arg(long, value_name = "PLACE")]
    artifacts: Option<Place>,
    /// Address of the artifact listener; without a certificate it has to be one of this machine.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", requires = "artifacts")]
    artifacts_listen: Listen,
    /// Certificate chain of the artifact listener, PEM; read again when it changes.
    #[arg(long, value_name = "FILE", requires_all = ["artifacts", "artifacts_key"])]
    artifacts_cert: Option<PathBuf>,
    /// Private key of that certificate, PEM.
    #[arg(long, value_name = "FILE", requires = "artifacts_cert")]
    artifacts_key: Option<PathBuf>,
    /// Where agents fetch artifacts, where that is not the listener itself.
    #[arg(long, value_name = "URL")]
    artifacts_url: Option<String>,
    /// File with the tokens of those who may upload artifacts, one per line.
    #[arg(long, value_name = "FILE", requires = "artifacts")]
    upload_token_file: Option<PathBuf>,
}

/// Serves until SIGTERM or SIGINT, or until the ledger fails.
pub(crate) async fn run(options: Options, opened: Opened) -> anyhow::Result<()> {
    let ledger = opened.shared();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let ending = CancellationToken::new();
    let mut tasks = JoinSet::new();

    let artifacts = start_artifacts(&options, &ledger, &ending, &mut tasks).await?;
    let url = options.artifacts_url.clone();
    let orders = Orders::new(
        ledger.clone(),
        OrderSettings {
            artifacts: url.or_else(|| artifacts.as_ref().map(|it| it.endpoint().to_owned())),
            unknown_agents: match options.ca {
                Some(_) => UnknownAgents::Refused,
                None => UnknownAgents::TakenIn,
            },
            ..OrderSettings::default()
        },
    );
    tasks.spawn(orders.clone().run());
    let authorities = match &options.ca {
        Some(directory) => Some(Authorities::open(directory).await?),
        None => None,
    };
    let control_plane =
        start_gateway(&options, &ledger, &orders, authorities.as_ref(), &ending, &mut tasks)
            .await?;
    let enrolment = start_enrolment(&options, &ledger, authorities).await?;

    for endpoint in control_plane.endpoints() {
        say(format_args!("listening {endpoint}"));
    }
    if let Some(artifacts) = &artifacts {
        say(format_args!("artifacts {}", artifacts.endpoint()));
    }
    if let Some(enrolment) = &enrolment {
        say(format_args!("enrolment https://{}", enrolment.address()));
    }

    tell_manager(&NotifyState::Ready);
    let ended = tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        () = opened.failed() => Err(anyhow::anyhow!(
            "the ledger `{opened}` failed, and what it holds may not be durable: see the log, then start again"
        )),
    };
    say(format_args!("stopping"));
    tell_manager(&NotifyState::Stopping);
    orders.stop();
    ending.cancel();
    control_plane.shutdown().await;
    if let Some(enrolment) = enrolment {
        enrolment.shutdown().await;
    }
    if let Some(artifacts) = artifacts {
        artifacts.shutdown().await;
    }
    // The gateway takes its heartbeat back.
    drop(tokio::time::timeout(LOOK, tasks.join_all()).await);
    opened.close().await;
    ended
}

async fn start_gateway(
    options: &Options,
    ledger: &SharedLedger,
    orders: &Arc<Orders>,
    authorities: Option<&Authorities>,
    ending: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<ControlPlane> {
    let mut builder = ControlPlane::builder().announces_fleet(true).desk(orders.clone());
    for address in &options.listen {
        builder = builder.listen(address.clone());
    }
    if let Some(authorities) = authorities {
        let secured =
            secure(authorities, options.names.clone(), Admits::Agents, &[b"h2"], ending.clone())?;
        let revocations = Revocations::default();
        tasks.spawn(revocations.clone().follow(ledger.clone(), ending.clone()));
        let mutual = Arc::new(Mutual::new(authorities.current().fleet().clone()));
        builder = builder.secured(secured).admission(Arc::new(Watched::new(mutual, revocations)));
    }
    if let (Some(certificate), Some(key)) = (&options.tls_cert, &options.tls_key) {
        builder = builder.tls(ServerTls {
            certificate: read_text(certificate)?,
            key: read_text(key)?,
            client_ca: options.tls_client_ca.as_deref().map(read_text).transpose()?,
        });
    }
    if let Some(path) = &options.token_file {
        builder = builder.bearer_token(read_text(path)?.trim());
    }
    Ok(builder.start().await?)
}

async fn start_enrolment(
    options: &Options,
    ledger: &SharedLedger,
    authorities: Option<Authorities>,
) -> anyhow::Result<Option<Server>> {
    let (Some(address), Some(authorities)) = (options.enroll_listen, authorities) else {
        return Ok(None);
    };
    let settings = Settings { gateway: options.gateway_url.clone(), ..Settings::default() };
    let enrolment = Enrolment::new(authorities, ledger.clone(), settings);
    let names = options.names.clone();
    Ok(Some(Server::start(address, names, enrolment, server::Limits::default()).await?))
}

async fn start_artifacts(
    options: &Options,
    ledger: &SharedLedger,
    ending: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<Option<ArtifactListener>> {
    let Some(place) = &options.artifacts else { return Ok(None) };
    let named = Arc::new(Mutex::new(Arc::new(Named::default())));
    tasks.spawn(follow_releases(ledger.clone(), named.clone(), ending.clone()));
    let known = move |plugin: &str, digest: &Digest| {
        let named = named.lock().unwrap_or_else(PoisonError::into_inner).clone();
        named.releases(digest).any(|release| release.plugin == plugin)
    };
    let tls = match (&options.artifacts_cert, &options.artifacts_key) {
        (Some(certificate), Some(key)) => {
            Some(PairFiles { certificate: certificate.clone(), key: key.clone() })
        }
        _ => None,
    };
    let listener = ArtifactListener::start(ListenerOptions {
        listen: options.artifacts_listen.clone(),
        tls,
        store: place.open(Bounds::default()).await?,
        known: Arc::new(known),
        upload_tokens: options.upload_token_file.clone(),
        delivery: Delivery::default(),
        limits: Limits::default(),
    })
    .await?;
    Ok(Some(listener))
}

/// Keeps up with which artifacts the releases name.
async fn follow_releases(
    ledger: SharedLedger,
    named: Arc<Mutex<Arc<Named>>>,
    ending: CancellationToken,
) {
    let mut changes = ledger.watch(Bucket::Configuration);
    let mut configuration = Configuration::default();
    loop {
        let after = configuration.through();
        match configuration.catch_up(&*ledger, after).await {
            Ok(true) => {
                let found = Arc::new(Named::of(configuration.view()));
                *named.lock().unwrap_or_else(PoisonError::into_inner) = found;
            }
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "the releases were not read"),
        }
        tokio::select! {
            () = ending.cancelled() => return,
            _ = changes.changed() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

fn read_text(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("failed to read `{}`", path.display()))
}

/// Tells systemd, where it asks for it (`Type=notify`). A manager that cannot be reached stops nothing.
fn tell_manager(state: &NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(std::slice::from_ref(state)) {
        tracing::warn!(%error, "the service manager cannot be reached");
    }
}

/// Prints a line to stdout. A closed stdout does not stop the server.
fn say(line: std::fmt::Arguments<'_>) {
    let mut stdout = std::io::stdout().lock();
    drop(writeln!(stdout, "{line}").and_then(|()| stdout.flush()));
}
