//! The adapters, through which the actors reach everything outside. They are made before the first
//! actor.
//!
//! The agent first takes everything that another agent process can hold: the lock of the state
//! directory, then the local socket, then the store. It touches no plugin before it has all three.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use guest_agent_actors::crash_point;
use guest_agent_actors::error::Chain;
use guest_agent_actors::outbox::Destination;
use guest_agent_actors::ports::{Cause, Machine, Ports, RandomIds, Storage, Sweeper};
use guest_agent_serve_kit::connection_counters::ConnectionCounters;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::adoption;
use super::attributes::Attributes;
use super::ground::{Degraded, Footing, Ground, NoSweep};
use super::link::{self, Leads, Listener};
use super::places::{Places, make_directory};
use crate::api::host::SocketProber;
use crate::config::{CgroupUse, Config, NO_METADATA, Transport};
use crate::hostinfo::facts::LocalFacts;
use crate::hostinfo::metadata;
use crate::hostinfo::{Identity, InstanceSource, LocalMachine, Memory, SystemClock};
use crate::install::local_manifests::PluginFolders;
use crate::install::trust::Trust;
use crate::install::{self, Pipeline, PipelineConfig};
use crate::link::Link;
use crate::net::levels::Levels;
use crate::net::metadata_address::MetadataAddress;
use crate::net::socket::{self, Access, SocketError};
use crate::observe::log;
use crate::observe::metrics::counters::Counts;
use crate::observe::otlp::Telemetry;
use crate::process::admission::PluginHost;
use crate::process::cgroup::{Cgroups, Total};
use crate::process::launch::{self, Holder, LauncherConfig, ProcessLauncher};
use crate::process::logs::PluginLogs;
use crate::process::meter::SystemMeter;
use crate::process::rpc::GrpcPluginRpc;
use crate::process::sandbox::Host;
use crate::store::StateLock;
use crate::sweep::{DiskSweeper, OtherInstances, SweepConfig};

/// How long the agent runs under a detected instance id before it deletes the files of other
/// instances: the metadata server may be silent only for a moment.
const SURE_OF_THE_INSTANCE: Duration = Duration::from_secs(12 * 3600);

/// Everything in the service but the actors and the servers.
pub(super) struct Adapters {
    /// The ports of the actors.
    pub(super) ports: Ports,
    pub(super) destination: Destination,
    pub(super) places: Places,
    pub(super) memory: Memory,
    pub(super) machine: Arc<LocalMachine>,
    pub(super) telemetry: Option<Telemetry>,
    /// The local socket; it answers no calls yet.
    pub(super) listening: UnixListener,
    /// Who may do what over it.
    pub(super) levels: Arc<Levels>,
    pub(super) local_socket: PathBuf,
    pub(super) cgroups: Cgroups,
    pub(super) storage: Arc<dyn Storage>,
    pub(super) rpc: Arc<GrpcPluginRpc>,
    pub(super) logs: PluginLogs,
    pub(super) launcher: Arc<ProcessLauncher>,
    pub(super) installer: Arc<Pipeline>,
    pub(super) prober: Arc<SocketProber>,
    pub(super) admission: PluginHost,
    pub(super) counts: Arc<Counts>,
    /// Counts the connections of all listeners.
    pub(super) counters: ConnectionCounters,
    pub(super) facts: Arc<LocalFacts>,
    pub(super) attributes: Attributes,
    pub(super) link: Link,
    /// Keeps the link connected; absent without a control plane.
    pub(super) link_task: Option<Pin<Box<dyn Future<Output = ()>>>>,
    /// Gets the address of the control-plane actor after the actor has started.
    pub(super) listener: Arc<Listener>,
    /// The name of the control plane in admission requests.
    pub(super) service_url: watch::Receiver<Arc<str>>,
    /// Set when the state directory cannot be used.
    pub(super) degraded: Option<Degraded>,
    /// Held until the agent has ended.
    pub(super) lock: StateLock,
}

