//! The service: makes the adapters, starts the actors on them, and waits to be told to stop.
//!
//! ```text
//!   lock ► store ► ports ► actors ► local socket ► link          (start, bottom-up)
//!   link ► local socket ► lazy writes ► lock                     (stop)
//! ```
//!
//! The socket and the link do not wait for plugins: those come back by themselves beside them.
//! Stopping the agent leaves plugins running; the next life adopts them.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use guest_agent_actors::admission::Gate;
use guest_agent_actors::crash_point;
use guest_agent_actors::error::Chain;
use guest_agent_actors::event::Draft;
use guest_agent_actors::messages::{Dismiss, ListPlugins, Listed, NotifyVm, RescanLocal, Save};
use guest_agent_actors::monitor::HealthPolicy;
use guest_agent_actors::outbox::{Bounds, Destination};
use guest_agent_actors::plugin::machine::Notice;
use guest_agent_actors::plugin::restart::RestartPolicy;
use guest_agent_actors::plugin::state::Policy;
use guest_agent_actors::ports::{
    AdmissionCommand, Cause, Cleanup, Durability, Launcher, Machine, Ports, RandomIds, StopManner,
    StopOrder, Stopped, Storage,
};
use guest_agent_actors::system::{self, Settings, System};
use guest_agent_actors::vm_events::{self, NOTIFY_WAIT, VmEvent};
use guest_agent_actors::wire::AgentFacts;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::admission::PluginHost;
use crate::cgroup::{Cgroups, Total};
use crate::cli::{self, RunArgs};
use crate::command_socket::CommandSocket;
use crate::config::{CgroupUse, Config, NO_METADATA, ProcessEnvironment, Transport};
use crate::confine::Host;
use crate::control_link::Link;
use crate::facts::LocalFacts;
use crate::footprint;
use crate::going_down;
use crate::host_api::{self, HostApi, SocketProber};
use crate::http::Http;
use crate::install::trust::Trust;
use crate::install::{self, Pipeline, PipelineConfig};
use crate::launch::{self, Holder, LauncherConfig, ProcessLauncher};
use crate::local_api::LocalApi;
use crate::local_plugins::PluginFolders;
use crate::logging;
use crate::machine::{Identity, InstanceSource, LocalMachine, Memory, SystemClock};
use crate::metadata::{self, MetadataAddress};
use crate::meter::SystemMeter;
use crate::notify::{self, Notifier, Watched};
use crate::observe::metrics::Sources;
use crate::observe::metrics::counters::Counts;
use crate::plugin_logs::{Keeping, PluginLogs};
use crate::plugin_rpc::GrpcPluginRpc;
use crate::reload::Change;
use crate::socket::{self, Access};
use crate::storage::told::Teller;
use crate::storage::{self, SledStorage, StateLock, StoreFate};
use crate::sweep::{DiskSweeper, OtherInstances, SweepConfig};
use crate::telemetry::Telemetry;

mod attributes;
mod link;
mod report;

use attributes::Attributes;
use link::{Leads, Listener};
use report::{Module, Modules};

/// How long the agent runs under an instance id that it found out itself before it deletes what belongs
/// to others: whoever gives ids out may only be silent for the moment.
const SURE_OF_THE_INSTANCE: Duration = Duration::from_secs(12 * 3600);

/// Most threads for what blocks. A burst of installations is bounded by the disk and not by them, and each has a
/// stack and, with some allocators, a heap of its own; yet a few that hang in the kernel must not stop the rest.
const BLOCKING_THREADS_MAX: usize = 64;

/// Longest that letting go of the plugins may take, and stopping each beyond what it may itself.
const STOP_SLACK: Duration = Duration::from_secs(10);

/// Why the service ended without having been told to. Started again, it goes on where it was.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the {0} actor panicked; its panic is in the log")]
    Actor(&'static str),
    #[error("the local socket is not served any more")]
    LocalSocket,
    #[error("the link to the control plane ended by itself")]
    Link,
    #[error(
        "the metadata server says that this is another machine than the one this agent ran for"
    )]
    AnotherMachine,
}

