//! One launch: from the preparation of a plugin's process to its answer to Start.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use guest_agent_actors::crash_point;
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::id::{Endpoint, PluginName, Process};
use guest_agent_actors::model::runs::Trigger;
use guest_agent_actors::model::spec::{PluginSpec, Source};
use guest_agent_actors::ports::{
    Cause, Cleanup, LaunchError, Launched, RpcError, StopManner, StopOrder, Unenforced,
};
use guest_agent_actors::trace;
use guest_agent_serve_kit::replace::remove_if_there;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::field::Empty;
use tracing::{Instrument, error_span};

use crate::hostinfo::preflight;
use crate::os::pidfd::Pidfd;
use crate::os::procfs;
use crate::process::cgroup::Entrance;
use crate::process::launch::address::Address;
use crate::process::launch::launch_permits;
use crate::process::launch::oom::OomRecord;
use crate::process::launch::spawn::{Child, EXEC_TIMEOUT, Plan, SpawnError, Watchdog};
use crate::process::launch::variables::{
    HOST_SOCKET_VARIABLE, PLUGIN_VARIABLE, REVISION_VARIABLE, STATE_DIR_VARIABLE, TICKET_VARIABLE,
    TRIGGER_VARIABLE,
};
use crate::process::launch::watch::{Subject, Watched};
use crate::process::launch::{
    ProcessLauncher, Transport, address, exec_error, group, make_dir, once, ready,
};
use crate::process::logs;
use crate::process::sandbox::{self, Orders, Owner, Places, Planned};

/// The variables for the user's home and for temporary files.
const HOME_VARIABLE: &str = "HOME";
const TMP_VARIABLE: &str = "TMPDIR";

/// The folder for temporary files in the state directory of a plugin whose policy gives it one.
const OWN_TMP: &str = "tmp";

/// The variables that a plugin inherits from the agent.
const INHERITED: [&str; 4] = ["PATH", "LANG", "TZ", "HOME"];

/// No launch waits longer, whatever is ordered; it also keeps the arithmetic of deadlines in range.
const LONGEST_START: Duration = Duration::from_secs(24 * 3600);

/// How long making directories and files may take before the disk counts as hung.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often, and after which pause, a program that is open for writing is tried again.
const BUSY_TRIES: u32 = 20;
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// A connection that broke during Start most often means that the plugin died. The agent waits this
/// long for the exit status, because that cause is more useful than "connection lost".
const DEATH_GRACE: Duration = Duration::from_millis(500);

