//! Policies, seen from inside a plugin. Most tests need root: another user may not change the user
//! of a process.

use std::collections::BTreeMap;

use super::*;
use crate::config::policy::{Account, Capabilities, Limit, LimitName, Policy, Seccomp, Umask};

/// A user that owns nothing, and its group.
const NOBODY: u32 = 65534;

/// `CAP_NET_BIND_SERVICE`.
const BIND: u64 = 1 << 10;

/// Whether this test can run. Prints a line where it cannot.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: only root may change what plugins are");
    }
    root
}

fn has_landlock() -> bool {
    let there = Host::look().landlock >= crate::process::sandbox::LANDLOCK_WHOLE;
    if !there {
        eprintln!("skipped: no Landlock in this kernel that is new enough");
    }
    there
}

fn nobody() -> Policy {
    Policy { user: Some(Account::Id(NOBODY)), ..Policy::default() }
}

impl Bed {
    /// A bed in which plugins have these policies, and which other users may enter.
    fn with_policies<const N: usize>(policies: [(&str, Policy); N]) -> Self {
        let bed = Self::new();
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(bed.dir.path(), mode).unwrap();
        let named = policies.map(|(name, policy)| (name.parse().unwrap(), policy));
        bed.launcher.use_policies(Policies { named: named.into(), ..Policies::default() });
        bed
    }

    /// Runs a script to its end and reads what it left in its state directory as `told`.
    async fn told_by(&self, name: &str, script: &str) -> String {
        let spec =
            self.plugin(name, &format!("{{ {script}\n}} > $GUEST_AGENT_STATE_DIR/told 2>&1"));
        let error = self.launch(&spec).await.unwrap_err();
        assert!(matches!(error, LaunchError::Exited { .. }), "{}", chain(&error));
        self.read(&format!("state/{name}/told"))
    }
}

fn chain(error: &LaunchError) -> String {
    guest_agent_actors::error::Chain(error).to_string()
}

/// The fields of a `/proc/<pid>/status` that a script printed.
fn status(told: &str) -> BTreeMap<&str, &str> {
    told.lines().filter_map(|line| line.split_once(':')).map(|(k, v)| (k, v.trim())).collect()
}

fn set(bits: u64) -> String {
    format!("{bits:016x}")
}

#[tokio::test]
async fn a_plugin_of_another_user_has_its_files_and_no_privileges() {
    if !is_root() {
        return;
    }
    let bed = Bed::with_policies([("p", nobody())]);
    let before = bed.told_by("p", "echo as root").await;
    assert_eq!(before, "as root\n");
    // The folder exists by now, and root's files are in it.
    bed.launcher.use_policies(Policies::default());
    let told = bed.told_by("p", "touch $GUEST_AGENT_STATE_DIR/roots; stat -c owner:%u $0").await;
    assert_eq!(told, "owner:0\n");
    let named = [("p".parse().unwrap(), nobody())];
    bed.launcher.use_policies(Policies { named: named.into(), ..Policies::default() });
    let script = "cat /proc/self/status; echo x >> $GUEST_AGENT_STATE_DIR/roots && echo wrote:1
        echo home:$HOME; a=${4#--address=}; echo socket:$a
        touch $a && echo socketable:1; rm $a; touch ../x || echo install:closed
        touch ../../../run/plugins/x || echo common:closed";
    let told = bed.told_by("p", script).await;
    let status = status(&told);
    let four = ["65534"; 4].join("\t");
    assert_eq!((status["Uid"], status["Gid"], status["Groups"]), (&*four, &*four, ""), "{told}");
    for sets in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(status[sets], set(0), "{sets}");
    }
    assert_eq!((status["wrote"], status["socketable"], status["install"]), ("1", "1", "closed"));
    assert_eq!(status["common"], "closed");
    assert_eq!(status["socket"], bed.dir.path().join("run/confined/p/r1.sock").to_str().unwrap());
    assert_ne!(status["home"], std::env::var("HOME").unwrap_or_default());
    let spec = bed.plugin("p", "echo line >> /dev/stderr");
    bed.launch(&spec).await.unwrap_err();
    assert_eq!(bed.read("log/plugins/p.log"), "line\n", "its output can be opened once more");
    let mode = std::fs::metadata(bed.dir.path().join("run/plugins")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "others' sockets are as closed as they were");
    // And back to root.
    bed.launcher.use_policies(Policies::default());
    let told =
        bed.told_by("p", "stat -c %u $GUEST_AGENT_STATE_DIR $GUEST_AGENT_STATE_DIR/roots").await;
    assert_eq!(told, "0\n0\n");
}