/// Why the service could not start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("failed to make the directory {}", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
}

/// Where this agent keeps what.
struct Places {
    store: PathBuf,
    plugins: PathBuf,
    state: PathBuf,
    cache: PathBuf,
    spool: PathBuf,
    logs: PathBuf,
}

/// Runs the service until SIGTERM or SIGINT.
///
/// # Errors
/// When it cannot start: the state directory is another agent's, a directory cannot be made, the
/// store or the socket cannot be used. When a part of it that nothing can do without panicked:
/// whoever runs the service starts it again.
pub fn run(args: RunArgs) -> Result<(), Cause> {
    // A second provider would be an error of ours alone; it is the same one.
    drop(rustls::crypto::ring::default_provider().install_default());
    let runtime = runtime()?;
    actix_rt::System::with_tokio_rt(|| runtime).block_on(serve(args))
}

/// Everything but what blocks is on this one thread: a message between actors then costs half a microsecond.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .build()
}

async fn serve(args: RunArgs) -> Result<(), Cause> {
    let started_at = SystemTime::now();
    // Listening for signals comes first: from here on a signal means an orderly stop.
    let mut signals = Signals::new()?;
    let config = &args.config;
    make_directory(&config.agent.state_dir, 0o755)?;
    let lock = StateLock::acquire(&config.agent.state_dir)?;
    let metadata = metadata_client(config)?;
    let mut memory = Memory::load(&config.agent.state_dir);
    let identity = identify(config, &mut memory, metadata.as_ref()).await;
    let machine = Arc::new(LocalMachine::read(identity)?);
    let places = Places::of(config, &machine.instance_id());
    let mut telemetry =
        Telemetry::start(config, &machine.instance_id(), &machine.boot_id(), logging::export_spans);
    make_directory(&config.agent.runtime_dir, 0o755)?;
    make_directory(&places.plugins, 0o755)?;

    // Before anything is started: another agent may answer here.
    let local_socket = config.agent.socket();
    let listening = socket::bind_private(&local_socket).await?;
    crash_point::reach("after", "bind", "agent.sock");

    let cgroups = find_cgroups(config);
    let pipeline = pipeline(config, &places, &cgroups);
    let settled = pipeline.clone();
    // The store needs a little room to be opened.
    drop(tokio::task::spawn_blocking(move || install::settle_cache(&settled)).await);
    let storage = open_store(&lock, &places.store).await?;
    let rpc = Arc::new(GrpcPluginRpc::new());
    let log_max = config.plugins.log_max_bytes;
    let logs = PluginLogs::new(places.logs.clone(), Some(places.state.clone()), log_max);
    let launcher = Arc::new(launcher(config, &places, &machine, &rpc, &cgroups, &logs)?);
    logs.take_over().await;
    let listener = Arc::new(Listener::default());
    let attributes = Attributes::new(metadata.clone());
    let facts = Arc::new(LocalFacts::read());
    let (service_url, known_as) = watch::channel(link::service_url(config));
    let opened = link::open(config, metadata.clone(), attributes.state(), &listener, service_url)?;
    let (link, link_task) = (opened.link, opened.task);
    let prober = Arc::new(SocketProber::default());
    let trust = read_keys(config).await;
    let installer = Arc::new(Pipeline::new(pipeline, trust)?);
    let sweeper = DiskSweeper::new(sweep_config(config, &machine, &cgroups), installer.clone());
    let owner = {
        let launcher = launcher.clone();
        Arc::new(move |ticket: &str| match launcher.holder(ticket) {
            Holder::Plugin { name, .. } => Some(name),
            Holder::ComingBack(_) | Holder::Nobody => None,
        })
    };
    let admission = PluginHost::new(known_as.clone(), owner);
    let counts = Arc::new(Counts::default());
    let ports = Ports {
        installer: installer.clone(),
        launcher: launcher.clone(),
        rpc: rpc.clone(),
        meter: Arc::new(SystemMeter::new(cgroups.clone())),
        storage: storage.clone(),
        sweeper: Arc::new(sweeper),
        admission: Arc::new(admission.clone()),
        local: Arc::new(PluginFolders::new(config.agent.local_plugin_dir.clone())),
        prober: prober.clone(),
        link: Arc::new(link.clone()),
        machine: machine.clone(),
        facts: facts.clone(),
        tally: counts.clone(),
        clock: Arc::new(SystemClock),
        ids: Arc::new(RandomIds),
    };
    let destination = match opened.leads {
        Leads::Somewhere => Destination::ControlPlane,
        // Where the metadata server once said where, it will again.
        Leads::WhereMetadataSays if memory.has_seen_metadata() => Destination::ControlPlane,
        Leads::WhereMetadataSays | Leads::Nowhere => Destination::Nobody,
    };
    let core_begun_at = SystemTime::now();
    let system = system::start(ports, settings(config, destination, known_as)).await;
    let mut modules = Modules::default();
    modules.succeeded(Module::Core, core_begun_at);
    listener.hear(system.control_plane.clone());

    let ending = CancellationToken::new();
    let registry = host_api::registry_service(system.offers.clone(), ending.clone());
    let host = HostApi {
        launcher: launcher.clone(),
        registry: system.registry.clone(),
        service: registry.clone(),
        prober,
    };
    let host = serve_host(host, config, ending.clone()).await;
    let http_health = watch::Sender::default();
    let api = LocalApi {
        registry,
        manager: system.manager.clone(),
        control_plane: system.control_plane.clone(),
        vm_events: system.vm_events.clone(),
        scheduler: system.scheduler.clone(),
        readiness: system.readiness.clone(),
        changes: system.roster.clone(),
        outbox: system.events.clone(),
        storage: storage.clone(),
        store: storage.clone(),
        sweep: system.sweep.clone(),
        gate: system.gate(),
        spool: installer.spool(),
        rpc,
        link: link.watch_state(),
        http: http_health.subscribe(),
        logs: logs.clone(),
        plugins_dir: places.plugins.clone(),
        instance_id: machine.instance_id(),
        started_at,
    };
    let (effective, in_effect) = watch::channel(Arc::new(args.config.clone()));
    let sources = Sources {
        manager: system.manager.clone(),
        backlog: system.backlog.clone(),
        counts,
        offers: system.offers.clone(),
        link: link.clone(),
        link_state: link.watch_state(),
        store: storage.watch_health(),
        readiness: system.readiness.clone(),
        started_at,
    };
    if let Some(telemetry) = &mut telemetry {
        telemetry.export_metrics(&args.config, sources.clone());
    }
    let http = Http {
        api: api.clone(),
        sources,
        config: in_effect.clone(),
        health: http_health,
        ending: ending.clone(),
    };
    let http = actix_rt::spawn(http.serve());
    let (stop_api, api_stopped) = oneshot::channel::<()>();
    let mut api = actix_rt::spawn(api.serve(listening, async {
        // A dropped sender means the same as a sent one: stop.
        drop(api_stopped.await);
    }));
    let commands = serve_commands(&args.config, &system, in_effect, &mut modules).await;
    let mut link_ended = link_task.map(actix_rt::spawn);
    let reporting = actix_rt::spawn(report::send(link.clone(), attributes.state(), modules));
    let another = actix_rt::spawn(attributes.follow(facts, memory, machine.clone()));
    let following = another.abort_handle();
    let mut became_another = pin!(async move {
        // One that panicked has nothing to say.
        if another.await.is_err() {
            std::future::pending::<()>().await;
        }
    });
    let keeping = Keeping::ByThisProgram { cgroups: cgroups.clone() };
    let trimming = actix_rt::spawn(logs.clone().watch(keeping));
    let notifier = Notifier::from_environment(&ProcessEnvironment);
    let informing = inform(&notifier, &system, &link);
    let teller = Teller {
        storage: storage.clone(),
        store: system.store.clone().recipient(),
        agent: config.agent.name.clone(),
    };
    let telling = actix_rt::spawn(teller.run());
    let telling_unwritten = actix_rt::spawn(logging::tell_unwritten());
    let staying_small = actix_rt::spawn(footprint::stay_small());
    crash_point::reach("before", "ready", "agent");
    info!(socket = %local_socket.display(), version = env!("CARGO_PKG_VERSION"), "ready");

    let mut actor_ended = pin!(system.ended());
    let fault = loop {
        tokio::select! {
            told = signals.next() => match told {
                Told::Stop => break None,
                Told::Reload => {
                    notifier.reloading().await;
                    reload(&args, &effective, &system, &launcher, &installer).await;
                    notifier.reloaded().await;
                }
            },
            actor = &mut actor_ended => break Some(Ended::Actor(actor)),
            _ = &mut api => break Some(Ended::LocalSocket),
            () = end_of(link_ended.as_mut()) => break Some(Ended::Link),
            () = &mut became_another => break Some(Ended::AnotherMachine),
        }
    };
    notifier.stopping().await;
    // An agent that lost a part of itself comes back at once, and finds its plugins as they are; as
    // another machine's agent it would not know them.
    let stops_plugins = match &fault {
        None => args.stop_plugins,
        Some(Ended::AnotherMachine) => true,
        Some(_) => false,
    };
    match &fault {
        Some(fault) if stops_plugins => error!(%fault, "stopping, to be started again"),
        Some(fault) => error!(%fault, "stopping, to be started again; plugins run on"),
        None if stops_plugins => info!("stopping; so do the plugins"),
        None => info!("stopping; plugins run on"),
    }
    if fault.is_none() && (stops_plugins || going_down::is_machine_going_down().await) {
        tell_shutdown(&system).await;
    }
    trimming.abort();
    reporting.abort();
    following.abort();
    informing.abort();
    telling.abort();
    telling_unwritten.abort();
    staying_small.abort();
    link.close();
    if let Some(ended) = link_ended.filter(|link| !link.is_finished()) {
        drop(tokio::time::timeout(Duration::from_secs(3), ended).await);
    }
    // Whoever watches what plugins offer, or a page, is told.
    ending.cancel();
    // It has its own bound; one that panicked has ended.
    drop(http.await);
    if let Some(host) = host {
        host.end().await;
    }
    drop(stop_api);
    // Followers keep their streams open; they are cut.
    api.abort();
    system.close_gate();
    admission.close().await;
    if stops_plugins {
        stop_plugins(&system, &*launcher).await;
    }
    // What was acknowledged a moment ago is on its way to the store; it takes this path, too.
    let flushed = async {
        drop(tokio::time::timeout(STOP_SLACK, system.store.send(Save::default())).await);
        storage.commit(Vec::new(), Durability::Durable).await
    };
    if let Err(error) = flushed.await {
        warn!(error = %Chain(&error), "the last lazy writes may be lost; they will be made again");
    }
    if let Some(commands) = commands {
        commands.abort();
        drop(std::fs::remove_file(config.agent.command_socket()));
    }
    drop(std::fs::remove_file(&local_socket));
    cgroups.leave();
    logging::tell_last_unwritten();
    if let Some(telemetry) = telemetry {
        telemetry.end().await;
    }
    fault.map_or(Ok(()), |fault| Err(fault.into()))
}

