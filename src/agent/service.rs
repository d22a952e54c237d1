//! The service: the actors with their adapters, and the servers beside them.
//!
//! The order of start and stop is drawn in [`agent`](super).

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_agent_actors::crash_point;
use guest_agent_actors::error::Chain;
use guest_agent_actors::messages::Save;
use guest_agent_actors::ports::{Machine, Storage, StoreHealth};
use guest_agent_actors::system::{self, System};
use guest_agent_proto::local;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::adapters::Adapters;
use super::args::RunArgs;
use super::fault::Fault;
use super::report::{self, Module, Modules};
use super::signals::{Request, Signals};
use super::tasks::{Task, Tasks};
use super::{goodbye, memory, reconfigure, settings};
use crate::agent::shutdown;
use crate::agent::systemd::{self, Notifier, Watched};
use crate::api::audit::AuditLog;
use crate::api::commands::CommandSocket;
use crate::api::host::{self, HostApi};
use crate::api::http::Http;
use crate::api::local::LocalApi;
use crate::api::peers;
use crate::config::{Auth, Config, ProcessEnvironment};
use crate::enroll::files::Identity;
use crate::enroll::renew;
use crate::forward::Forwarder;
use crate::hostinfo::machine::MachineFacts;
use crate::install::Pipeline;
use crate::link::Link;
use crate::net::certificates::{Certificates, Use};
use crate::net::socket::{self, Access};
use crate::observe::forwarding::Forwarding;
use crate::observe::log;
use crate::observe::metrics::{Sources, TokenExpiries};
use crate::observe::otlp::Telemetry;
use crate::os::heap;
use crate::process::admission::PluginHost;
use crate::process::cgroup::Cgroups;
use crate::process::launch::ProcessLauncher;
use crate::process::logs::Keeping;
use crate::store::StateLock;
use crate::store::loss_reporter::LossReporter;

/// The time after which the client certificate is read again, in case that it was renewed.
const CERTIFICATE_PAUSE: Duration = Duration::from_secs(60);

/// A service that runs.
pub(super) struct Service {
    args: RunArgs,
    /// The configuration in effect; its receivers see every change.
    effective: watch::Sender<Arc<Config>>,
    system: System,
    launcher: Arc<ProcessLauncher>,
    installer: Arc<Pipeline>,
    storage: Arc<dyn Storage>,
    admission: PluginHost,
    link: Link,
    cgroups: Cgroups,
    telemetry: Option<Telemetry>,
    notifier: Notifier,
    tasks: Tasks,
    /// The server for plugins, if its socket could be made.
    host: Option<host::Serving>,
    local_socket: PathBuf,
    /// Stops the local API from taking connections, when it is dropped as well.
    stop_api: oneshot::Sender<()>,
    /// Cancelled at the end, so that streams of pages and of offers end.
    ending: CancellationToken,
    /// Cancelled when nothing prints any more, so that the last lines of plugins are forwarded.
    last_lines: CancellationToken,
    /// Dropped last: after that, another agent may take the state directory.
    _lock: StateLock,
}

// === impl Service ===