#[tokio::test]
async fn only_the_named_capabilities_are_kept_by_root_and_by_others() {
    if !is_root() {
        return;
    }
    let kept = Some(Capabilities::Only(BIND));
    let root = Policy { capabilities: kept, ..Policy::default() };
    let other = Policy { capabilities: kept, ..nobody() };
    let none = Policy { capabilities: Some(Capabilities::Only(0)), ..Policy::default() };
    let bed = Bed::with_policies([("root", root), ("other", other), ("none", none)]);
    for (name, bits) in [("root", BIND), ("other", BIND), ("none", 0)] {
        let told = bed.told_by(name, "cat /proc/self/status").await;
        let status = status(&told);
        for sets in ["CapPrm", "CapEff", "CapBnd"] {
            assert_eq!(status[sets], set(bits), "{name}: {sets}");
        }
    }
    let told = bed.told_by("none", "mount -t tmpfs none /mnt || echo refused").await;
    assert!(told.contains("refused"), "{told}");
}

#[tokio::test]
async fn a_plugin_without_a_policy_feels_nothing_of_others() {
    if !is_root() {
        return;
    }
    let strict = Policy {
        capabilities: Some(Capabilities::Only(0)),
        seccomp: Some(Seccomp::Default),
        umask: Some(Umask::parse("0077").unwrap()),
        oom_score_adj: Some(500),
        ..nobody()
    };
    let bed = Bed::with_policies([("strict", strict)]);
    let script =
        "cat /proc/self/status; echo umask:$(umask); echo oom:$(cat /proc/self/oom_score_adj)";
    let told = bed.told_by("strict", script).await;
    let strict = status(&told);
    assert_eq!((strict["umask"], strict["oom"], strict["Seccomp"]), ("0077", "500", "2"));
    let told = bed.told_by("usual", script).await;
    let usual = status(&told);
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let own = status(&own);
    for same in ["Uid", "Gid", "Groups", "CapPrm", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp"] {
        assert_eq!(usual[same], own[same], "{same}");
    }
    assert_eq!((usual["umask"], usual["oom"]), ("0022", "0"));
}

#[tokio::test]
async fn dangerous_system_calls_are_refused_and_usual_ones_are_not() {
    let seccomp = Policy { seccomp: Some(Seccomp::Default), ..Policy::default() };
    let bed = Bed::with_policies([("p", seccomp)]);
    let script = "cat /proc/self/status; unshare -m true || echo new-mounts:refused
        unshare -U true || echo new-users:refused; mount -t tmpfs none /mnt || echo a-mount:refused
        hostname x || echo a-name:refused
        (sleep 0 | cat) && sh -c 'exit 0' && date > /dev/null && echo usual:works";
    let told = bed.told_by("p", script).await;
    let status = status(&told);
    assert_eq!((status["Seccomp"], status["NoNewPrivs"]), ("2", "1"));
    for call in ["new-mounts", "new-users", "a-mount", "a-name"] {
        assert_eq!(status.get(call), Some(&"refused"), "{call}: {told}");
    }
    assert!(told.contains("Operation not permitted"), "{told}");
    assert_eq!(status["usual"], "works", "{told}");
}

