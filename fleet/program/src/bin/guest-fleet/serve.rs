//! The verb `serve`: opens the ledger, starts everything on it, stops on a signal.

mod admission;
mod drain;
mod ends;
mod files;
mod folding;
mod limits;
mod observe;
mod policies;
mod webhooks;

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use guest_agent_serve_kit::listen::Listen;
use guest_fleet_core::drift::APART;
use guest_fleet_core::journal::REPEAT_AFTER;
use guest_fleet_core::presence::OFFLINE_AFTER;
use guest_fleet_ledger::{Bucket, SharedLedger};
use guest_fleet_server::admission::Counted;
use guest_fleet_server::artifacts::Digest;
use guest_fleet_server::artifacts::listener::{
    ArtifactListener, Delivery, Limits, ListenerOptions,
};
use guest_fleet_server::artifacts::named::Named;
use guest_fleet_server::artifacts::place::Place;
use guest_fleet_server::artifacts::store::Bounds;
use guest_fleet_server::configuration::Configuration;
use guest_fleet_server::enroll::ends::Ends;
use guest_fleet_server::enroll::listener::secure_and_tell;
use guest_fleet_server::enroll::{Authorities, Enrolment, Revocations, Server, Settings, server};
use guest_fleet_server::gateways::housekeeping;
use guest_fleet_server::net::tls::PairFiles;
use guest_fleet_server::notices;
use guest_fleet_server::observe::artifacts::ObservedStore;
use guest_fleet_server::observe::health::Stage;
use guest_fleet_server::orders::{OrderSettings, Orders};
use guest_fleet_server::secrets::Secrets;
use guest_fleet_server::telemetry::figures;
use guest_fleet_server::telemetry::traces::Prepared;
use guest_fleet_sessions::Gateway;
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::ledger::Opened;
use observe::{Observed, Shown};

/// How often the releases are looked at where nothing reports a change.
const LOOK: Duration = Duration::from_secs(5);

/// The options of `serve`.
#[derive(Args)]
pub(crate) struct Options {
    /// Where agents connect: `unix:/path` or `ADDRESS:PORT`; may be given several times.
    #[arg(long, required = true, value_name = "ADDRESS")]
    listen: Vec<Listen>,
    #[command(flatten)]
    admission: admission::AdmissionOptions,
    /// DNS name or IP address under which agents reach this machine; may be given several times.
    #[arg(long = "name", value_name = "NAME", default_value = "127.0.0.1", requires = "ca")]
    names: Vec<String>,
    /// Where machines enrol, over HTTPS.
    #[arg(long, value_name = "ADDRESS", requires = "ca")]
    enroll_listen: Option<SocketAddr>,
    /// the address of the gateway in answers to machines that enrol, such as `https://fleet.example:7443`.
    #[arg(long, value_name = "URL", requires = "enroll_listen")]
    gateway_url: Option<String>,
    /// For how many seconds an order may still arrive at an agent that sends no report. So long after
    /// it came back, it is given again an order that its list does not show.
    #[arg(long, value_name = "SECONDS", default_value_t = REPEAT_AFTER, value_parser = clap::value_parser!(u64).range(1..=3600))]
    repeat_after: u64,
    /// How many seconds apart the two looks at an agent are that tell that it lacks what an order brought.
    #[arg(long, value_name = "SECONDS", default_value_t = APART, value_parser = clap::value_parser!(u64).range(1..=3600))]
    drift_apart: u64,
    /// For how many seconds an agent may have no stream before it is called offline. Rollouts and orders have
    /// deadlines of their own. The server that keeps the index decides: give all servers of a ledger the same.
    #[arg(long, value_name = "SECONDS", default_value_t = OFFLINE_AFTER, value_parser = clap::value_parser!(u64).range(10..=86_400))]
    offline_after: u64,
    /// Directory with the secrets that configurations refer to, a file for each version, named as the
    /// reference: `NAME@2`. A file that changes after its first order is not ordered.
    #[arg(long, value_name = "DIR")]
    secrets: Option<PathBuf>,
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
    #[command(flatten)]
    limits: limits::LimitOptions,
    #[command(flatten)]
    drain: drain::DrainOptions,
    #[command(flatten)]
    observe: observe::Options,
    #[command(flatten)]
    webhooks: webhooks::Options,
    #[command(flatten)]
    policies: policies::Options,
    #[command(flatten)]
    pub(crate) log: crate::log::Options,
}