/// Resolves when the task has ended; never, when there is none.
async fn end_of(task: Option<&mut JoinHandle<()>>) {
    match task {
        // A panic is an end like any other.
        Some(task) => drop(task.await),
        None => std::future::pending().await,
    }
}

/// Checks what the service would not start with, beyond what `config` checks itself. `config check` calls
/// this, so that it says what `run` would.
///
/// # Errors
/// The first thing that it would not start with.
pub fn check(config: &Config) -> Result<(), Cause> {
    metadata_client(config)?;
    Trust::load(&config.trust)?;
    link::check(&config.control_plane)
}

/// A client of the metadata server, unless none is to be asked.
fn metadata_client(config: &Config) -> Result<Option<metadata::Client>, Cause> {
    let address = match config.instance.metadata_url.as_str() {
        NO_METADATA => return Ok(None),
        "" => MetadataAddress::default(),
        url => url.parse()?,
    };
    Ok(Some(metadata::Client::new(address)?))
}

/// The machine's id. Only a machine that has none yet, or may be a clone, waits for the metadata server,
/// and only so long.
async fn identify(
    config: &Config,
    memory: &mut Memory,
    metadata: Option<&metadata::Client>,
) -> Identity {
    const PATIENCE: Duration = Duration::from_secs(1);
    let ask = async || match tokio::time::timeout(PATIENCE, metadata?.instance_id()).await {
        Ok(Ok(id)) => Some(id),
        Ok(Err(error)) => {
            info!(error = %Chain(&error), "the metadata server does not say who this machine is");
            None
        }
        Err(_) => {
            info!("the metadata server does not say in time who this machine is");
            None
        }
    };
    let identity = memory.identify(&config.instance.id, ask).await;
    info!(id = identity.id, source = ?identity.source, "this machine");
    identity
}