#[tokio::test]
async fn a_plugin_with_walls_reaches_its_files_and_no_others() {
    if !has_landlock() {
        return;
    }
    let bed = Bed::with_policies([]);
    let outside = |name: &str| bed.dir.path().join(name);
    for name in ["open", "readable", "closed"] {
        std::fs::create_dir(outside(name)).unwrap();
        std::fs::write(outside(name).join("file"), "content\n").unwrap();
    }
    let policy = Policy {
        read_only_paths: Some(vec![outside("readable"), outside("absent")]),
        read_write_paths: Some(vec![outside("open")]),
        ..Policy::default()
    };
    let named = [("p".parse().unwrap(), policy)];
    bed.launcher.use_policies(Policies { named: named.into(), ..Policies::default() });
    let script = format!(
        "cd {}; try() {{ what=$1; shift; if \"$@\" 2> /dev/null; then echo $what:yes; else echo $what:no; fi; }}
        put() {{ echo x > $1; }}
        try read-open cat open/file; try write-open put open/new; try read-readable cat readable/file
        try write-readable put readable/file; try truncate-readable truncate -s 0 readable/file
        try read-closed cat closed/file; try write-closed put closed/new; try list-closed ls closed
        try state put $GUEST_AGENT_STATE_DIR/own; try other put state/q
        try socket put run/confined/p/r1.sock; try others-socket put run/plugins/x.sock
        try shadow cat /etc/shadow; try tmp put /tmp/guest-agent-test-$$; try null put /dev/null",
        bed.dir.path().display()
    );
    let told = bed.told_by("p", &script).await;
    let status = status(&told);
    for may in ["read-open", "write-open", "read-readable", "state", "socket", "null"] {
        assert_eq!(status[may], "yes", "{may}: {told}");
    }
    for may_not in [
        "write-readable",
        "truncate-readable",
        "read-closed",
        "write-closed",
        "list-closed",
        "other",
        "others-socket",
        "shadow",
        "tmp",
    ] {
        assert_eq!(status[may_not], "no", "{may_not}: {told}");
    }
    assert_eq!(std::fs::read_to_string(outside("readable/file")).unwrap(), "content\n");
}

#[tokio::test]
async fn a_private_folder_for_temporary_files_is_used_and_the_common_one_is_closed() {
    if !has_landlock() {
        return;
    }
    let private = Policy { private_tmp: Some(true), ..Policy::default() };
    let bed = Bed::with_policies([("p", private)]);
    let script = "echo tmp:$TMPDIR; f=$(mktemp) && echo made:$f; touch /tmp/guest-agent-$$ || echo tmp-is:closed
        touch /var/tmp/guest-agent-$$ || echo var-tmp-is:closed; ls /etc > /dev/null && echo rest:open";
    let told = bed.told_by("p", script).await;
    let status = status(&told);
    let own = bed.dir.path().join("state/p/tmp");
    assert_eq!(status["tmp"], own.to_str().unwrap());
    assert!(status["made"].starts_with(status["tmp"]), "{told}");
    for (what, how) in [("tmp-is", "closed"), ("var-tmp-is", "closed"), ("rest", "open")] {
        assert_eq!(status.get(what), Some(&how), "{what}: {told}");
    }
}

