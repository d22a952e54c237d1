//! Policies of this machine, from the configuration to the processes of real plugins.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::signal::Signal;

use crate::harness::{Archive, ArchiveSpec, Bed, orders, signal};
use crate::limits::can_limit;

/// A user that owns nothing, by its number: not every machine has a name for it.
const NOBODY: &str = "65534";

/// Everything that a policy can ask for, of a plugin that still works.
const STRICT: [&str; 11] = [
    "plugins.p.user=65534",
    "plugins.p.group=65534",
    "plugins.p.capabilities=[\"CAP_NET_BIND_SERVICE\"]",
    "plugins.p.no_new_privileges=true",
    "plugins.p.read_only_paths=[]",
    "plugins.p.private_tmp=true",
    "plugins.p.seccomp=default",
    "plugins.p.rlimits.nofile=256",
    "plugins.p.umask=0077",
    "plugins.p.oom_score_adj=300",
    "plugins.p.required=true",
];

/// Says so in one line, where plugins cannot be confined at all.
fn can_confine() -> bool {
    let can = nix::unistd::geteuid().is_root();
    if !can {
        eprintln!("skipped: only root may run plugins as other users");
    }
    can
}

/// Says so in one line, where not everything can be enforced.
pub(crate) fn can_enforce_everything() -> bool {
    let host = guest_agent::process::sandbox::Host::look();
    let can = host.landlock >= guest_agent::process::sandbox::LANDLOCK_WHOLE && host.seccomp;
    if !can {
        eprintln!("skipped: this kernel has no Landlock or no filters of system calls");
    }
    can && can_confine()
}

impl Bed {
    /// The trouble plugin itself: a plugin with walls does not reach where it was built.
    pub(crate) async fn trouble_inside(&self) -> Archive {
        self.archive("trouble-program.tar", ArchiveSpec::trouble_program()).await
    }

    /// What a shell command says that a plugin runs.
    pub(crate) async fn run_in(&self, plugin: &str, command: &str) -> String {
        self.ask(plugin, &format!("run {command}")).await.results.join("\n")
    }

    /// Waits until what is offered under a name greets the consumer like this.
    pub(crate) async fn until_greeted(&self, name: &str, greeting: &str) {
        self.until(&format!("{name} greets the consumer"), async || {
            let answer = self.ask("consumer", &format!("greet {name}")).await;
            (answer.results == [greeting]).then_some(())
        })
        .await;
    }

    /// One line of a plugin's `/proc/<pid>/status`, without its name.
    async fn privilege(&self, plugin: &str, line: &str) -> String {
        let pid = self.status(plugin).await.unwrap().pid.unwrap();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let found = status.lines().find_map(|it| it.strip_prefix(&format!("{line}:")));
        found.unwrap().split_whitespace().next().unwrap_or_default().to_owned()
    }
}

fn owner(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().uid()
}

#[tokio::test]
async fn a_confined_plugin_works_through_restart_upgrade_and_adoption_and_others_feel_nothing() {
    if !can_enforce_everything() {
        return;
    }
    let strict = STRICT.into_iter().fold(Bed::builder(), |bed, setting| bed.set(setting));
    let mut bed = strict.start().await;
    let trouble = bed.trouble_inside().await;
    let first = orders::install("p", "1", &trouble).arg("--write-args-to=given");
    let other = orders::install("q", "1", &trouble);
    bed.configure(vec![first.order(), other.order()]).await;
    let before = bed.running("p", "1").await;
    bed.running("q", "1").await;
    let address = format!("unix:{}", bed.dir().join("run/confined/p/1.sock").display());
    assert_eq!(before.address, address);
    for (line, expected) in [
        ("Uid", NOBODY),
        ("Gid", NOBODY),
        ("Groups", ""),
        ("CapEff", "0000000000000400"),
        ("CapBnd", "0000000000000400"),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
        ("SigIgn", "0000000000001000"),
    ] {
        // SIGPIPE is ignored by the plugin's own runtime, as by every Rust program.
        assert_eq!(bed.privilege("p", line).await, expected, "{line}");
    }
    let command = "umask; ulimit -n; cat /proc/self/oom_score_adj; echo $TMPDIR";
    let own_tmp = bed.plugin_state("p").join("tmp");
    assert_eq!(bed.run_in("p", command).await, format!("0077\n256\n300\n{}", own_tmp.display()));
    for refused in [
        "cat /etc/shadow",
        "touch /etc/x",
        "touch /tmp/guest-agent-test",
        "mount -t tmpfs none /mnt",
        "unshare -U true",
        "ls /root",
    ] {
        assert_ne!(bed.ask("p", &format!("run {refused}")).await.code, 0, "{refused}");
    }
    // What it needs it has: its folder, its logs, its socket.
    assert_eq!(owner(&bed.plugin_state("p")), 65534);
    let given = std::fs::read_to_string(bed.plugin_state("p").join("given")).unwrap();
    assert!(given.contains("\"oom_score_adj\":300"), "{given}");
    bed.ask("p", "log it is well").await;
    bed.until("its output is logged", async || {
        bed.plugin_output("p").contains("it is well").then_some(())
    })
    .await;
    // The other plugin has no policy.
    assert_eq!(bed.privilege("q", "Uid").await, "0");
    assert_eq!(bed.privilege("q", "NoNewPrivs").await, "0");
    assert_eq!(owner(&bed.plugin_state("q")), 0);

    signal(before.pid.unwrap(), Signal::SIGKILL);
    bed.running_again("p", &before).await;
    assert_eq!(bed.privilege("p", "Uid").await, NOBODY);
    bed.configure(vec![orders::install("p", "2", &trouble).order()]).await;
    let upgraded = bed.running("p", "2").await;
    assert_eq!(bed.privilege("p", "Uid").await, NOBODY);
    bed.kill_agent().await;
    bed.start_agent().await;
    let adopted = bed.running("p", "2").await;
    assert_eq!(adopted.pid, upgraded.pid, "it was started anew");
    assert_eq!(bed.ask("p", "echo again").await.results, ["again"]);
    bed.finish().await;
}