/// Who is asked before anything is deployed.
fn gate(config: &Config) -> Gate {
    let command = AdmissionCommand::new(&config.admission.command);
    Gate { command, timeout: config.admission.timeout }
}

async fn open_store(lock: &StateLock, dir: &Path) -> Result<Arc<SledStorage>, Cause> {
    let opened = storage::open(lock, dir).await?;
    match &opened.fate {
        StoreFate::Fresh => info!(store = %dir.display(), "begins with an empty store"),
        StoreFate::Existing => info!(store = %dir.display(), "goes on with its store"),
        StoreFate::SetAside { moved_to, reason } => error!(
            reason,
            moved_to = %moved_to.display(),
            "THE STORE IS DAMAGED and was set aside; this agent knows of no plugin until it is \
             told again"
        ),
    }
    Ok(Arc::new(opened.storage))
}

/// Plugins run without walls on a machine that has none to offer; it is said once, here.
fn find_cgroups(config: &Config) -> Cgroups {
    let tasks_max = Some(config.plugins.max_tasks).filter(|tasks| *tasks > 0);
    let total = Total {
        memory_bytes: Some(config.plugins.total_memory_bytes).filter(|bytes| *bytes > 0),
        cpu_percent: Some(config.plugins.total_cpu_percent).filter(|percent| *percent > 0),
    };
    if total.memory_bytes.is_some() {
        launch::oom::spare_the_agent();
    }
    let cgroups = match config.plugins.cgroups {
        CgroupUse::Auto => {
            let parent = Some(config.plugins.cgroup_parent.as_str());
            let parent = parent.filter(|parent| !parent.is_empty());
            Cgroups::detect(&config.agent.state_dir, parent, tasks_max, total)
        }
        CgroupUse::Off => Cgroups::off(tasks_max, total),
    };
    for trouble in cgroups.trouble() {
        warn!("control groups: {trouble}");
    }
    let can: Vec<String> = cgroups.controllers().iter().map(ToString::to_string).collect();
    info!(controllers = can.join(" "), "control groups");
    cgroups
}

