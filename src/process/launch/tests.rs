//! Real processes: shell scripts as plugins, and a gRPC server in this process where one is needed.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use guest_agent_actors::model::id::{Endpoint, RevisionId, Sha256Digest};
use guest_agent_actors::model::spec::{
    Artifact, ArtifactUrl, Config, EntryPoint, Execution, Limits, MetricsPolicy, Source, Tries,
};
use guest_agent_actors::ports::{Cleanup, StopManner};
use tonic::Code;

use super::*;
use crate::process::launch::process_table::Census;
use crate::process::rpc::tests::Script;

mod confined;
mod sockets;

/// Longer than anything may take on a busy machine; only a failing test waits that long.
const PATIENCE: Duration = Duration::from_secs(20);

/// A launcher with directories of its own.
struct Bed {
    dir: tempfile::TempDir,
    launcher: ProcessLauncher,
}

impl Bed {
    fn new() -> Self {
        Self::with(Transport::Unix)
    }

    fn with(transport: Transport) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let launcher = Self::launcher_in(dir.path(), transport);
        Self { dir, launcher }
    }

    fn launcher_in(root: &Path, transport: Transport) -> ProcessLauncher {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let config = LauncherConfig {
            cgroups: Cgroups::none(),
            plugins_dir: root.join("plugins"),
            state_root: root.join("state"),
            runtime_dir: root.join("run"),
            logs: PluginLogs::new(root.join("log/plugins"), Some(root.join("state")), 1000),
            host_socket: root.join("host.sock"),
            transport,
            boot: BootId(boot.trim().into()),
            host: Host::look(),
            policies: Policies::default(),
            stop_grace: Duration::from_secs(2),
        };
        ProcessLauncher::new(config, Arc::new(GrpcPluginRpc::new())).unwrap()
    }

    /// A launcher that knows nothing of this one, as an agent has after its restart.
    fn another_life(&self) -> ProcessLauncher {
        Self::launcher_in(self.dir.path(), Transport::Unix)
    }

    /// A plugin that is this script.
    fn plugin(&self, name: &str, script: &str) -> Arc<PluginSpec> {
        let folder = self.dir.path().join("plugins").join(name).join("r1");
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("run");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let tries = Tries { attempts: 1, timeout: PATIENCE };
        Arc::new(PluginSpec {
            name: name.parse().unwrap(),
            revision: "r1".parse::<RevisionId>().unwrap(),
            source: Source::Archive(Artifact {
                url: ArtifactUrl::new("https://none.invalid/x"),
                sha256: Sha256Digest::of(b""),
            }),
            entry_point: EntryPoint::parse("run").unwrap(),
            arguments: vec!["--mine".into(), "a b".into()],
            limits: Limits::default(),
            download: tries,
            start: tries,
            stop_timeout: PATIENCE,
            metrics: MetricsPolicy { interval: PATIENCE, points: 1 },
            backoff_factor: 1,
            config: Some(Config::Text("secret".into())),
            execution: Execution::default(),
            order_digest: None,
        })
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join("run/plugins").join(format!("{name}_r1.sock"))
    }

    /// Launches a script while this process answers its calls.
    async fn launch_answered(&self, spec: &Arc<PluginSpec>, answers: &Script) -> Launched {
        let (tell, spawned) = oneshot::channel();
        let serve = async {
            spawned.await.unwrap();
            answers.serve(&self.socket(spec.name.as_str()))
        };
        let (launched, _server) =
            tokio::join!(self.launcher.launch(spec.clone(), None, tell), serve);
        launched.unwrap()
    }

    async fn launch(&self, spec: &Arc<PluginSpec>) -> Result<Launched, LaunchError> {
        self.launcher.launch(spec.clone(), None, oneshot::channel().0).await
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(file)).unwrap()
    }

    async fn wait_for_file(&self, file: &str) -> String {
        let path = self.dir.path().join(file);
        eventually(|| std::fs::read_to_string(&path).ok().filter(|t| t.ends_with('\n'))).await
    }

    /// Pids that a script wrote into a file, one per line.
    async fn pids(&self, file: &str, count: usize) -> Vec<u32> {
        let path = self.dir.path().join(file);
        eventually(|| {
            let text = std::fs::read_to_string(&path).ok()?;
            let pids: Vec<u32> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
            (pids.len() == count).then_some(pids)
        })
        .await
    }
}

impl Drop for Bed {
    /// A failed test leaves no process either.
    fn drop(&mut self) {
        let census = Census::now().unwrap();
        for name in std::fs::read_dir(self.dir.path().join("plugins")).into_iter().flatten() {
            let name: PluginName = name.unwrap().file_name().to_str().unwrap().parse().unwrap();
            for member in self.launcher.family(&name, None).members(&census) {
                drop(member.pidfd.signal(rustix::process::Signal::KILL));
            }
        }
    }
}

async fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(since.elapsed() < PATIENCE, "waited too long");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn lives(pid: u32) -> bool {
    Pidfd::open(pid).is_ok_and(|pidfd| !pidfd.is_dead())
}

fn order(spec: &PluginSpec, launched: Option<&Launched>, manner: StopManner) -> StopOrder {
    StopOrder {
        name: spec.name.clone(),
        process: launched.map(|l| l.process.clone()),
        endpoint: launched.map(|l| l.endpoint.clone()),
        cleanup: Cleanup::Keep,
        manner,
    }
}