#[tokio::test]
async fn resource_limits_are_those_of_the_policy() {
    let limit = |name: &str| LimitName::parse(name).unwrap();
    let rlimits = [(limit("nofile"), Limit::At(64)), (limit("core"), Limit::At(0))];
    let policy = Policy { rlimits: rlimits.into(), ..Policy::default() };
    let bed = Bed::with_policies([("p", policy)]);
    let told = bed.told_by("p", "cat /proc/self/limits").await;
    let line = |name: &str| {
        let line = told.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(line("Max open files"), ["64", "64"]);
    assert_eq!(line("Max core file size"), ["0", "0"]);
}

#[tokio::test]
async fn a_step_that_the_kernel_refuses_is_named_and_nothing_runs() {
    // More than any process may have, also one of root.
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").unwrap();
    let most: u64 = most.trim().parse().unwrap();
    let nofile = LimitName::parse("nofile").unwrap();
    let policy = Policy { rlimits: [(nofile, Limit::At(most + 1))].into(), ..Policy::default() };
    let mut bed = Bed::new();
    // The host claims that it can be done.
    on(Host { capabilities: u64::MAX, ..Host::look() }, &mut bed, policy);
    let spec = bed.plugin("p", "touch ../../../ran");
    let text = chain(&bed.launch(&spec).await.unwrap_err());
    assert!(text.contains("set a limit of rlimits") && text.contains("fs.nr_open"), "{text}");
    assert!(text.contains("plugins/p/r1/run"), "{text}");
    assert!(!bed.dir.path().join("ran").exists());
}

#[tokio::test]
async fn a_user_that_does_not_exist_keeps_the_plugin_from_running_as_another() {
    let user = Some(Account::parse("no-such-user").unwrap());
    let bed = Bed::with_policies([("p", Policy { user, ..Policy::default() })]);
    let spec = bed.plugin("p", "touch ../../../ran");
    let text = chain(&bed.launch(&spec).await.unwrap_err());
    assert!(text.contains("\"no-such-user\", which does not exist"), "{text}");
    assert!(!bed.dir.path().join("ran").exists());
}

/// A machine that can do nothing: no root, no Landlock, no filters.
fn weak() -> Host {
    Host { landlock: 0, seccomp: false, capabilities: 0, ..Host::look() }
}

fn demanding() -> Policy {
    Policy {
        read_only_paths: Some(Vec::new()),
        seccomp: Some(Seccomp::Default),
        capabilities: Some(Capabilities::Only(BIND)),
        ..nobody()
    }
}

fn on(host: Host, bed: &mut Bed, policy: Policy) {
    let named = [("p".parse().unwrap(), policy)];
    let mut config = bed.launcher.shared.config.clone();
    config.host = host;
    config.policies = Policies { named: named.into(), ..Policies::default() };
    bed.launcher = ProcessLauncher::new(config, Arc::new(GrpcPluginRpc::new())).unwrap();
}

#[tokio::test]
async fn what_a_machine_cannot_enforce_keeps_only_a_plugin_that_requires_it_from_running() {
    let mut bed = Bed::new();
    let required = Policy { required: Some(true), ..demanding() };
    on(weak(), &mut bed, required);
    let spec = bed.plugin("p", "touch ../../../ran");
    let text = chain(&bed.launch(&spec).await.unwrap_err());
    for part in ["user 65534", "Landlock", "seccomp", "CAP_NET_BIND_SERVICE", "required = false"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    assert!(!bed.dir.path().join("ran").exists());
    on(weak(), &mut bed, demanding());
    let told = bed.told_by("p", "cat /proc/self/status").await;
    assert_eq!(status(&told)["Seccomp"], "0");
}

#[tokio::test]
async fn a_plugin_that_requires_its_policy_does_not_run_outside_of_a_group() {
    let mut bed = Bed::new();
    let outside = |bed: &mut Bed, required| {
        let policy = Policy { required: Some(required), ..Policy::default() };
        on(Host::look(), bed, policy);
        let mut config = bed.launcher.shared.config.clone();
        config.cgroups = Cgroups::broken();
        bed.launcher = ProcessLauncher::new(config, Arc::new(GrpcPluginRpc::new())).unwrap();
    };
    outside(&mut bed, true);
    let spec = bed.plugin("p", "touch ../../../ran");
    let text = chain(&bed.launch(&spec).await.unwrap_err());
    for part in ["cannot enter the control group", "no-groups-here", "required = false"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    assert!(!bed.dir.path().join("ran").exists());
    outside(&mut bed, false);
    assert_eq!(bed.told_by("p", "echo runs").await, "runs\n");
}

#[tokio::test]
async fn a_process_of_another_user_is_found_again_with_its_own_socket() {
    if !is_root() {
        return;
    }
    let bed = Bed::with_policies([("p", nobody())]);
    let spec = bed.plugin("p", "sleep 1000; exit");
    let (tell, spawned) = oneshot::channel();
    let process = tokio::select! {
        _ = bed.launcher.launch(spec.clone(), None, tell) => panic!("nobody listens"),
        process = spawned => process.unwrap(),
    };
    let next = bed.another_life();
    let found = next.find(&spec.name, None).await.unwrap();
    assert_eq!(found, Some(process.clone()), "it was never recorded");
    let socket = bed.dir.path().join("run/confined/p/r1.sock");
    let watched = next.adopt(&spec.name, &process).await.unwrap();
    assert_eq!(watched.endpoint, Some(Endpoint::unix(socket.to_str().unwrap())));
    let wipe = StopOrder { cleanup: Cleanup::Wipe, ..order(&spec, None, StopManner::AtOnce) };
    next.stop(wipe).await.unwrap();
    assert!(!lives(process.pid));
    assert!(!bed.dir.path().join("run/confined").exists(), "its folder is left");
}

#[tokio::test]
async fn a_socket_of_somebody_else_is_not_taken_for_the_plugins() {
    if !is_root() {
        return;
    }
    let bed = Bed::with_policies([("p", nobody())]);
    // The listener is root: this very process.
    let victim = bed.dir.path().join("victim.sock");
    let answers = Script::default();
    let _server = answers.serve(&victim);
    let script = format!("ln -s {} ${{4#--address=}}; exec sleep 1000", victim.display());
    let mut spec = Arc::unwrap_or_clone(bed.plugin("p", &script));
    spec.start.timeout = Duration::from_millis(700);
    let error = bed.launch(&Arc::new(spec)).await.unwrap_err();
    assert!(matches!(error, LaunchError::NotListening { .. }), "{error:?}");
    assert_eq!(answers.asked(), Vec::<String>::new(), "the agent was led to another's socket");
}

#[tokio::test]
async fn a_run_of_another_user_can_read_its_configuration() {
    use guest_agent_actors::model::spec::{Kind, OneShot, Triggers};
    if !is_root() {
        return;
    }
    let bed = Bed::with_policies([("p", nobody())]);
    let script =
        "told=$GUEST_AGENT_STATE_DIR/told; cat $GUEST_AGENT_CONFIG > $told; id -u >> $told";
    let mut spec = Arc::unwrap_or_clone(bed.plugin("p", script));
    let once = OneShot { triggers: Triggers::default(), timeout: PATIENCE };
    spec.execution.kind = Kind::OneShot(once);
    bed.launch(&Arc::new(spec)).await.unwrap();
    assert_eq!(bed.wait_for_file("state/p/told").await, "secret65534\n");
}

/// A process that is connected to a socket until it is ended, with a plugin's mark. `None` where
/// there is no program that could be one.
fn connected(socket: &Path, plugin: &str) -> Option<std::process::Child> {
    let script = "import socket, sys\n\
                  it = socket.socket(socket.AF_UNIX); it.connect(sys.argv[1]); sys.stdin.read()";
    let child = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(socket)
        .env("GUEST_AGENT_PLUGIN", plugin)
        .stdin(std::process::Stdio::piped())
        .spawn();
    if child.is_err() {
        eprintln!("SKIPPED: no python3 that would connect");
    }
    child.ok()
}

#[tokio::test]
async fn without_groups_a_confined_plugin_is_known_by_its_mark_and_one_that_ended_is_refused() {
    let confined = Policy { no_new_privileges: Some(true), ..Policy::default() };
    let bed = Bed::with_policies([("p", confined)]);
    let socket = bed.dir.path().join("agent.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let judge = async |plugin: &str, ends: bool| {
        let mut child = connected(&socket, plugin)?;
        let (stream, _) = listener.accept().await.unwrap();
        if ends {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let judged = bed.launcher.judge_peer(&stream).await;
        drop(child.kill());
        child.wait().unwrap();
        Some(judged.map_err(|refused| refused.to_string()))
    };
    let Some(refused) = judge("p", false).await else { return };
    assert!(refused.unwrap_err().contains("plugins.p.agent_socket = true"));
    assert_eq!(judge("q", false).await, Some(Ok(())), "no policy confines it");
    let gone = judge("q", true).await.unwrap().unwrap_err();
    assert!(gone.contains("ended"), "{gone}");
    // Where no policy confines a plugin, no caller is judged.
    bed.launcher.use_policies(Policies::default());
    assert_eq!(judge("p", true).await, Some(Ok(())));
}