fn launcher(
    config: &Config,
    places: &Places,
    machine: &LocalMachine,
    rpc: &Arc<GrpcPluginRpc>,
    cgroups: &Cgroups,
    logs: &PluginLogs,
) -> Result<ProcessLauncher, launch::LauncherError> {
    let launcher = LauncherConfig {
        plugins_dir: places.plugins.clone(),
        state_root: places.state.clone(),
        runtime_dir: config.agent.runtime_dir.clone(),
        logs: logs.clone(),
        host_socket: config.agent.host_socket(),
        transport: match config.plugins.transport {
            Transport::Unix => launch::Transport::Unix,
            Transport::Tcp => launch::Transport::Tcp,
        },
        boot: machine.boot_id(),
        cgroups: cgroups.clone(),
        host: Host::look(),
        policies: config.policies.clone(),
    };
    ProcessLauncher::new(launcher, rpc.clone())
}

fn pipeline(config: &Config, places: &Places, cgroups: &Cgroups) -> PipelineConfig {
    let Places { plugins, state, logs, cache, spool, .. } = places;
    let cache = (cache.clone(), config.install.cache_max_bytes);
    let (plugins, state, logs) = (plugins.clone(), state.clone(), logs.clone());
    let mut pipeline =
        PipelineConfig::configured(config, plugins, state, logs, cache, spool.clone());
    if config.install.pressure_file.is_empty() {
        pipeline.pressure.files.extend(cgroups.pressure_files());
    }
    pipeline
}