/// The local socket, and who may do what over it. The agent does not do without the socket, so one
/// that cannot be given to the groups is its owner's alone.
async fn local_listener(config: &Config) -> Result<(UnixListener, Arc<Levels>), SocketError> {
    let agent = &config.agent;
    let levels = Arc::new(Levels::find(&agent.socket_group, &agent.admin_group).await);
    let (path, access) = (agent.socket(), levels.access());
    let listening = match socket::bind(&path, &access).await {
        Err(error @ SocketError::Socket(_)) if access != Access::owner_only() => {
            error!(
                error = %Chain(&error),
                "agent.sock is for the agent's own user only: it cannot be given to the groups"
            );
            socket::bind_private(&path).await?
        }
        bound => bound?,
    };
    Ok((listening, levels))
}

// === impl Adapters ===

impl Adapters {
    /// Makes all of them. It sends nothing to the control plane or to a plugin.
    ///
    /// # Errors
    /// Another agent uses the state directory, a directory cannot be made, or the store or the
    /// socket cannot be used.
    pub(super) async fn make(config: &Config) -> Result<Self, Cause> {
        let footing = Footing::take(config)?;
        let metadata = metadata_client(config)?;
        let mut memory = Memory::load(&config.agent.state_dir);
        let identity = identify(config, &mut memory, metadata.as_ref()).await;
        let machine = Arc::new(LocalMachine::read(identity)?);
        let telemetry =
            Telemetry::start(config, &machine.instance_id(), &machine.boot_id(), log::export_spans);
        make_directory(&config.agent.runtime_dir, 0o755)?;

        // This comes first, because another agent may answer on the socket.
        let local_socket = config.agent.socket();
        let (listening, levels) = local_listener(config).await?;
        crash_point::reach("after", "bind", "agent.sock");

        let cgroups = find_cgroups(config);
        if footing.trouble.is_none() {
            // The store needs some free disk space to be opened.
            let Places { cache, plugins, .. } = Places::of(config, &machine.instance_id());
            let most = config.install.cache_max_bytes;
            let settle = move || install::settle_cache(cache, plugins, most);
            drop(tokio::task::spawn_blocking(settle).await);
        }
        let ground = Ground::open(config, &machine.instance_id(), &footing).await?;
        let Ground { storage, places, degraded } = ground;
        let pipeline = pipeline(config, &places, &cgroups);
        let rpc = Arc::new(GrpcPluginRpc::new());
        let log_max = config.plugins.log_max_bytes;
        let logs = PluginLogs::new(places.logs.clone(), Some(places.state.clone()), log_max);
        let launcher = Arc::new(launcher(config, &places, &machine, &rpc, &cgroups, &logs)?);
        logs.take_over().await;
        let listener = Arc::new(Listener::default());
        let attributes = Attributes::new(metadata.clone());
        let facts = Arc::new(LocalFacts::read());
        let (known, service_url) = watch::channel(link::service_url(config));
        let opened = link::open(config, metadata, attributes.state(), &listener, known)?;
        let prober = Arc::new(SocketProber::default());
        let trust = read_keys(config).await;
        let installer = Arc::new(Pipeline::new(pipeline, trust)?);
        adoption::adopt_after_loss(&*storage, &installer, config).await;
        let sweeper: Arc<dyn Sweeper> = match &degraded {
            Some(_) => Arc::new(NoSweep),
            None => {
                let config = sweep_config(config, &machine, &cgroups);
                Arc::new(DiskSweeper::new(config, installer.clone()))
            }
        };
        let counters = ConnectionCounters::default();
        let admission = admission(&launcher, &service_url, &counters);
        let counts = Arc::new(Counts::default());
        let ports = Ports {
            installer: installer.clone(),
            launcher: launcher.clone(),
            rpc: rpc.clone(),
            meter: Arc::new(SystemMeter::new(cgroups.clone())),
            storage: storage.clone(),
            sweeper,
            admission: Arc::new(admission.clone()),
            local: Arc::new(PluginFolders::new(config.agent.local_plugin_dir.clone())),
            prober: prober.clone(),
            link: Arc::new(opened.link.clone()),
            machine: machine.clone(),
            facts: facts.clone(),
            counters: counts.clone(),
            clock: Arc::new(SystemClock),
            ids: Arc::new(RandomIds),
        };
        Ok(Self {
            ports,
            destination: destination(opened.leads, &memory),
            places,
            memory,
            machine,
            telemetry,
            listening,
            levels,
            local_socket,
            cgroups,
            storage,
            rpc,
            logs,
            launcher,
            installer,
            prober,
            admission,
            counts,
            counters,
            facts,
            attributes,
            link: opened.link,
            link_task: opened.task,
            listener,
            service_url,
            degraded,
            lock: footing.lock,
        })
    }
}