const POLITELY: StopManner = StopManner::Politely { timeout: PATIENCE };

// === launching ===

#[tokio::test]
async fn a_plugin_that_exits_at_once_fails_at_once_with_cause_and_output() {
    let bed = Bed::new();
    let spec = bed.plugin("p", "echo out; echo err >&2; exit 7");
    let began = Instant::now();
    let error = bed.launch(&spec).await.unwrap_err();
    assert!(began.elapsed() < PATIENCE / 2);
    match error {
        LaunchError::Exited { cause, output } => {
            assert_eq!(cause, ExitCause::Exited(7));
            assert_eq!(output, "out\nerr");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_plugin_that_never_listens_times_out_and_leaves_no_process() {
    let bed = Bed::new();
    let script = "echo $$ > ../../../pids; sleep 1000 & echo $! >> ../../../pids; wait";
    let mut spec = Arc::unwrap_or_clone(bed.plugin("p", script));
    spec.start.timeout = Duration::from_millis(300);
    let error = bed.launch(&Arc::new(spec)).await.unwrap_err();
    assert!(matches!(error, LaunchError::NotListening { .. }), "{error:?}");
    for pid in bed.pids("pids", 2).await {
        assert!(!lives(pid), "{pid} is left");
    }
}

#[tokio::test]
async fn a_started_plugin_was_told_its_directory_and_configuration() {
    let bed = Bed::new();
    let spec = bed.plugin("p", "exec sleep 1000");
    let answers = Script::default();
    let launched = bed.launch_answered(&spec, &answers).await;
    assert_eq!(launched.endpoint, Endpoint::unix(bed.socket("p").to_str().unwrap()));
    let dir = bed.dir.path().join("state/p");
    let told = format!("start {} Some(StringConfig(\"secret\"))", dir.display());
    assert_eq!(answers.asked(), [told]);
    assert_eq!(std::fs::metadata(dir).unwrap().permissions().mode() & 0o777, 0o700);
    bed.launcher.stop(order(&spec, Some(&launched), StopManner::AtOnce)).await.unwrap();
    assert!(!lives(launched.process.pid));
    assert!(!bed.socket("p").exists());
}

#[tokio::test]
async fn a_refused_start_is_reported_and_leaves_no_process() {
    let bed = Bed::new();
    let spec = bed.plugin("p", "echo hello; exec sleep 1000");
    let answers = Script { start: Some(Code::FailedPrecondition), ..Script::default() };
    let (tell, spawned) = oneshot::channel();
    let launch = bed.launcher.launch(spec.clone(), None, tell);
    let serve = async {
        let process = spawned.await.unwrap();
        bed.wait_for_file("log/plugins/p.log").await;
        (process, answers.serve(&bed.socket("p")))
    };
    let (launched, (process, _server)) = tokio::join!(launch, serve);
    match launched.unwrap_err() {
        LaunchError::Refused { code, message, output } => {
            assert_eq!((&*code, &*message, &*output), ("FAILED_PRECONDITION", "no start", "hello"));
        }
        other => panic!("{other:?}"),
    }
    assert!(!lives(process.pid));
}

#[tokio::test]
async fn a_start_that_is_not_answered_in_time_fails_and_leaves_no_process() {
    let bed = Bed::new();
    let mut spec = Arc::unwrap_or_clone(bed.plugin("p", "exec sleep 1000"));
    spec.start.timeout = Duration::from_millis(500);
    let answers = Script { delay: PATIENCE * 3, ..Script::default() };
    let (tell, spawned) = oneshot::channel();
    let launch = bed.launcher.launch(Arc::new(spec), None, tell);
    let serve = async {
        let process = spawned.await.unwrap();
        (process, answers.serve(&bed.socket("p")))
    };
    let (launched, (process, _server)) = tokio::join!(launch, serve);
    assert!(matches!(launched, Err(LaunchError::NoAnswer { .. })), "{launched:?}");
    assert!(!lives(process.pid));
}

#[tokio::test]
async fn a_plugin_that_dies_in_its_start_is_reported_with_its_cause() {
    let bed = Bed::new();
    let spec =
        bed.plugin("p", "while [ ! -e ../../../go ]; do sleep 0.01; done; echo ouch; exit 6");
    let answers = Script { delay: PATIENCE * 3, ..Script::default() };
    let (tell, spawned) = oneshot::channel();
    let die = async {
        spawned.await.unwrap();
        let _server = answers.serve(&bed.socket("p"));
        eventually(|| answers.asked().first().cloned()).await;
        std::fs::write(bed.dir.path().join("go"), "").unwrap();
    };
    let (launched, ()) = tokio::join!(bed.launcher.launch(spec.clone(), None, tell), die);
    match launched.unwrap_err() {
        LaunchError::Exited { cause, output } => {
            assert_eq!((cause, &*output), (ExitCause::Exited(6), "ouch"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn two_plugins_whose_names_run_together_get_sockets_of_their_own() {
    let bed = Bed::new();
    let first = bed.plugin("a", "exec sleep 1000");
    let mut first = Arc::unwrap_or_clone(first);
    first.revision = "b_c".parse().unwrap();
    let plugins = bed.dir.path().join("plugins");
    std::fs::rename(plugins.join("a/r1"), plugins.join("a/b_c")).unwrap();
    let (tell, spawned) = oneshot::channel();
    let launcher = bed.launcher.clone();
    let _launch = tokio::spawn(async move { launcher.launch(Arc::new(first), None, tell).await });
    spawned.await.unwrap();
    let mut second = Arc::unwrap_or_clone(bed.plugin("a_b", "exit 0"));
    second.revision = "c".parse().unwrap();
    let socket = bed.launcher.free_socket(&second).await;
    assert_ne!(socket, bed.dir.path().join("run/plugins/a_b_c.sock"));
}

#[tokio::test]
async fn a_launch_clears_the_sockets_that_earlier_revisions_left() {
    let bed = Bed::new();
    let path = |file: &str| bed.dir.path().join("run/plugins").join(file);
    let listen = |file: &str| std::os::unix::net::UnixListener::bind(path(file)).unwrap();
    for left in ["p_r0.sock", "p_q_r0.sock", "pq_r0.sock"] {
        drop(listen(left));
    }
    let _listening = listen("p_r2.sock");
    std::fs::write(path("p_r3.sock"), "no socket").unwrap();
    // A plugin at whose address a socket may be as well.
    drop(bed.launcher.gate(&"p_q".parse().unwrap()).await);
    let spec = bed.plugin("p", "exec sleep 1000");
    let launched = bed.launch_answered(&spec, &Script::default()).await;
    let exists = |file| path(file).exists();
    assert!(!exists("p_r0.sock"), "it is left");
    for other in ["p_q_r0.sock", "pq_r0.sock", "p_r2.sock", "p_r3.sock", "p_r1.sock"] {
        assert!(exists(other), "{other} was deleted");
    }
    // A stop removes the socket that was made meanwhile.
    drop(listen("p_r0.sock"));
    bed.launcher.stop(order(&spec, Some(&launched), StopManner::AtOnce)).await.unwrap();
    assert!(!exists("p_r0.sock") && !exists("p_r1.sock"));
}

#[tokio::test]
async fn nobody_waits_for_somebody_else_to_reap() {
    let bed = Bed::new();
    let spec = bed.plugin("p", "exec sleep 1000");
    // A parent that reaps no child: the launcher sees the child as it sees one of an earlier agent.
    let mut parent = std::process::Command::new("sh");
    parent.args(["-c", "./run & echo $! > ../../../pid; exec sleep 1000"]);
    parent.current_dir(bed.dir.path().join("plugins/p/r1"));
    let mut parent = parent.spawn().unwrap();
    let pid = bed.pids("pid", 1).await[0];
    let start_ticks = eventually(|| procfs::stat(pid)).await.start_ticks;
    let process = Process { pid, start_ticks, boot: bed.launcher.shared.config.boot.clone() };
    let watched = bed.launcher.adopt(&spec.name, &process).await.unwrap();
    watched.kill();
    tokio::time::timeout(PATIENCE, watched.put_away()).await.unwrap();
    assert!(!lives(pid));
    let reaped = futures_util::FutureExt::now_or_never(watched.gone());
    assert_eq!(reaped, None, "it was waited for the reaping, which never comes");
    let stop = order(&spec, None, StopManner::AtOnce);
    assert!(bed.launcher.stop(stop).await.is_ok());
    parent.kill().unwrap();
    parent.wait().unwrap();
}

#[tokio::test]
async fn a_socket_file_that_nobody_listens_on_is_tried_again() {
    let bed = Bed::new();
    let spec = bed.plugin("p", "exec sleep 1000");
    let answers = Script::default();
    let (tell, spawned) = oneshot::channel();
    let serve = async {
        spawned.await.unwrap();
        // Bound, then closed: the file stays and refuses.
        drop(std::os::unix::net::UnixListener::bind(bed.socket("p")).unwrap());
        tokio::time::sleep(Duration::from_millis(30)).await;
        std::fs::remove_file(bed.socket("p")).unwrap();
        answers.serve(&bed.socket("p"))
    };
    let (launched, _server) = tokio::join!(bed.launcher.launch(spec.clone(), None, tell), serve);
    launched.unwrap();
}

#[tokio::test]
async fn a_dropped_launch_leaves_a_process_that_stop_ends() {
    let bed = Bed::new();
    let spec = bed.plugin("p", "exec sleep 1000");
    let (tell, spawned) = oneshot::channel();
    let process = tokio::select! {
        _ = bed.launcher.launch(spec.clone(), None, tell) => panic!("nobody listens"),
        process = spawned => process.unwrap(),
    };
    assert!(lives(process.pid));
    assert_eq!(bed.launcher.find(&spec.name, None).await.unwrap(), Some(process.clone()));
    let stopped = bed.launcher.stop(order(&spec, None, StopManner::AtOnce)).await.unwrap();
    assert_eq!(stopped, Stopped::Ended(ExitCause::Signaled(9)));
    assert!(!lives(process.pid));
}

#[tokio::test]
async fn a_launch_begins_by_ending_what_is_left_of_the_plugin() {
    let bed = Bed::new();
    let script = "setsid sleep 1000 & echo $! >> ../../../pids; exit 3";
    let spec = bed.plugin("p", script);
    bed.launch(&spec).await.unwrap_err();
    let first = bed.pids("pids", 1).await;
    // A crash after a successful launch leaves its helpers until the next launch.
    let spec = bed.plugin("p", "setsid sleep 1000 & echo $! >> ../../../pids; exec sleep 1000");
    let launched = bed.launch_answered(&spec, &Script::default()).await;
    let second = bed.pids("pids", 2).await[1];
    let pidfd = Pidfd::open(launched.process.pid).unwrap();
    pidfd.signal(rustix::process::Signal::KILL).unwrap();
    let cause = bed.launcher.exited(&spec.name, &launched.process).await;
    assert_eq!(cause, ExitCause::Signaled(9));
    let spec = bed.plugin("p", "exit 4");
    bed.launch(&spec).await.unwrap_err();
    assert!(!lives(first[0]) && !lives(second));
}

#[tokio::test]
async fn a_plugin_gets_its_arguments_environment_and_nothing_else() {
    let bed = Bed::new();
    // The plugin must not have the agent's own score.
    std::fs::write("/proc/self/oom_score_adj", "1").unwrap();
    // Open without the close-on-exec flag, as a careless library would.
    let leaked = rustix::io::dup(std::fs::File::open("/proc/self/status").unwrap()).unwrap();
    let script = r#"{ for a in "$@"; do echo "arg $a"; done
        env | sed 's/^/env /'; echo "cwd $PWD"; echo "oom $(cat /proc/self/oom_score_adj)"
        echo "umask $(umask)"; for f in /proc/$$/fd/*; do echo "fd ${f##*/} $(readlink $f)"; done
        grep Sig /proc/self/status; read line || echo eof
        cut -d' ' -f6 /proc/$$/stat | sed "s/^$$\$/own session/"; } > ../../../told 2>&1
        mv ../../../told ../../../all; exit 0"#;
    let spec = bed.plugin("p", script);
    bed.launch(&spec).await.unwrap_err();
    drop(leaked);
    let told = bed.read("all");
    let has = |line: &str| assert!(told.lines().any(|l| l == line), "no {line:?} in\n{told}");
    let root = bed.dir.path().display();
    let args: Vec<&str> = told.lines().filter_map(|l| l.strip_prefix("arg ")).collect();
    let socket = format!("--address={}", bed.socket("p").display());
    let errors = format!("--errorlogfile={root}/state/p/plugin.log");
    assert_eq!(args, ["--mine", "a b", "--protocol=unix", &socket, &errors]);
    has("env GUEST_AGENT_PLUGIN=p");
    has("env GUEST_AGENT_REVISION=r1");
    has(&format!("env GUEST_AGENT_STATE_DIR={root}/state/p"));
    has(&format!("env GUEST_AGENT_HOST_SOCKET={root}/host.sock"));
    let allowed = ["PATH", "LANG", "TZ", "HOME", "PWD", "OLDPWD", "SHLVL", "_"];
    for line in told.lines().filter_map(|l| l.strip_prefix("env ")) {
        let key = line.split('=').next().unwrap();
        assert!(allowed.contains(&key) || key.starts_with("GUEST_AGENT_"), "{line}");
    }
    let ticket = told.lines().find_map(|l| l.strip_prefix("env GUEST_AGENT_TICKET=")).unwrap();
    assert!(ticket.len() >= 43);
    has(&format!("cwd {root}/plugins/p/r1"));
    has("oom 0");
    has("umask 0022");
    has("eof");
    has("own session");
    assert!(!told.contains("status\n"), "a descriptor leaked:\n{told}");
    for kind in ["SigBlk", "SigIgn"] {
        let value = told.lines().find_map(|l| l.strip_prefix(&format!("{kind}:\t"))).unwrap();
        assert_eq!(u64::from_str_radix(value, 16).unwrap(), 0, "{kind}");
    }
}

/// The plugin that a launcher finds for a ticket.
fn ticket_owner(launcher: &ProcessLauncher, ticket: &str) -> Option<PluginName> {
    match launcher.holder(ticket) {
        Holder::Plugin { name, .. } => Some(name),
        Holder::ComingBack(_) | Holder::Nobody => None,
    }
}

#[tokio::test]
async fn what_an_earlier_life_left_is_found_and_new_names_are_not_looked_for() {
    let bed = Bed::new();
    let left = bed.plugin("left", "sleep 1000; exit 0");
    let launched = bed.launch_answered(&left, &Script::default()).await;
    let next = bed.another_life();
    let lookout = &next.shared.lookout;
    // As long as an earlier agent process may have begun something a moment ago, all names are
    // looked for.
    assert_eq!(next.find(&"new".parse().unwrap(), None).await.unwrap(), None);
    assert_eq!(lookout.asked(), 1);
    next.shared.strangers.age();
    for name in ["new", "newer", "newest"] {
        assert_eq!(next.find(&name.parse().unwrap(), None).await.unwrap(), None);
    }
    assert_eq!(lookout.asked(), 2, "one look serves for all new names");
    assert_eq!(next.find(&left.name, None).await.unwrap(), Some(launched.process));
    next.stop(order(&left, None, StopManner::AtOnce)).await.unwrap();
    // The search for processes of a name that this launcher has launched happens again.
    let asked = lookout.asked();
    let new = bed.plugin("fresh", "sleep 1000 & exec sleep 1000");
    let (tell, spawned) = oneshot::channel();
    tokio::select! {
        _ = next.launch(new.clone(), None, tell) => panic!("nobody listens"),
        spawned = spawned => drop(spawned.unwrap()),
    }
    assert_eq!(lookout.asked(), asked, "nothing can be left of a new name");
    next.stop(order(&new, None, StopManner::AtOnce)).await.unwrap();
    assert!(lookout.asked() > asked);
}

#[tokio::test]
async fn a_ticket_names_its_plugin_until_it_is_stopped() {
    let bed = Bed::new();
    let spec = bed.plugin("p", "echo $GUEST_AGENT_TICKET > ../../../ticket; exec sleep 1000");
    let launched = bed.launch_answered(&spec, &Script::default()).await;
    let ticket = bed.wait_for_file("ticket").await;
    assert_eq!(ticket_owner(&bed.launcher, ticket.trim()), Some(spec.name.clone()));
    assert_eq!(ticket_owner(&bed.launcher, "x"), None);
    // The agent restarts, finds the plugin, and knows its ticket again.
    let next = bed.another_life();
    assert_eq!(next.holder(ticket.trim()), Holder::ComingBack(spec.name.clone()));
    assert_eq!(
        next.find(&spec.name, Some(&launched.process)).await.unwrap(),
        Some(launched.process)
    );
    assert_eq!(ticket_owner(&next, ticket.trim()), Some(spec.name.clone()));
    next.stop(order(&spec, None, StopManner::AtOnce)).await.unwrap();
    assert_eq!(ticket_owner(&next, ticket.trim()), None);
}

#[tokio::test]
async fn a_program_that_cannot_be_executed_names_path_and_fix() {
    let bed = Bed::new();
    let spec = bed.plugin("p", "exit 0");
    let path = bed.dir.path().join("plugins/p/r1/run");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = bed.launch(&spec).await.unwrap_err();
    let text = guest_agent_actors::error::Chain(&error).to_string();
    assert!(text.contains("plugins/p/r1/run") && text.contains("chmod +x"), "{text}");
    std::fs::remove_file(&path).unwrap();
    let error = bed.launch(&spec).await.unwrap_err();
    let text = guest_agent_actors::error::Chain(&error).to_string();
    assert!(text.contains("no such file"), "{text}");
}

#[tokio::test]
async fn a_plugin_on_tcp_gets_a_loopback_port() {
    let bed = Bed::with(Transport::Tcp);
    let spec = bed.plugin("p", "echo \"$@\" > ../../../args; exit 5");
    bed.launch(&spec).await.unwrap_err();
    let args = bed.wait_for_file("args").await;
    assert!(args.contains("--protocol=tcp --address=127.0.0.1:"), "{args}");
}

/// A folder in which folders can be made and sockets cannot.
struct WithoutSockets(PathBuf);

impl WithoutSockets {
    fn new() -> Option<Self> {
        let all = Path::new("/sys/fs/cgroup");
        let places = [all.join("pids"), all.to_owned(), all.join("unified")];
        // The path of a socket has to fit into 107 bytes.
        let name = format!("ga-test-{:08x}", rand::random::<u32>());
        places
            .into_iter()
            .map(|place| place.join(&name))
            .find(|it| std::fs::create_dir(it).is_ok())
            .map(Self)
    }
}

impl Drop for WithoutSockets {
    fn drop(&mut self) {
        for dir in [self.0.join("plugins"), self.0.clone()] {
            std::fs::remove_dir(dir).unwrap();
        }
    }
}

#[tokio::test]
async fn a_place_without_unix_sockets_means_a_loopback_port_until_it_is_mended() {
    let Some(place) = WithoutSockets::new() else {
        eprintln!("skipped: this user can make no folder of a kind that has no sockets");
        return;
    };
    if address::try_socket(&place.0).is_ok() {
        std::fs::create_dir(place.0.join("plugins")).unwrap();
        eprintln!("skipped: sockets can be made in {}", place.0.display());
        return;
    }
    let mut bed = Bed::new();
    let mut config = bed.launcher.shared.config.clone();
    config.runtime_dir = place.0.clone();
    bed.launcher = ProcessLauncher::new(config, Arc::new(GrpcPluginRpc::new())).unwrap();
    let spec = bed.plugin("p", "echo \"$@\" >> ../../../args; exit 5");
    bed.launch(&spec).await.unwrap_err();
    let args = bed.wait_for_file("args").await;
    assert!(args.contains("--protocol=tcp --address=127.0.0.1:"), "{args}");

    bed.launcher = bed.another_life();
    bed.launch(&spec).await.unwrap_err();
    let args = bed.wait_for_file("args").await;
    assert!(args.lines().last().unwrap().contains("--protocol=unix"), "{args}");
}

/// A control group of this test's own in which memory is short; `None` where none can be made.
fn scarce_memory(name: &str) -> Option<PathBuf> {
    let group = Path::new("/sys/fs/cgroup/memory").join(name);
    std::fs::create_dir(&group).ok()?;
    std::fs::write(group.join("memory.limit_in_bytes"), "16777216").ok()?;
    std::fs::File::open("/dev/kmsg").ok()?;
    Some(group)
}

#[tokio::test]
async fn a_plugin_that_the_kernel_kills_for_memory_is_reported_so() {
    let Some(group) = scarce_memory(&format!("guest-agent-test-{}", std::process::id())) else {
        eprintln!("not tested: this machine has no memory control group to write to");
        return;
    };
    let bed = Bed::new();
    let enter = format!("echo $$ > {}/cgroup.procs", group.display());
    let spec = bed.plugin("p", &format!("{enter}; exec tail /dev/zero"));
    let error = bed.launch(&spec).await.unwrap_err();
    let cause = match error {
        LaunchError::Exited { cause, .. } => cause,
        other => panic!("{other:?}"),
    };
    std::fs::remove_dir(&group).unwrap();
    assert!(matches!(cause, ExitCause::OutOfMemory { .. }), "{cause:?}");
}

// === stopping ===

#[tokio::test]
async fn helpers_of_every_kind_end_with_their_plugin() {
    let bed = Bed::new();
    let script = "sleep 1000 & echo $! >> ../../../pids
        setsid sleep 1000 & echo $! >> ../../../pids
        sh -c 'setsid sh -c \"echo \\$\\$ >> ../../../pids; exec sleep 1000\" &'
        env -i sleep 1000 & echo $! >> ../../../pids
        trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let spec = bed.plugin("p", script);
    let launched = bed.launch_answered(&spec, &Script::default()).await;
    let pids = bed.pids("pids", 4).await;
    let mut order = order(&spec, Some(&launched), POLITELY);
    order.endpoint = None;
    let stopped = bed.launcher.stop(order).await.unwrap();
    assert_eq!(stopped, Stopped::Ended(ExitCause::Exited(0)));
    for pid in pids {
        assert!(!lives(pid), "{pid} is left");
    }
}

#[tokio::test]
async fn a_polite_stop_calls_stop_and_takes_the_plugins_own_exit() {
    let bed = Bed::new();
    let spec = bed.plugin("p", "while [ ! -e ../../../go ]; do sleep 0.01; done; exit 0");
    let answers = Script::default();
    let launched = bed.launch_answered(&spec, &answers).await;
    let mut order = order(&spec, Some(&launched), POLITELY);
    order.cleanup = Cleanup::Wipe;
    let leave = async {
        let asked = eventually(|| answers.asked().get(1).cloned()).await;
        assert_eq!(asked, format!("stop true {}", PATIENCE.as_secs()));
        std::fs::write(bed.dir.path().join("go"), "").unwrap();
    };
    let (stopped, ()) = tokio::join!(bed.launcher.stop(order), leave);
    assert_eq!(stopped.unwrap(), Stopped::Ended(ExitCause::Exited(0)));
}

#[tokio::test]
async fn a_plugin_that_ignores_stop_and_sigterm_is_killed() {
    let bed = Bed::new();
    let spec = bed.plugin("p", "trap '' TERM; while :; do sleep 0.1; done");
    let launched = bed.launch_answered(&spec, &Script::default()).await;
    let timeout = Duration::from_millis(100);
    let order = order(&spec, Some(&launched), StopManner::Politely { timeout });
    let stopped = bed.launcher.stop(order).await.unwrap();
    assert_eq!(stopped, Stopped::Ended(ExitCause::Signaled(9)));
    assert!(!lives(launched.process.pid));
    assert!(procfs::stat(launched.process.pid).is_none(), "a zombie is left");
}

/// Stops a plugin that answers Stop and then stays until SIGTERM; returns how long the launcher let
/// it stay.
async fn stop_one_that_stays(bed: &Bed, answers: &Script, timeout: Duration) -> Duration {
    let spec = bed.plugin("p", "trap 'exit 3' TERM; while :; do sleep 0.05; done");
    let launched = bed.launch_answered(&spec, answers).await;
    let began = Instant::now();
    let order = order(&spec, Some(&launched), StopManner::Politely { timeout });
    let stopped = bed.launcher.stop(order).await.unwrap();
    assert_eq!(stopped, Stopped::Ended(ExitCause::Exited(3)), "SIGTERM ends it");
    began.elapsed()
}

#[tokio::test]
async fn a_plugin_that_answers_stop_and_stays_gets_sigterm_after_the_grace() {
    let refuses = |code| Script { stop: Some(code), ..Script::default() };
    let grace = Duration::from_millis(700);
    for answers in [Script::default(), refuses(Code::Internal), refuses(Code::Unimplemented)] {
        let bed = Bed::new();
        bed.launcher.use_stop_grace(grace);
        let took = stop_one_that_stays(&bed, &answers, PATIENCE).await;
        assert!((grace..PATIENCE / 2).contains(&took), "{took:?}");
    }
}

#[tokio::test]
async fn a_policy_gives_one_plugin_more_time_after_its_answer_and_no_other() {
    let bed = Bed::new();
    bed.launcher.use_stop_grace(Duration::ZERO);
    let flushes = |name: &str, grace| {
        let policy = Policy { stop_grace: Some(grace), ..Policy::default() };
        Policies { named: [(name.parse().unwrap(), policy)].into(), ..Policies::default() }
    };
    bed.launcher.use_policies(flushes("other", PATIENCE / 2));
    let took = stop_one_that_stays(&bed, &Script::default(), PATIENCE).await;
    assert!(took < PATIENCE / 2, "{took:?}");
    let grace = Duration::from_millis(700);
    bed.launcher.use_policies(flushes("p", grace));
    let took = stop_one_that_stays(&bed, &Script::default(), PATIENCE).await;
    assert!((grace..PATIENCE / 2).contains(&took), "{took:?}");
}

#[tokio::test]
async fn the_grace_never_goes_beyond_the_time_that_the_stop_may_take() {
    let bed = Bed::new();
    bed.launcher.use_stop_grace(PATIENCE);
    let timeout = Duration::from_millis(700);
    let took = stop_one_that_stays(&bed, &Script::default(), timeout).await;
    assert!((timeout..PATIENCE / 2).contains(&took), "{took:?}");
}

#[tokio::test]
async fn stopping_what_does_not_run_finds_nothing() {
    let bed = Bed::new();
    let spec = bed.plugin("p", "exit 0");
    let stopped = bed.launcher.stop(order(&spec, None, POLITELY)).await.unwrap();
    assert_eq!(stopped, Stopped::NothingRan);
}

#[tokio::test]
async fn a_recycled_pid_is_neither_found_nor_signalled() {
    let bed = Bed::new();
    let spec = bed.plugin("p", "exit 0");
    let mut stranger = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let start_ticks = procfs::stat(stranger.id()).unwrap().start_ticks;
    let boot = bed.launcher.shared.config.boot.clone();
    let recorded = Process { pid: stranger.id(), start_ticks: start_ticks + 1, boot };
    assert_eq!(bed.launcher.find(&spec.name, Some(&recorded)).await.unwrap(), None);
    assert_eq!(bed.launcher.exited(&spec.name, &recorded).await, ExitCause::Unknown);
    let mut order = order(&spec, None, StopManner::AtOnce);
    order.process = Some(recorded);
    assert_eq!(bed.launcher.stop(order).await.unwrap(), Stopped::NothingRan);
    assert!(lives(stranger.id()), "a stranger was killed");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

// === an earlier agent process ===

/// Starts a process that is no child of this test, with a plugin's markers.
fn orphan(bed: &Bed, name: &str, script: &str) {
    orphan_with(bed, (name, "r1"), &[], script);
}

/// The same of a revision, with arguments before the last one.
fn orphan_with(bed: &Bed, (name, revision): (&str, &str), arguments: &[String], script: &str) {
    let status = std::process::Command::new("/bin/sh")
        .args(["-c", &format!("setsid sh -c '{script}' sh \"$@\" >/dev/null 2>&1 &"), "sh"])
        .args(arguments)
        .args(bed.launcher.error_log_argument(&name.parse().unwrap()).to_str())
        .env("GUEST_AGENT_PLUGIN", name)
        .env("GUEST_AGENT_STATE_DIR", bed.dir.path().join("state").join(name))
        .env("GUEST_AGENT_REVISION", revision)
        .env("DIR", bed.dir.path())
        .status()
        .unwrap();
    assert!(status.success());
}

#[tokio::test]
async fn an_unrecorded_process_is_found_by_its_markers_and_its_exit_noticed() {
    let bed = Bed::new();
    let spec = bed.plugin("p", "exit 0");
    orphan(&bed, "p", "echo $$ > $DIR/pids; while [ ! -e $DIR/go ]; do sleep 0.01; done; exit 9");
    let pid = bed.pids("pids", 1).await[0];
    let found = bed.launcher.find(&spec.name, None).await.unwrap().unwrap();
    assert_eq!(found.pid, pid);
    let exited = tokio::spawn({
        let (launcher, name, found) = (bed.launcher.clone(), spec.name.clone(), found.clone());
        async move { launcher.exited(&name, &found).await }
    });
    std::fs::write(bed.dir.path().join("go"), "").unwrap();
    let cause = tokio::time::timeout(PATIENCE, exited).await.unwrap().unwrap();
    // Older kernels cannot tell, and its parent may be slow to reap it.
    assert!([ExitCause::Exited(9), ExitCause::Unknown].contains(&cause), "{cause:?}");
    assert_eq!(
        bed.launcher.find(&spec.name, Some(&found)).await.unwrap(),
        None,
        "a zombie counts as dead"
    );
}

#[tokio::test]
async fn another_process_does_not_take_the_ticket_of_the_living_plugin() {
    let bed = Bed::new();
    let spec = bed.plugin("p", "echo $GUEST_AGENT_TICKET > ../../../ticket; exec sleep 1000");
    bed.launch_answered(&spec, &Script::default()).await;
    let ticket = bed.wait_for_file("ticket").await;
    orphan(&bed, "p", "echo $$ > $DIR/pids; GUEST_AGENT_TICKET=other exec sleep 1000");
    let pid = bed.pids("pids", 1).await[0];
    eventually(|| {
        let environ = procfs::environ(pid)?;
        procfs::variable(&environ, "GUEST_AGENT_TICKET").map(drop)
    })
    .await;
    let start_ticks = procfs::stat(pid).unwrap().start_ticks;
    let boot = bed.launcher.shared.config.boot.clone();
    let other = Process { pid, start_ticks, boot };
    assert_eq!(bed.launcher.find(&spec.name, Some(&other)).await.unwrap(), Some(other));
    assert_eq!(ticket_owner(&bed.launcher, ticket.trim()), Some(spec.name.clone()));
    assert_eq!(ticket_owner(&bed.launcher, "other"), None);
    bed.launcher.stop(order(&spec, None, StopManner::AtOnce)).await.unwrap();
    assert!(!lives(pid));
}

#[tokio::test]
async fn the_end_of_a_process_of_an_earlier_life_is_told_where_the_kernel_knows_it() {
    let bed = Bed::new();
    let spec = bed.plugin("p", "exec sleep 1000");
    let launched = bed.launch_answered(&spec, &Script::default()).await;
    // For this launcher it is no child; its parent, the first launcher, reaps it at once.
    let next = bed.another_life();
    assert!(next.find(&spec.name, Some(&launched.process)).await.unwrap().is_some());
    let exited = next.exited(&spec.name, &launched.process);
    let end = async {
        let pidfd = Pidfd::open(launched.process.pid).unwrap();
        pidfd.signal(rustix::process::Signal::SEGV).unwrap();
    };
    let (cause, ()) = tokio::join!(exited, end);
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let kernel = (numbers.next().unwrap(), numbers.next().unwrap_or(0));
    let tells = kernel >= (6, 15);
    assert_eq!(cause, if tells { ExitCause::Signaled(11) } else { ExitCause::Unknown });
}

#[tokio::test]
async fn a_process_of_an_earlier_life_is_stopped_with_its_helpers() {
    let bed = Bed::new();
    let script = "setsid sleep 1000 & echo $! >> ../../../pids
        while [ ! -e ../../../go ]; do sleep 0.01; done";
    let spec = bed.plugin("p", script);
    let answers = Script::default();
    let launched = bed.launch_answered(&spec, &answers).await;
    let helper = bed.pids("pids", 1).await[0];
    let next = bed.another_life();
    let leave = async {
        eventually(|| answers.asked().get(1).cloned()).await;
        std::fs::write(bed.dir.path().join("go"), "").unwrap();
    };
    let stop = next.stop(order(&spec, Some(&launched), POLITELY));
    let (stopped, ()) = tokio::join!(stop, leave);
    assert!(matches!(stopped, Ok(Stopped::Ended(_))), "{stopped:?}");
    assert!(!lives(launched.process.pid) && !lives(helper));
}

#[tokio::test]
async fn a_helper_that_outlived_its_plugin_is_not_taken_for_it() {
    let bed = Bed::new();
    let script = "setsid sleep 1000 & echo $! >> ../../../pids; exec sleep 1000";
    let spec = bed.plugin("p", script);
    let launched = bed.launch_answered(&spec, &Script::default()).await;
    let helper = bed.pids("pids", 1).await[0];
    let pidfd = Pidfd::open(launched.process.pid).unwrap();
    pidfd.signal(rustix::process::Signal::KILL).unwrap();
    bed.launcher.exited(&spec.name, &launched.process).await;
    let next = bed.another_life();
    assert_eq!(next.find(&spec.name, Some(&launched.process)).await.unwrap(), None);
    assert!(lives(helper));
    next.stop(order(&spec, None, StopManner::AtOnce)).await.unwrap();
    assert!(!lives(helper));
}

#[tokio::test]
async fn another_agents_plugin_of_the_same_name_is_left_alone() {
    let (mine, other) = (Bed::new(), Bed::new());
    let spec = mine.plugin("p", "exit 0");
    other.plugin("p", "exit 0");
    orphan(&other, "p", "echo $$ > $DIR/pids; while :; do sleep 0.1; done");
    let pid = other.pids("pids", 1).await[0];
    assert_eq!(mine.launcher.find(&spec.name, None).await.unwrap(), None);
    mine.launcher.stop(order(&spec, None, StopManner::AtOnce)).await.unwrap();
    assert!(lives(pid));
}

#[tokio::test]
async fn the_oldest_of_several_processes_is_found_and_all_are_ended() {
    let bed = Bed::new();
    let spec = bed.plugin("p", "exit 0");
    orphan(&bed, "p", "echo $$ >> $DIR/pids; while :; do sleep 0.1; done");
    let first = bed.pids("pids", 1).await[0];
    orphan(&bed, "p", "echo $$ >> $DIR/pids; while :; do sleep 0.1; done");
    let pids = bed.pids("pids", 2).await;
    let found = bed.launcher.find(&spec.name, None).await.unwrap().unwrap();
    // Both started within the same tick of the clock, so either may count as the older one.
    let ticks = |pid| procfs::stat(pid).unwrap().start_ticks;
    assert!(found.pid == first || ticks(pids[1]) == found.start_ticks);
    bed.launcher.stop(order(&spec, None, StopManner::AtOnce)).await.unwrap();
    assert!(pids.into_iter().all(|pid| !lives(pid)));
}

// === output ===

#[tokio::test]
async fn the_last_output_is_of_this_launch_also_after_a_trim() {
    let bed = Bed::new();
    let spec = bed.plugin("p", "seq 1000 1400; exit 1");
    bed.launch(&spec).await.unwrap_err();
    let spec = bed.plugin("p", "echo fresh; exit 1");
    bed.launch(&spec).await.unwrap_err();
    assert_eq!(bed.launcher.last_output(&spec.name).await, "fresh");
    bed.launcher.logs().tend_all();
    assert!(bed.read("log/plugins/p.log").len() <= 500);
    assert_eq!(bed.launcher.last_output(&spec.name).await, "fresh");
    assert_eq!(bed.launcher.last_output(&"q".parse().unwrap()).await, "");
}

#[tokio::test]
async fn a_runtime_directory_that_is_too_deep_is_refused_by_name() {
    let bed = Bed::new();
    let mut config = bed.launcher.shared.config.clone();
    config.runtime_dir = bed.dir.path().join("x".repeat(100));
    let error = ProcessLauncher::new(config, Arc::new(GrpcPluginRpc::new())).unwrap_err();
    assert!(error.to_string().contains("xxxx"), "{error}");
}