fn sweep_config(config: &Config, machine: &LocalMachine, cgroups: &Cgroups) -> SweepConfig {
    SweepConfig {
        state_dir: config.agent.state_dir.clone(),
        instance: machine.instance_id(),
        others: match machine.instance_source() {
            InstanceSource::Given => OtherInstances::Go,
            InstanceSource::Metadata | InstanceSource::Machine => {
                OtherInstances::GoAfter(SURE_OF_THE_INSTANCE)
            }
            InstanceSource::Random => OtherInstances::Stay,
        },
        runtime_dir: config.agent.runtime_dir.clone(),
        local_plugin_dir: config.agent.local_plugin_dir.clone(),
        cgroups: cgroups.clone(),
    }
}

fn policies(config: &Config) -> (Policy, HealthPolicy) {
    let plugins = &config.plugins;
    let policy = Policy {
        restart: RestartPolicy {
            initial: plugins.restart_initial_backoff,
            max: plugins.restart_max_backoff,
            ..RestartPolicy::default()
        },
        probation: plugins.probation,
    };
    let health = HealthPolicy {
        interval: plugins.health_interval,
        timeout: plugins.health_timeout,
        failures: plugins.health_failures,
    };
    (policy, health)
}

fn settings(
    config: &Config,
    destination: Destination,
    service_url: watch::Receiver<Arc<str>>,
) -> Settings {
    let (policy, health) = policies(config);
    Settings {
        policy,
        health,
        agent: AgentFacts {
            name: config.agent.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        },
        destination,
        outbox: Bounds::default(),
        gate: gate(config),
        service_url,
    }
}

/// Keeps the service manager informed, where there is one.
fn inform(notifier: &Notifier, system: &System, link: &Link) -> JoinHandle<()> {
    let beat = notify::watchdog_beat(&ProcessEnvironment);
    let watched = Watched {
        list: system.manager.clone().recipient(),
        roster: system.roster.clone(),
        link: link.watch_state(),
        readiness: system.readiness.clone(),
    };
    let notifier = notifier.clone();
    actix_rt::spawn(async move {
        if notifier.is_used() {
            notify::keep_informed(notifier, beat, watched).await;
        }
    })
}