impl Service {
    /// Starts the actors, the servers and the tasks beside them. A server whose socket cannot be
    /// made is left out, with an error in the log: plugins run without it.
    pub(super) async fn start(args: RunArgs, adapters: Adapters, started_at: SystemTime) -> Self {
        let config = &args.config;
        let degraded = adapters.degraded;
        let settings = settings::settings(
            config,
            adapters.destination,
            adapters.service_url,
            degraded.as_ref(),
        );
        let core_begun_at = SystemTime::now();
        let system = system::start(adapters.ports, settings).await;
        let mut modules = Modules::default();
        modules.succeeded(Module::Core, core_begun_at);
        adapters.listener.serve(&system);

        let mut tasks = Tasks::default();
        let (link, logs) = (adapters.link, adapters.logs);
        let (instance_id, boot) = (adapters.machine.instance_id(), adapters.machine.boot_id());
        let ending = CancellationToken::new();
        let registry = host::registry_service(system.offers.clone(), ending.clone());
        let host = HostApi {
            launcher: adapters.launcher.clone(),
            registry: system.registry.clone(),
            service: registry.clone(),
            prober: adapters.prober,
            counters: adapters.counters.clone(),
        };
        let host = serve_host(host, config, ending.clone()).await;
        let http_health = watch::Sender::default();
        let audit =
            AuditLog { store: system.store.clone().recipient(), storage: adapters.storage.clone() };
        let (expiries, token_expiries) = watch::channel(TokenExpiries::default());
        let forwarding = Forwarding::default();
        let certificates = Certificates::default();
        let api = LocalApi {
            registry,
            manager: system.manager.clone(),
            control_plane: system.control_plane.clone(),
            vm_events: system.vm_events.clone(),
            scheduler: system.scheduler.clone(),
            readiness: system.readiness.clone(),
            changes: system.roster.clone(),
            outbox: system.events.clone(),
            storage: adapters.storage.clone(),
            audit: audit.clone(),
            sweep: system.sweep.clone(),
            gate: system.gate(),
            spool: adapters.installer.spool(),
            rpc: adapters.rpc,
            link: link.watch_state(),
            http: http_health.subscribe(),
            forwarding: forwarding.clone(),
            certificates: certificates.clone(),
            logs: logs.clone(),
            plugins_dir: adapters.places.plugins,
            local_plugin_dir: config.agent.local_plugin_dir.clone(),
            data_dir: adapters.places.state,
            instance_id: adapters.machine.instance_id(),
            machine: Arc::new(machine(MachineFacts::read(), config)),
            started_at,
        };
        let (effective, in_effect) = watch::channel(Arc::new(config.clone()));
        let sources = Sources {
            manager: system.manager.clone(),
            backlog: system.backlog.clone(),
            counts: adapters.counts,
            forwarding: forwarding.clone(),
            offers: system.offers.clone(),
            link: link.clone(),
            link_state: link.watch_state(),
            store: adapters.storage.health(),
            token_expiries,
            readiness: system.readiness.clone(),
            connections: adapters.counters.clone(),
            certificates: certificates.clone(),
            started_at,
        };
        let mut telemetry = adapters.telemetry;
        if let Some(telemetry) = &mut telemetry {
            telemetry.export_metrics(config, sources.clone());
        }
        let http = Http {
            api: api.clone(),
            sources,
            config: in_effect.clone(),
            health: http_health,
            expiries,
            launcher: adapters.launcher.clone(),
            levels: adapters.levels.clone(),
            counters: adapters.counters.clone(),
            certificates: certificates.clone(),
            ending: ending.clone(),
        };
        tasks.start(Task::Http, http.serve());
        follow_client_certificate(config, certificates, &mut tasks);
        renew_client_certificate(config, &mut tasks);
        let (stop_api, api_stopped) = oneshot::channel::<()>();
        let counters = adapters.counters;
        let (launcher, counted) = (adapters.launcher.clone(), counters.clone());
        tasks.start(Task::LocalApi, async move {
            let stop = async {
                // A dropped sender means the same as a sent one: stop.
                drop(api_stopped.await);
            };
            drop(api.serve(adapters.listening, launcher, adapters.levels, &counted, stop).await);
        });
        let commands = CommandSocket {
            vm_events: system.vm_events.clone(),
            audit,
            config: in_effect,
            counters,
            vet: peers::judge("command.sock", adapters.launcher.clone()),
        };
        serve_commands(config, commands, &mut modules, &mut tasks).await;
        if let Some(link_task) = adapters.link_task {
            tasks.start(Task::Link, link_task);
        }

        let attributes = adapters.attributes;
        tasks.start(Task::StartReport, report::send(link.clone(), attributes.state(), modules));
        let following = attributes.follow(adapters.facts, adapters.memory, adapters.machine);
        tasks.start(Task::Attributes, following);
        let last_lines = CancellationToken::new();
        let forwarder = Forwarder {
            logs: logs.clone(),
            config: effective.subscribe(),
            figures: forwarding,
            instance_id,
            boot,
            ending: last_lines.clone(),
        };
        tasks.start(Task::LogForwarding, forwarder.run());
        let keeping = Keeping::ByThisProgram { cgroups: adapters.cgroups.clone() };
        tasks.start(Task::LogTrimming, logs.watch(keeping));
        let notifier = Notifier::from_environment(&ProcessEnvironment);
        inform(&notifier, &system, (&link, adapters.storage.health()), &mut tasks);
        let reporter = LossReporter {
            storage: adapters.storage.clone(),
            store: system.store.clone().recipient(),
            agent: config.agent.name.clone(),
        };
        tasks.start(Task::LossReport, reporter.run());
        if let Some(degraded) = degraded {
            let events = degraded.event(&config.agent.name).into_iter().collect();
            system.store.do_send(Save { events, ..Save::default() });
            tasks.start(Task::StateDirectory, degraded.until_usable());
        }
        tasks.start(Task::LogLossReport, log::report_unwritten());
        if heap::KEEPS_FREED {
            let giving_back = memory::give_back_after_bursts(system.events.events.subscribe());
            tasks.start(Task::GivingMemoryBack, giving_back);
        }
        let local_socket = adapters.local_socket;
        crash_point::reach("before", "ready", "agent");
        info!(socket = %local_socket.display(), version = env!("CARGO_PKG_VERSION"), "ready");
        Self {
            args,
            effective,
            system,
            launcher: adapters.launcher,
            installer: adapters.installer,
            storage: adapters.storage,
            admission: adapters.admission,
            link,
            cgroups: adapters.cgroups,
            telemetry,
            notifier,
            tasks,
            host,
            local_socket,
            stop_api,
            ending,
            last_lines,
            _lock: adapters.lock,
        }
    }