/// Serves until SIGTERM or SIGINT, or until the ledger fails.
pub(crate) async fn run(options: Options, opened: Opened) -> anyhow::Result<()> {
    let webhooks = options.webhooks.read()?;
    let policies = options.policies.read()?;
    let secrets = match &options.secrets {
        Some(directory) => Secrets::open(directory).await?,
        None => Secrets::default(),
    };
    let observed = Observed::new(opened.shared(), opened.engine());
    let ledger = observed.ledger.clone();
    if let Some(policies) = &policies {
        let published = policies::publish(&*ledger, policies).await;
        published.context("the policies were not written into the ledger")?;
    }
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let ending = CancellationToken::new();
    let mut tasks = JoinSet::new();

    let artifacts = start_artifacts(&options, &observed, &ending, &mut tasks).await?;
    let url = options.artifacts_url.clone();
    let traces = options.observe.traces();
    let spans = traces.as_ref().map(Prepared::spans).unwrap_or_default();
    let orders = Orders::new(
        ledger.clone(),
        OrderSettings {
            artifacts: url.or_else(|| artifacts.as_ref().map(|it| it.endpoint().to_owned())),
            unknown_agents: options.admission.unknown_agents(),
            late_orders: Duration::from_secs(options.repeat_after),
            drift_apart: Duration::from_secs(options.drift_apart),
            secrets: secrets.clone(),
            figures: observed.figures.clone(),
            spans: spans.clone(),
            ..OrderSettings::default()
        },
    );
    let traces = traces.map(|traces| traces.start(orders.key()));
    tasks.spawn(orders.clone().run());
    tasks.spawn(secrets.follow(ending.clone()));
    folding::start(ledger.clone(), options.offline_after, &ending, &mut tasks);
    let authorities = match &options.admission.ca {
        Some(directory) => Some(Authorities::open(directory).await?),
        None => None,
    };
    let certificates = Ends::default();
    let shown =
        Shown { orders: &orders, ends: certificates.clone(), failed: opened.failed_token(), spans };
    let http = observed.listen(&options.observe, shown).await?;
    let gateway = start_gateway(
        &options,
        &observed,
        &orders,
        authorities.as_ref(),
        &certificates,
        &ending,
        &mut tasks,
    )
    .await?;
    if let Some(pair) = artifacts.as_ref().and_then(ArtifactListener::pair) {
        ends::files(&certificates, "artifacts", pair);
    }
    let settings = notices::Settings::default();
    let noticing =
        notices::run_certificates(ledger.clone(), settings, certificates.clone(), ending.clone());
    tasks.spawn(noticing);
    tasks.spawn(certificates.watch(ending.clone()));
    tasks.spawn(housekeeping::run(ledger.clone(), orders.key().to_owned(), ending.clone()));
    let enrolment = start_enrolment(&options, &observed, authorities).await?;
    options.webhooks.start(webhooks, &observed, &ending, &mut tasks);
    observed.is(Stage::Serving);

    for endpoint in gateway.endpoints() {
        say(format_args!("listening {endpoint}"));
    }
    if let Some(artifacts) = &artifacts {
        say(format_args!("artifacts {}", artifacts.endpoint()));
    }
    if let Some(enrolment) = &enrolment {
        say(format_args!("enrolment https://{}", enrolment.address()));
    }
    if let Some(http) = &http {
        say(format_args!("http {}", http.endpoint()));
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
    observed.is(Stage::Stopping);
    if ended.is_ok() {
        let drained = options.drain.drain(&gateway, &orders, &*ledger);
        tokio::select! {
            streams = drained => say(format_args!("drained {streams}")),
            // Again: at once.
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = opened.failed() => {}
        }
    }
    orders.stop();
    ending.cancel();
    gateway.shutdown().await;
    if let Some(enrolment) = enrolment {
        enrolment.shutdown().await;
    }
    if let Some(artifacts) = artifacts {
        artifacts.shutdown().await;
    }
    // The gateway takes its heartbeat back.
    drop(tokio::time::timeout(LOOK, tasks.join_all()).await);
    if let Some(traces) = traces {
        traces.end().await;
    }
    if let Some(http) = http {
        http.shutdown().await;
    }
    opened.close().await;
    ended
}

async fn start_gateway(
    options: &Options,
    observed: &Observed,
    orders: &Arc<Orders>,
    authorities: Option<&Authorities>,
    certificates: &Ends,
    ending: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<Gateway> {
    let revocations = Revocations::default();
    let admitting =
        options.admission.open(authorities, revocations.clone(), &observed.ledger, ending).await?;
    tasks.spawn(revocations.follow(observed.ledger.clone(), ending.clone()));
    let figures = &observed.figures;
    let admission = Arc::new(Counted::new(admitting.admission, figures.clone()));
    let mut builder = Gateway::builder(orders.clone(), admission)
        .announces_fleet(true)
        .on_closed(figures.on_closed(figures::Listener::Gateway))
        .rate_limits(options.limits.rates());
    for address in &options.listen {
        builder = builder.listen(address.clone());
    }
    if let Some(authorities) = authorities {
        let (names, admits) = (options.names.clone(), options.admission.admits());
        let (secured, told) =
            secure_and_tell(authorities, names, admits, &[b"h2"], ending.clone())?;
        builder = builder.secured(secured);
        ends::made(certificates, "gateway", told);
        ends::authority(certificates, authorities.clone());
    }
    if let Some(pair) = admitting.pair {
        ends::files(certificates, "gateway", &pair);
        builder = builder.secured(pair.secured);
    }
    Ok(builder.start().await?)
}

async fn start_enrolment(
    options: &Options,
    observed: &Observed,
    authorities: Option<Authorities>,
) -> anyhow::Result<Option<Server>> {
    let (Some(address), Some(authorities)) = (options.enroll_listen, authorities) else {
        return Ok(None);
    };
    let settings = Settings { gateway: options.gateway_url.clone(), ..Settings::default() };
    let enrolment = Enrolment::new(authorities, observed.ledger.clone(), settings)
        .counting(observed.figures.clone());
    let names = options.names.clone();
    Ok(Some(Server::start(address, names, enrolment, server::Limits::default()).await?))
}

async fn start_artifacts(
    options: &Options,
    observed: &Observed,
    ending: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<Option<ArtifactListener>> {
    let Some(place) = &options.artifacts else { return Ok(None) };
    let named = Arc::new(Mutex::new(Arc::new(Named::default())));
    tasks.spawn(follow_releases(observed.ledger.clone(), named.clone(), ending.clone()));
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
        store: ObservedStore::new(place.open(Bounds::default()).await?, observed.figures.clone()),
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