/// Reads the configuration again and takes up what can be. A bad one changes nothing. Whatever else of
/// the machine's own files the agent reads at its start is looked at again from here.
async fn reload(
    args: &RunArgs,
    effective: &watch::Sender<Arc<Config>>,
    system: &System,
    launcher: &ProcessLauncher,
    installer: &Pipeline,
) {
    system.manager.do_send(RescanLocal);
    let sources = args.sources.clone();
    let reading =
        tokio::task::spawn_blocking(move || cli::configured(&ProcessEnvironment, &sources));
    let wanted = match reading.await {
        Ok(Ok(wanted)) => wanted,
        Ok(Err(failure)) => {
            let (reason, causes) = (failure.reason, failure.causes.join("; "));
            error!(
                reason,
                causes, "THE CONFIGURATION CANNOT BE USED; the agent goes on with the one it has"
            );
            return;
        }
        Err(error) => {
            error!(%error, "the configuration could not be read; the agent goes on with the one it has");
            return;
        }
    };
    let trusted = wanted.trust.clone();
    let keys = match tokio::task::spawn_blocking(move || Trust::load(&trusted)).await {
        Ok(Ok(keys)) => keys,
        Ok(Err(error)) => {
            error!(
                error = %Chain(&error),
                "THE CONFIGURATION CANNOT BE USED; the agent goes on with the one it has"
            );
            return;
        }
        Err(error) => {
            error!(%error, "the keys could not be read; the agent goes on with those it has");
            return;
        }
    };
    installer.set_trust(keys);
    let Change { effective: config, applied, at_next_launch, needs_restart } =
        Change::between(&effective.borrow(), &wanted);
    launcher.use_policies(config.policies.clone());
    if !at_next_launch.is_empty() {
        let changed = at_next_launch.join(", ");
        info!(changed, "policies changed; each plugin has its new one from its next start on");
    }
    logging::set_level(&config.log.level);
    let (policy, health) = policies(&config);
    system.reconfigure(policy, health, gate(&config));
    installer.set_cache_max(config.install.cache_max_bytes);
    effective.send_replace(Arc::new(config));
    let (changed, restart) = (applied.join(", "), needs_restart.join(", "));
    if needs_restart.is_empty() {
        info!(changed, "the configuration was read again");
    } else {
        warn!(changed, restart, "the configuration was read again; some settings need a restart");
    }
}

/// The keys of this machine. What runs is not touched by trouble with them: the agent starts, and installs
/// nothing.
async fn read_keys(config: &Config) -> Trust {
    let trust = config.trust.clone();
    let read = tokio::task::spawn_blocking(move || Trust::load_or_nobody(&trust)).await;
    let trust = read.unwrap_or_else(|error| Trust::Unreadable(error.to_string()));
    if let Trust::Unreadable(why) = &trust {
        error!(why, "THE KEYS OF [trust] CANNOT BE READ; nothing is installed until they can be");
    }
    trust
}

/// Serves the JSON command socket, where it is wanted. The agent does its work without it: whatever
/// keeps it from being made is said loudly and is no reason to leave plugins alone.
async fn serve_commands(
    config: &Config,
    system: &System,
    in_effect: watch::Receiver<Arc<Config>>,
    modules: &mut Modules,
) -> Option<JoinHandle<()>> {
    if !config.api.command_socket_enabled {
        modules.disabled(Module::Commands);
        return None;
    }
    let begun_at = SystemTime::now();
    let path = config.agent.command_socket();
    let access = Access {
        mode: config.api.command_socket_mode.bits(),
        group: config.api.command_socket_group.clone(),
    };
    let listener = match socket::bind(&path, &access).await {
        Ok(listener) => listener,
        Err(error) => {
            error!(error = %Chain(&error), "goes on without the command socket");
            modules.failed(Module::Commands, begun_at, Chain(&error).to_string());
            return None;
        }
    };
    modules.succeeded(Module::Commands, begun_at);
    let commands = CommandSocket { vm_events: system.vm_events.clone(), config: in_effect };
    Some(actix_rt::spawn(commands.serve(listener)))
}

/// Serves the socket that plugins call. Plugins run without it, so whatever keeps it from being made is
/// said loudly and no more.
async fn serve_host(
    host: HostApi,
    config: &Config,
    ending: CancellationToken,
) -> Option<host_api::Serving> {
    match host.serve(&config.agent.host_socket(), ending).await {
        Ok(serving) => Some(serving),
        Err(error) => {
            error!(error = %Chain(&error), "goes on without the host socket: plugins cannot call");
            None
        }
    }
}