    /// Runs until a signal ends it, or until a necessary part has ended.
    pub(super) async fn run_until(&mut self, signals: &mut Signals) -> Option<Fault> {
        let mut actor_ended = pin!(self.system.ended());
        loop {
            tokio::select! {
                request = signals.next() => match request {
                    Request::Stop => return None,
                    Request::Reload => {
                        let Self { args, effective, system, launcher, installer, .. } = self;
                        self.notifier.reloading().await;
                        let sources = &args.sources;
                        reconfigure::reload(sources, effective, system, launcher, installer).await;
                        self.notifier.reloaded().await;
                    }
                },
                actor = &mut actor_ended => return Some(Fault::Actor(actor)),
                fault = self.tasks.fault() => return Some(fault),
            }
        }
    }

    /// Stops everything, in the order that is drawn in [`agent`](super). What was acknowledged is
    /// written to the store before the sockets' files are removed.
    pub(super) async fn stop(mut self, fault: Option<&Fault>) {
        self.notifier.stopping().await;
        if let Some(telemetry) = &self.telemetry {
            telemetry.flush();
        }
        let stops_plugins = self.stops_plugins(fault);
        match fault {
            Some(fault) if stops_plugins => error!(%fault, "stopping, to be started again"),
            Some(fault) => error!(%fault, "stopping, to be started again; plugins run on"),
            None if stops_plugins => info!("stopping; the plugins stop, too"),
            None => info!("stopping; plugins run on"),
        }
        if fault.is_none() && (stops_plugins || shutdown::is_machine_going_down().await) {
            goodbye::notify_shutdown(&self.system).await;
        }
        for task in [
            Task::LogTrimming,
            Task::StartReport,
            Task::Attributes,
            Task::ServiceManager,
            Task::LossReport,
            Task::LogLossReport,
            Task::GivingMemoryBack,
            Task::StateDirectory,
            Task::ClientCertificate,
            Task::Renewal,
        ] {
            self.tasks.end(task).await;
        }
        self.link.close();
        self.tasks.end(Task::Link).await;
        self.ending.cancel();
        self.tasks.end(Task::Http).await;
        if let Some(host) = self.host {
            host.end().await;
        }
        drop(self.stop_api);
        // Followers keep their streams open; they are cut.
        self.tasks.end(Task::LocalApi).await;
        self.system.close_gate();
        self.admission.close().await;
        if stops_plugins {
            goodbye::stop_plugins(&self.system, &*self.launcher).await;
        }
        goodbye::flush(&self.system, &*self.storage).await;
        self.last_lines.cancel();
        self.tasks.end(Task::LogForwarding).await;
        if self.tasks.end(Task::CommandSocket).await {
            drop(std::fs::remove_file(self.args.config.agent.command_socket()));
        }
        drop(std::fs::remove_file(&self.local_socket));
        self.cgroups.leave();
        log::report_last_unwritten();
        if let Some(telemetry) = self.telemetry {
            telemetry.end().await;
        }
    }