/// The destination that events are kept for.
fn destination(leads: Leads, memory: &Memory) -> Destination {
    match leads {
        Leads::Somewhere => Destination::ControlPlane,
        // If the metadata server gave the address before, it will give it again.
        Leads::WhereMetadataSays if memory.has_seen_metadata() => Destination::ControlPlane,
        Leads::WhereMetadataSays | Leads::Nowhere => Destination::Nobody,
    }
}

/// Admits the admission plugins by the tickets that the launcher gave them.
fn admission(
    launcher: &Arc<ProcessLauncher>,
    service_url: &watch::Receiver<Arc<str>>,
    counters: &ConnectionCounters,
) -> PluginHost {
    let launcher = launcher.clone();
    let owner = move |ticket: &str| match launcher.holder(ticket) {
        Holder::Plugin { name, .. } => Some(name),
        Holder::ComingBack(_) | Holder::Nobody => None,
    };
    PluginHost::new(service_url.clone(), Arc::new(owner), counters.clone())
}

/// A client of the metadata server, unless it is turned off.
pub(super) fn metadata_client(config: &Config) -> Result<Option<metadata::Client>, Cause> {
    let address = match config.instance.metadata_url.as_str() {
        NO_METADATA => return Ok(None),
        "" => MetadataAddress::default(),
        url => url.parse()?,
    };
    Ok(Some(metadata::Client::new(address)?))
}

/// The machine's id. Only a machine without an id, or one that may be a clone, waits for the
/// metadata server, for a limited time.
async fn identify(
    config: &Config,
    memory: &mut Memory,
    metadata: Option<&metadata::Client>,
) -> Identity {
    const PATIENCE: Duration = Duration::from_secs(1);
    let ask = async || match tokio::time::timeout(PATIENCE, metadata?.instance_id()).await {
        Ok(Ok(id)) => Some(id),
        Ok(Err(error)) => {
            info!(
                error = %Chain(&error),
                "the metadata server does not give this machine's instance id"
            );
            None
        }
        Err(_) => {
            info!("the metadata server does not give this machine's instance id in time");
            None
        }
    };
    let identity = memory.identify(&config.instance.id, ask).await;
    info!(id = identity.id, source = ?identity.source, "this machine");
    identity
}

/// Finds the control groups for plugins. On a machine without usable control groups, plugins run
/// without limits; the agent logs that once, here.
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
        host: Host { groups: cgroups.are_there(), ..Host::look() },
        policies: config.policies.clone(),
        stop_grace: config.plugins.stop_grace,
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

/// The keys of this machine. An error in them does not affect running plugins: the agent starts,
/// and installs nothing.
async fn read_keys(config: &Config) -> Trust {
    let trust = config.trust.clone();
    let read = tokio::task::spawn_blocking(move || Trust::load_or_nobody(&trust)).await;
    let trust = read.unwrap_or_else(|error| Trust::Unreadable(error.to_string()));
    if let Trust::Unreadable(why) = &trust {
        error!(why, "THE KEYS OF [trust] CANNOT BE READ; nothing is installed until they can be");
    }
    trust
}