#[tokio::test]
async fn confined_plugins_offer_find_and_talk_to_each_other() {
    if !can_enforce_everything() {
        return;
    }
    let names = ["provider", "consumer"];
    let of =
        |name: &str| STRICT.map(|set| set.replacen("plugins.p.", &format!("plugins.{name}."), 1));
    let settings = names.into_iter().flat_map(of);
    let mut bed = settings.fold(Bed::builder(), |bed, setting| bed.set(setting)).start().await;
    for name in names {
        let program = ArchiveSpec::program(&format!("registry_{name}"));
        let archive = bed.archive(&format!("{name}.tar"), program).await;
        bed.configure(vec![orders::install(name, "1", &archive).order()]).await;
        bed.running(name, "1").await;
        assert_eq!(bed.privilege(name, "Uid").await, NOBODY);
        assert_eq!(bed.privilege(name, "Seccomp").await, "2");
    }
    bed.until_greeted("hello", "hello").await;
    // Their tickets and what they offer outlive the agent.
    bed.kill_agent().await;
    bed.start_agent().await;
    bed.until("the agent has found them", async || {
        (bed.ask("provider", "offer again").await.code == 0).then_some(())
    })
    .await;
    bed.until_greeted("again", "hello").await;
    bed.configure(names.map(orders::remove).to_vec()).await;
    for name in names {
        bed.gone(name).await;
    }
    bed.finish().await;
}

/// What a confined plugin of root tries, each as a shell command. It prints nothing but `kept` where
/// it is kept from it.
const ATTEMPTS: [(&str, &str); 6] = [
    ("signal the agent", "kill -0 AGENT"),
    ("signal another plugin", "kill -0 OTHER"),
    ("read the agent's memory", "head -c 1 /proc/AGENT/mem"),
    ("read the environment of another plugin", "cat /proc/OTHER/environ"),
    (
        "leave its control group",
        "(for procs in /sys/fs/cgroup/*/cgroup.procs /sys/fs/cgroup/cgroup.procs; do \
         echo 0 > $procs && exit 0; done; exit 1)",
    ),
    ("limit the agent", "prlimit --pid AGENT --nofile=64:64"),
];