    /// An agent that lost a part of itself is started again at once, and finds its plugins running.
    /// As the agent of another instance it would not know them.
    fn stops_plugins(&self, fault: Option<&Fault>) -> bool {
        match fault {
            None => self.args.stop_plugins,
            Some(Fault::AnotherMachine) => true,
            Some(
                Fault::Actor(_) | Fault::LocalSocket | Fault::Link | Fault::StateDirectoryIsBack,
            ) => false,
        }
    }
}

/// Keeps the service manager informed, where there is one.
fn inform(
    notifier: &Notifier,
    system: &System,
    (link, store): (&Link, watch::Receiver<StoreHealth>),
    tasks: &mut Tasks,
) {
    let beat = systemd::watchdog_beat(&ProcessEnvironment);
    let watched = Watched {
        list: system.manager.clone().recipient(),
        roster: system.roster.clone(),
        link: link.watch_state(),
        store,
        readiness: system.readiness.clone(),
    };
    let notifier = notifier.clone();
    tasks.start(Task::ServiceManager, async move {
        if notifier.is_used() {
            systemd::keep_informed(notifier, beat, watched).await;
        }
    });
}

/// Follows when the certificate ends that the agent shows to its control plane, if it has one.
fn follow_client_certificate(config: &Config, certificates: Certificates, tasks: &mut Tasks) {
    let control = &config.control_plane;
    if control.enabled && control.auth == Auth::Mtls {
        let file = control.client_cert.clone().into();
        let following = certificates.follow(Use::ControlPlane, file, CERTIFICATE_PAUSE);
        tasks.start(Task::ClientCertificate, async {
            following.await;
        });
    }
}

/// Renews the certificate that the agent shows to its control plane, if a fleet issued it.
fn renew_client_certificate(config: &Config, tasks: &mut Tasks) {
    let (control, identity) = (&config.control_plane, Identity::below(&config.agent.state_dir));
    let is_shown = identity.agent() == Path::new(&control.client_cert);
    if control.enabled && control.auth == Auth::Mtls && is_shown {
        tasks.start(Task::Renewal, async {
            renew::keep(identity).await;
        });
    }
}

/// Serves the JSON command socket, where it is wanted. The agent does its work without it: a
/// failure to make it is logged as an error and ends nothing.
async fn serve_commands(
    config: &Config,
    commands: CommandSocket,
    modules: &mut Modules,
    tasks: &mut Tasks,
) {
    if !config.api.command_socket_enabled {
        modules.disabled(Module::Commands);
        return;
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
            error!(error = %Chain(&error), "continues without the command socket");
            modules.failed(Module::Commands, begun_at, Chain(&error).to_string());
            return;
        }
    };
    modules.succeeded(Module::Commands, begun_at);
    tasks.start(Task::CommandSocket, commands.serve(listener));
}

/// Serves the socket that plugins call. Plugins run without it, so a failure to make it is logged
/// as an error and ends nothing.
async fn serve_host(
    host: HostApi,
    config: &Config,
    ending: CancellationToken,
) -> Option<host::Serving> {
    match host.serve(&config.agent.host_socket(), ending).await {
        Ok(serving) => Some(serving),
        Err(error) => {
            error!(
                error = %Chain(&error),
                "continues without the host socket: plugins cannot call"
            );
            None
        }
    }
}

/// The machine as the local API shows it.
fn machine(facts: MachineFacts, config: &Config) -> local::Machine {
    let MachineFacts { host, os, kernel, architecture, booted_at } = facts;
    let labels = config.labels.clone().into_iter().collect();
    local::Machine { host, os, kernel, architecture, booted_at: booted_at.map(Into::into), labels }
}