/// Why a launch failed before there was a process to wait for.
#[derive(Debug, thiserror::Error)]
enum PrepareError {
    /// A folder that the launch needs cannot be created.
    #[error("failed to create {}", path.display())]
    Make {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    /// The file with the configuration cannot be written.
    #[error("failed to write the plugin's configuration to {}", path.display())]
    HandOver {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    /// The socket of an earlier process cannot be removed.
    #[error("failed to remove the stale socket {}", path.display())]
    StaleSocket {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    /// The kernel assigned no free port on the loopback interface.
    #[error("failed to find a free port")]
    NoPort(#[source] io::Error),
    /// The kernel returned no random bytes.
    #[error("failed to get random bytes for the ticket")]
    NoRandom(#[source] rand::rand_core::OsError),
    /// The kernel gave no pidfd, with which the agent watches and signals the process.
    #[error("failed to open a pidfd for the new process")]
    NoPidfd(#[source] io::Error),
    /// Its policy is required, and it would run outside of its control group.
    #[error(
        "its policy is required, and it cannot enter the control group {group}: {why}; correct that, \
         or set required = false"
    )]
    Outside {
        group: String,
        /// Why not.
        why: String,
    },
    /// The preparation did not end in time.
    #[error("the preparation was interrupted or took too long")]
    Interrupted,
}

/// The prepared parts of a launch.
struct Prepared {
    address: Address,
    output: File,
    /// Variables of its environment that are added to those of every plugin, or replace them.
    variables: Vec<(OsString, OsString)>,
    entrance: Entrance,
    orders: Orders,
    owner: Owner,
    unenforced: Unenforced,
}

impl ProcessLauncher {
    /// Carries out `Launcher::launch`.
    pub(super) async fn start_plugin(
        &self,
        spec: &PluginSpec,
        trigger: Option<Trigger>,
        spawned: oneshot::Sender<Process>,
    ) -> Result<Launched, LaunchError> {
        let turn = self.shared.turns.wait().await;
        launch_permits::during(turn, self.start_now(spec, trigger, spawned)).await
    }

    async fn start_now(
        &self,
        spec: &PluginSpec,
        trigger: Option<Trigger>,
        spawned: oneshot::Sender<Process>,
    ) -> Result<Launched, LaunchError> {
        let (watched, unenforced) = self.make_process(spec, trigger).await?;
        crash_point::reach("after", "spawn", spec.name.as_str());
        // The caller may have dropped the receiver; the process is in the table.
        drop(spawned.send(watched.process.clone()));
        let endpoint = watched.endpoint.clone();
        let endpoint = endpoint.expect("a launched process has an endpoint to listen on");
        if spec.execution.one_shot().is_some() {
            // The agent neither waits for a one-shot plugin to listen nor calls it: only its exit
            // matters.
            return Ok(Launched { process: watched.process.clone(), endpoint, unenforced });
        }
        let started = self.bring_up(spec, &watched, &endpoint).await;
        match started {
            Ok(()) => Ok(Launched { process: watched.process.clone(), endpoint, unenforced }),
            Err(error) => {
                self.give_up(&spec.name, &watched, endpoint).await;
                Err(error)
            }
        }
    }

    /// Ends what is left of the plugin and spawns its process, all under the plugin's gate. From a
    /// successful spawn to the entry in the table nothing is awaited, so dropping the launch cannot
    /// lose it. That is why the spawn happens here, at the price of a millisecond of the runtime.
    async fn make_process(
        &self,
        spec: &PluginSpec,
        trigger: Option<Trigger>,
    ) -> Result<(Arc<Watched>, Unenforced), LaunchError> {
        let name = &spec.name;
        let directory = match &spec.source {
            Source::Archive(_) => {
                self.shared.config.plugins_dir.join(name.as_str()).join(spec.revision.as_str())
            }
            Source::Local(files) => PathBuf::from(&*files.folder),
        };
        // An absolute entry point, which only a local plugin may have, replaces the path of the
        // folder.
        let program = directory.join(spec.entry_point.as_str());
        let failed =
            |cause: Cause| LaunchError::Spawn { program: program.display().to_string(), cause };

        let gate = self.gate(name).await;
        self.end_all(name, None, &gate).await.map_err(|error| failed(error.into()))?;
        let prepared = self.prepare(spec, &program, &directory);
        let preparing = error_span!("prepare", otel.end = Empty);
        let prepared = trace::within(preparing, prepared).await.map_err(failed)?;
        crash_point::reach("before", "spawn", name.as_str());
        self.shared.rpc.forget(&prepared.address.endpoint());
        self.clear_abandoned_sockets(name);
        remove_stale_socket(&prepared.address).map_err(|error| failed(error.into()))?;

        let ticket = self.table().tickets.issue(name);
        let ticket = ticket.map_err(|error| failed(PrepareError::NoRandom(error).into()))?;
        let mut variables = prepared.variables;
        let trigger = trigger.filter(|_| spec.execution.one_shot().is_some());
        variables.extend(trigger.map(|it| (TRIGGER_VARIABLE.into(), it.name().into())));
        let plan = Plan {
            program: program.clone(),
            arguments: self.arguments(spec, &prepared.address),
            environment: self.environment(spec, ticket, variables),
            directory,
            output: prepared.output,
            entrance: Arc::new(prepared.entrance),
            orders: Arc::new(prepared.orders),
        };
        let group = self.shared.config.cgroups.group(name);
        let oom = OomRecord::begin(group.clone());
        let spawning = error_span!("spawn", pid = Empty);
        let mut child = spawn_when_closed(&plan)
            .instrument(spawning.clone())
            .await
            .map_err(|error| failed(exec_error::explain(&program, prepared.owner, error).into()))?;
        let pid = child.id();
        spawning.record("pid", pid);
        drop(spawning);
        // It is a child of this agent and not reaped yet, so its pid belongs to no other process.
        let held = Pidfd::open(pid).and_then(|pidfd| {
            let stat = procfs::stat(pid).ok_or(io::ErrorKind::NotFound)?;
            Ok((pidfd, stat.start_ticks))
        });
        let (pidfd, start_ticks) = match held {
            Ok(held) => held,
            Err(error) => {
                // `Child` has not reaped the process, so the signal reaches only our child.
                drop(child.kill());
                drop(child.wait());
                return Err(failed(PrepareError::NoPidfd(error).into()));
            }
        };
        let process = Process { pid, start_ticks, boot: self.shared.config.boot.clone() };
        let subject = Subject {
            process,
            pidfd,
            endpoint: Some(prepared.address.endpoint()),
            family: self.family(name, None),
            lookout: Arc::clone(&self.shared.lookout),
        };
        let watched = Watched::child(subject, child, oom);
        self.table().slots.entry(name.clone()).or_default().newest = Some(Arc::clone(&watched));
        drop(gate);
        let mut unenforced = prepared.unenforced;
        if !plan.entrance.is_empty() {
            group::report_oom_kills(name.clone(), &group, Arc::clone(&watched));
            unenforced.extend(group::unenforced_if_outside(&watched, group, spec.limits).await);
        }
        for shortfall in &unenforced {
            tracing::warn!(plugin = %name, "{shortfall}");
        }
        Ok((watched, unenforced))
    }

    /// Makes directories and files, and looks at the program, on a blocking thread.
    async fn prepare(
        &self,
        spec: &PluginSpec,
        program: &Path,
        install: &Path,
    ) -> Result<Prepared, Cause> {
        let state_dir = self.state_dir(&spec.name);
        let logs = self.logs().clone();
        let transport = self.shared.config.transport;
        let (policy, host) = (self.policy(&spec.name), self.shared.config.host.clone());
        let confined = self.confined_dir();
        let own_folder = sandbox::needs_own_folder(&policy, &host);
        let (sockets, socket) = if own_folder {
            let socket = address::own_socket(&confined, &spec.name, &spec.revision);
            (socket.parent().unwrap_or(&confined).to_owned(), socket)
        } else {
            (self.sockets_dir(), self.free_socket(spec).await)
        };
        let (program, install) = (program.to_owned(), install.to_owned());
        let config = spec.execution.one_shot().map(|_| spec.config.clone());
        let (name, revision) = (spec.name.clone(), spec.revision.clone());
        let limits = spec.limits;
        let group = self.shared.config.cgroups.group(&name);
        let work = move || -> Result<Prepared, Cause> {
            exec_error::check(&program)?;
            let Planned { mut orders, owner, home, missing, .. } = sandbox::plan(&policy, &host)?;
            let (entrance, of_group, outside) = group::ready(&name, &group, &limits);
            if let Some(why) = &outside
                && policy.required == Some(true)
            {
                return Err(PrepareError::Outside { group: group.path(), why: why.clone() }.into());
            }
            let mut unenforced: Unenforced = missing.into_iter().chain(of_group).collect();
            if let Some(why) = outside
                && sandbox::closes_agent_sockets(&policy)
            {
                unenforced.push(sandbox::open_agent_sockets(&why));
            }
            let common = own_folder.then_some((&confined, 0o711));
            let folders = [(&state_dir, 0o700), (&sockets, 0o700)];
            for (path, mode) in common.into_iter().chain(folders) {
                make_dir(path, mode)
                    .map_err(|error| PrepareError::Make { path: path.clone(), error })?;
            }
            let mut given = false;
            if host.may_change_user() {
                given = give_state(&name, &state_dir, owner)?;
                if own_folder {
                    sandbox::give_folder(&sockets, owner)?;
                }
            }
            let mut variables: Vec<(OsString, OsString)> = Vec::new();
            variables.extend(home.map(|home| (HOME_VARIABLE.into(), home.into())));
            if policy.private_tmp == Some(true) {
                sandbox::make_in_given(&state_dir, OWN_TMP, owner)?;
                variables.push((TMP_VARIABLE.into(), state_dir.join(OWN_TMP).into()));
            }
            let output =
                match make_dir(logs.dir(), 0o750).and_then(|()| logs.begin(&name, &revision)) {
                    Ok(file) => {
                        if given {
                            // The plugin may open its output once more, by its name in /dev.
                            let changed = sandbox::give_file(&file, owner);
                            let path = logs.path(&name);
                            changed.map_err(|error| PrepareError::Make { path, error })?;
                        }
                        file
                    }
                    Err(error) => nowhere(&name, &logs.path(&name), &error)?,
                };
            let address = match transport {
                Transport::Tcp => Address::Tcp(address::free_port().map_err(PrepareError::NoPort)?),
                Transport::Unix => unix_or_loopback(&name, &sockets, socket)?,
            };
            if let Some(config) = &config {
                let told = once::hand_over(&state_dir, config.as_ref(), owner);
                let path = state_dir.clone();
                variables.extend(told.map_err(|error| PrepareError::HandOver { path, error })?);
            }
            for path in [&program, &state_dir.join("x"), &sockets.join("x")] {
                if let Err(closed) = sandbox::may_enter(path, owner) {
                    tracing::warn!(plugin = %name, "{closed}");
                }
            }
            let (install, program) = (&*install, &*program);
            let log = logs.path(&name);
            let (state, sockets, log) = (&*state_dir, &*sockets, &*log);
            let places = Places { install, program, state, sockets, log };
            let (rules, absent) = sandbox::walls(&policy, &host, &places)?;
            orders.landlock = rules;
            unenforced.extend(absent);
            Ok(Prepared { address, output, variables, entrance, orders, owner, unenforced })
        };
        match tokio::time::timeout(PREPARE_TIMEOUT, tokio::task::spawn_blocking(work)).await {
            Ok(Ok(done)) => done,
            Ok(Err(_)) | Err(_) => Err(PrepareError::Interrupted.into()),
        }
    }

    fn arguments(&self, spec: &PluginSpec, address: &Address) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = spec.arguments.iter().map(OsString::from).collect();
        arguments.push(format!("--protocol={}", address.protocol()).into());
        arguments.push(format!("{}{}", address::ADDRESS, address.argument()).into());
        arguments.push(self.error_log_argument(&spec.name));
        arguments
    }

    /// The last of the arguments: no other plugin and no helper has the same one.
    pub(super) fn error_log_argument(&self, name: &PluginName) -> OsString {
        let mut argument = OsString::from("--errorlogfile=");
        argument.push(self.state_dir(name).join(logs::ERROR_LOG));
        argument
    }

    fn environment(
        &self,
        spec: &PluginSpec,
        ticket: String,
        others: Vec<(OsString, OsString)>,
    ) -> Vec<(OsString, OsString)> {
        let mut environment = inherited_environment();
        let own: [(&str, OsString); 5] = [
            (PLUGIN_VARIABLE, spec.name.as_str().into()),
            (REVISION_VARIABLE, spec.revision.as_str().into()),
            (STATE_DIR_VARIABLE, self.state_dir(&spec.name).into()),
            (HOST_SOCKET_VARIABLE, self.shared.config.host_socket.clone().into()),
            (TICKET_VARIABLE, ticket.into()),
        ];
        environment.extend(own.map(|(key, value)| (OsString::from(key), value)));
        environment.retain(|(key, _)| !others.iter().any(|(other, _)| other == key));
        environment.extend(others);
        environment
    }

    /// Waits for the plugin to listen and calls Start, all within the start timeout and only while
    /// the process lives.
    async fn bring_up(
        &self,
        spec: &PluginSpec,
        watched: &Watched,
        endpoint: &Endpoint,
    ) -> Result<(), LaunchError> {
        let waited = spec.start.timeout.min(LONGEST_START);
        let deadline = Instant::now() + waited;
        let connecting = error_span!("connect", otel.end = Empty);
        let connection = tokio::select! {
            biased;
            cause = watched.cause() => return Err(self.exited_early(&spec.name, cause).await),
            connection = trace::within(connecting, ready::listening(endpoint)) => connection,
            () = tokio::time::sleep_until(deadline) => {
                let (endpoint, output) = (endpoint.to_string(), self.output_of(&spec.name).await);
                return Err(LaunchError::NotListening { endpoint, waited, output });
            }
        };

        crash_point::reach("before", "start", spec.name.as_str());
        let state_dir = self.state_dir(&spec.name).display().to_string();
        let left = deadline.saturating_duration_since(Instant::now());
        let config = spec.config.as_ref();
        let start = self.shared.rpc.start(endpoint, connection, &state_dir, config, left);
        let start = trace::within(error_span!("start", otel.end = Empty), start);
        let answer = tokio::select! {
            answer = start => answer,
            cause = watched.cause() => return Err(self.exited_early(&spec.name, cause).await),
        };
        let (code, message) = match answer {
            Ok(()) => return Ok(()),
            Err(RpcError::TimedOut(_)) => {
                let output = self.output_of(&spec.name).await;
                return Err(LaunchError::NoAnswer { waited, output });
            }
            Err(RpcError::Unreachable(message)) => {
                if let Ok(cause) = tokio::time::timeout(DEATH_GRACE, watched.cause()).await {
                    return Err(self.exited_early(&spec.name, cause).await);
                }
                ("UNAVAILABLE".to_owned(), message)
            }
            Err(RpcError::Unimplemented) => {
                ("UNIMPLEMENTED".to_owned(), "it does not implement Start".to_owned())
            }
            Err(RpcError::Refused { code, message }) => (code, message),
        };
        let output = self.output_of(&spec.name).await;
        Err(LaunchError::Refused { code, message, output })
    }

    async fn exited_early(&self, name: &PluginName, cause: ExitCause) -> LaunchError {
        LaunchError::Exited { cause, output: self.output_of(name).await }
    }

    async fn output_of(&self, name: &PluginName) -> String {
        guest_agent_actors::ports::Launcher::last_output(self, name).await
    }

    /// Leaves no process of a failed launch. The log names a process that survives SIGKILL; the
    /// next launch or stop tries to end it again.
    async fn give_up(&self, name: &PluginName, watched: &Watched, endpoint: Endpoint) {
        let order = StopOrder {
            name: name.clone(),
            process: Some(watched.process.clone()),
            endpoint: Some(endpoint),
            cleanup: Cleanup::Keep,
            manner: StopManner::AtOnce,
        };
        if let Err(error) = self.stop_plugin(order).await {
            tracing::warn!(plugin = %name, %error, "a process of a failed launch remains");
        }
    }
}

/// The plugin's socket, or a loopback port where the file system cannot hold sockets. Every launch
/// tries the socket first, so it is used again once the cause is gone.
fn unix_or_loopback(name: &PluginName, dir: &Path, socket: PathBuf) -> Result<Address, Cause> {
    match address::try_socket(dir) {
        Ok(()) => Ok(Address::Unix(socket)),
        Err(error) if address::is_unfit_for_sockets(&error) => {
            let port = address::free_port().map_err(PrepareError::NoPort)?;
            let dir = dir.display();
            tracing::warn!(
                plugin = %name, %dir, %error, %port,
                "unix sockets cannot be made there; the plugin listens on a loopback port this time"
            );
            Ok(Address::Tcp(port))
        }
        Err(error) => Err(PrepareError::Make { path: socket, error }.into()),
    }
}

/// Discards the output of a plugin whose log cannot be made. The plugin runs all the same.
fn nowhere(name: &PluginName, log: &Path, error: &io::Error) -> Result<File, PrepareError> {
    tracing::warn!(
        plugin = %name, log = %log.display(), %error, "the output of a plugin is not kept"
    );
    let path = PathBuf::from("/dev/null");
    let opened = File::options().write(true).open(&path);
    opened.map_err(|error| PrepareError::Make { path, error })
}

/// Makes the plugin's user the owner of its state directory, and returns whether a policy decides
/// the owner.
fn give_state(name: &PluginName, folder: &Path, owner: Owner) -> Result<bool, Cause> {
    let given = sandbox::give_state(folder, owner)?;
    match given {
        None | Some(0) => {}
        Some(linked) => {
            let (folder, user) = (folder.display(), owner.user);
            tracing::warn!(
                plugin = %name, %folder, %user, linked,
                "the plugin's user does not own files that have hard links"
            );
        }
    }
    Ok(given.is_some())
}

/// Makes the plugin's control group and opens it. Returns what the machine cannot enforce, which
/// does not keep the plugin from running. Removes the socket that a former process left at the
/// address of the new one. This is done here and not on another thread, where it could be late and
/// remove the socket of a later launch.
fn remove_stale_socket(address: &Address) -> Result<(), PrepareError> {
    let Address::Unix(path) = address else { return Ok(()) };
    remove_if_there(path).map_err(|error| PrepareError::StaleSocket { path: path.clone(), error })
}

/// The variables that every plugin has, of any kind.
pub(crate) fn inherited_environment() -> Vec<(OsString, OsString)> {
    let mut environment: Vec<(OsString, OsString)> = INHERITED
        .iter()
        .filter_map(|key| Some((OsString::from(key), std::env::var_os(key)?)))
        .collect();
    if !environment.iter().any(|(key, _)| key == "PATH") {
        environment.push(("PATH".into(), preflight::search_path()));
    }
    environment
}

/// Spawns; a program that is still open for writing is tried again for a moment. Whenever another
/// thread of the agent forks while an installation writes, the forked child holds that file open
/// until its own exec.
async fn spawn_when_closed(plan: &Plan) -> Result<Child, SpawnError> {
    for _ in 0..BUSY_TRIES {
        match spawn(plan) {
            Err(failed) if failed.error.kind() == io::ErrorKind::ExecutableFileBusy => {
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            done => return done,
        }
    }
    spawn(plan)
}

/// Makes the process. Another thread acts as a watchdog, because this one is blocked until the
/// child executes its program.
fn spawn(plan: &Plan) -> Result<Child, SpawnError> {
    let watchdog = Watchdog::default();
    let standby = watchdog.clone();
    tokio::task::spawn_blocking(move || standby.stand_by(EXEC_TIMEOUT));
    let made = plan.spawn(&watchdog);
    watchdog.dismiss();
    made
}