/// Tells plugins that they, or the whole machine, are about to stop. Bounded.
async fn tell_shutdown(system: &System) {
    let telling = system.vm_events.send(NotifyVm::of(VmEvent::Shutdown));
    match tokio::time::timeout(NOTIFY_WAIT + Duration::from_secs(1), telling).await {
        Ok(Ok(Ok(_))) => {}
        Ok(Ok(Err(error))) => warn!(%error, "no plugin was told of the shutdown"),
        Ok(Err(_)) | Err(_) => warn!("not every plugin may have been told of the shutdown"),
    }
}

/// Stops every plugin beside each other. Nobody looks after them meanwhile, so that none is taken
/// for crashed and started again; what is durable of them stays, and the next life starts them.
async fn stop_plugins(system: &System, launcher: &dyn Launcher) {
    const TIMEOUT: Duration = Duration::from_secs(30);
    let listed = tokio::time::timeout(STOP_SLACK, system.manager.send(ListPlugins)).await;
    let Ok(Ok(plugins)) = listed else {
        warn!("the manager does not say what runs; the plugins run on");
        return;
    };
    // One that is still busy after that long is stopped all the same.
    if tokio::time::timeout(STOP_SLACK, system.manager.send(Dismiss)).await.is_err() {
        warn!("not all plugins could be let go; one of them may be reported as crashed");
    }
    let stops = plugins.iter().map(async |Listed { view, .. }| {
        let stop = launcher.stop(StopOrder {
            name: view.name.clone(),
            process: None,
            endpoint: view.endpoint.clone(),
            cleanup: Cleanup::Keep,
            manner: StopManner::Politely { timeout: TIMEOUT },
        });
        let plugin = &view.name;
        match tokio::time::timeout(TIMEOUT + STOP_SLACK, stop).await {
            Ok(Ok(Stopped::NothingRan)) => None,
            Ok(Ok(Stopped::Ended(cause))) => {
                let (revision, why) = (view.revision.as_str(), format!("{cause}; the agent ended"));
                let now = SystemTime::now();
                Some(Draft::new(Notice::Stopped, plugin.as_str(), revision, now, &why))
            }
            Ok(Err(error)) => {
                warn!(%plugin, error = %Chain(&error), "a plugin could not be stopped");
                None
            }
            Err(_) => {
                warn!(%plugin, "did not stop in time");
                None
            }
        }
    });
    let events = join_all(stops).await.into_iter().flatten().collect();
    let save = Save { writes: vec![vm_events::forget_boot()], events };
    let saved = tokio::time::timeout(STOP_SLACK, system.store.send(save)).await;
    if !matches!(saved, Ok(Ok(Ok(())))) {
        warn!("the end of the plugins could not be recorded; the next life reports crashes");
    }
}

fn make_directory(path: &Path, mode: u32) -> Result<(), StartError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(|cause| StartError::Directory { path: path.to_owned(), cause })
}

// === impl Places ===

impl Places {
    fn of(config: &Config, instance: &str) -> Self {
        let home = config.agent.state_dir.join(instance);
        Self {
            store: home.join("store"),
            plugins: home.join("plugins"),
            state: home.join("state"),
            cache: home.join("cache"),
            spool: home.join("spool"),
            logs: config.agent.log_dir.join("plugins"),
        }
    }
}

// === Signals ===

/// What a signal means.
enum Told {
    /// To end.
    Stop,
    /// To read its configuration again.
    Reload,
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// What the agent is told next. May be dropped without losing anything.
    async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.terminate.recv() => Told::Stop,
            _ = self.interrupt.recv() => Told::Stop,
            _ = self.hangup.recv() => Told::Reload,
        }
    }
}