#[tokio::test]
async fn a_confined_plugin_of_root_cannot_get_its_rights_back_from_the_agent() {
    if !can_enforce_everything() || !can_limit("pids") {
        return;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_guest-agent"));
    let folder = program.parent().unwrap().display();
    let bed = Bed::builder()
        .set("plugins.p.capabilities=[]")
        .set("plugins.p.no_new_privileges=true")
        .set(format!("plugins.p.read_only_paths=[\"{folder}\"]"))
        .set("plugins.p.seccomp=default")
        .start()
        .await;
    let trouble = bed.trouble_inside().await;
    let orders = ["p", "other"].map(|name| orders::install(name, "1", &trouble).order());
    bed.configure(orders.into()).await;
    bed.running("p", "1").await;
    let other = bed.running("other", "1").await;
    let socket = bed.dir().join("run/agent.sock");
    let status = format!("'{}' --socket '{}' status 2>&1", program.display(), socket.display());
    for call in [status.clone(), format!("env -i {status}"), format!("setsid {status}")] {
        let said = bed.run_in("p", &call).await;
        assert!(said.contains("policy confines it"), "{call}: {said}");
        assert!(said.contains("plugins.p.agent_socket = true"), "{call}: {said}");
    }
    // A plugin without a policy may.
    assert!(bed.run_in("other", &status).await.contains("RUNNING"));
    for (what, command) in ATTEMPTS {
        let command = command
            .replace("AGENT", &bed.agent_pid().to_string())
            .replace("OTHER", &other.pid.unwrap().to_string());
        let said = bed.run_in("p", &format!("({command}) >/dev/null 2>&1 || echo kept")).await;
        assert_eq!(said.trim(), "kept", "it can {what}");
    }
    // What no policy prevents is said.
    let shown = bed.cli(&["status", "p"]).await.ok();
    assert!(shown.contains("the sockets of other programs of its user"), "{shown}");
    assert!(!shown.contains("the agent's own sockets"), "{shown}");
    bed.finish().await;
}

#[tokio::test]
async fn a_confined_plugin_uses_the_agents_socket_where_its_policy_says_so() {
    if !can_enforce_everything() {
        return;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_guest-agent"));
    let bed = Bed::builder()
        .set("plugins.p.capabilities=[]")
        .set("plugins.p.agent_socket=true")
        .start()
        .await;
    let trouble = bed.trouble_inside().await;
    bed.configure(vec![orders::install("p", "1", &trouble).order()]).await;
    bed.running("p", "1").await;
    let socket = bed.dir().join("run/agent.sock");
    let status = format!("'{}' --socket '{}' status 2>&1", program.display(), socket.display());
    let said = bed.run_in("p", &status).await;
    assert!(said.contains("RUNNING"), "{said}");
    bed.finish().await;
}

#[tokio::test]
async fn a_policy_that_is_changed_counts_from_the_next_start_on() {
    if !can_confine() {
        return;
    }
    let mut bed = Bed::builder().build().await;
    let path = bed.dir().join("agent.toml");
    let without = std::fs::read_to_string(&path).unwrap();
    bed.start_agent().await;
    let trouble = bed.trouble_inside().await;
    let install = orders::install("p", "1", &trouble).arg("--start-fails=0");
    bed.configure(vec![install.order()]).await;
    let before = bed.running("p", "1").await;
    let count = bed.plugin_state("p").join("start-count");
    assert_eq!(owner(&count), 0);
    let reload = async |policy: &str, times: usize| {
        std::fs::write(&path, format!("{without}{policy}")).unwrap();
        signal(bed.agent_pid(), Signal::SIGHUP);
        bed.until("the log reports the reload", async || {
            (bed.log().matches("gets its new one at its next start").count() == times).then_some(())
        })
        .await;
    };
    reload(&format!("[plugins.p]\nuser = {NOBODY}\ngroup = {NOBODY}\n"), 1).await;
    assert!(bed.log().contains("plugins.p.group, plugins.p.user"), "{}", bed.log());
    assert_eq!(bed.status("p").await.unwrap().pid, before.pid, "it was restarted");
    assert_eq!(bed.privilege("p", "Uid").await, "0");
    bed.cli(&["restart", "p"]).await.ok();
    let changed = bed.running_again("p", &before).await;
    assert_eq!(bed.privilege("p", "Uid").await, NOBODY);
    assert_eq!((owner(&bed.plugin_state("p")), owner(&count)), (65534, 65534));

    reload("", 2).await;
    bed.cli(&["restart", "p"]).await.ok();
    bed.running_again("p", &changed).await;
    assert_eq!(bed.privilege("p", "Uid").await, "0");
    assert_eq!((owner(&bed.plugin_state("p")), owner(&count)), (0, 0));
    bed.finish().await;
}

#[tokio::test]
async fn a_user_that_does_not_exist_is_told_by_event_and_doctor_and_nothing_runs_as_root() {
    let bed = Bed::builder().set("plugins.p.user=no-such-user").start().await;
    let trouble = bed.trouble().await;
    bed.configure(vec![orders::install("p", "1", &trouble).order()]).await;
    let event = bed.event(9, "p", "1").await;
    assert!(event.details().contains("\"no-such-user\", which does not exist"), "{event:?}");
    assert!(bed.processes("p").is_empty());
    let config = bed.dir().join("agent.toml").display().to_string();
    let set = "plugins.p.user=no-such-user";
    let said = bed.cli(&["doctor", "--config", &config, "--set", set]).await;
    assert_ne!(said.code, 0);
    assert!(said.stdout.contains("[plugins.p] cannot be followed"), "{}", said.stdout);
    assert!(said.stdout.contains("useradd"), "{}", said.stdout);
    let said = bed.cli(&["config", "check", "--set", "plugins.p.usr=x"]).await;
    assert!(said.stderr.contains("did you mean user?"), "{}", said.stderr);
    bed.finish().await;
}
