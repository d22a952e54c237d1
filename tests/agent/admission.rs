//! Admission plugins: real programs that are asked before anything is deployed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, Addr, Recipient};
use guest_agent::hostinfo::SystemClock;
use guest_agent::process::admission::PluginHost;
use guest_agent_actors::admission::{
    AdmissionActor, AdmissionVerdict, Ask, CloseGate, Gate, Question, ask,
};
use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::ports::{AdmissionCommand, NoCounters};
use nix::sys::signal::Signal;

use crate::harness::{Bed, PATIENCE, orders, plugins, signal};
use crate::python::Python;

mod local;
mod plan;

/// `admission.command` that runs an example of the SDK.
fn command(program: &str, arguments: &[String]) -> Vec<String> {
    let program = plugins::program(program).canonicalize().unwrap();
    let program = program.to_str().unwrap().to_owned();
    [program].into_iter().chain(arguments.iter().cloned()).collect()
}

/// The file in which a misbehaving plugin notes its lives and its checks.
fn record(bed: &Bed) -> PathBuf {
    bed.dir().join("admission-record")
}

/// A bed whose agent asks a plugin that misbehaves as told. It does not run yet.
async fn troubled(flags: &[&str], timeout: &str) -> Bed {
    // The bed has to be there before what names a file in it.
    let mut bed = Bed::builder().set(format!("admission.timeout={timeout}")).build().await;
    let path = bed.dir().join("agent.toml");
    let mut text = std::fs::read_to_string(&path).unwrap();
    text.push_str(&trouble_config(&bed, flags));
    std::fs::write(&path, text).unwrap();
    bed.start_agent().await;
    bed
}

fn trouble_config(bed: &Bed, flags: &[&str]) -> String {
    let mut arguments = vec![format!("--record={}", record(bed).display())];
    arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
    let command = command("admission_trouble", &arguments);
    format!("\n[admission]\ncommand = {}\n", serde_json::to_string(&command).unwrap())
}

/// What the plugin noted, as the word of this kind.
fn noted(bed: &Bed, kind: &str) -> Vec<String> {
    let text = std::fs::read_to_string(record(bed)).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.strip_prefix(kind)?.strip_prefix(' '));
    lines.map(str::to_owned).collect()
}

fn lives(bed: &Bed) -> Vec<u32> {
    noted(bed, "life").iter().map(|pid| pid.parse().unwrap()).collect()
}

fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.contains(") Z ") && !stat.contains(") X "))
}

async fn denied(bed: &Bed, plugin: &str, revision: &str) -> String {
    let event = bed.event(8, plugin, revision).await;
    event.details().into_owned()
}

/// A bed whose agent asks the example that goes by this policy. It does not run yet.
async fn governed(policy: &str) -> (Bed, PathBuf) {
    let bed = Bed::builder().build().await;
    let file = bed.dir().join("policy");
    std::fs::write(&file, policy).unwrap();
    let command = command("admission_policy", &[file.to_str().unwrap().to_owned()]);
    let path = bed.dir().join("agent.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    let command = serde_json::to_string(&command).unwrap();
    std::fs::write(&path, format!("{config}\n[admission]\ncommand = {command}\n")).unwrap();
    (bed, file)
}

/// Has the agent forget what was answered so far.
async fn reload(bed: &Bed) {
    let told = || bed.log().matches("the configuration was read again").count();
    let before = told();
    signal(bed.agent_pid(), Signal::SIGHUP);
    bed.until("the configuration was read again", async || (told() > before).then_some(())).await;
}

#[tokio::test]
async fn a_policy_file_decides_what_is_deployed() {
    let (mut bed, policy) = governed("allow good\nallow later 00\n").await;
    bed.start_agent().await;
    let echo = bed.echo().await;
    let order = |name| orders::install(name, "1", &echo).order();
    bed.configure(vec![order("good"), order("later")]).await;
    bed.running("good", "1").await;
    let details = denied(&bed, "later", "1").await;
    assert!(details.contains("no line of the policy allows it (PERMISSION_DENIED)"), "{details}");
    let status = bed.in_state("later", "INSTALL_FAILED").await;
    assert_eq!(bed.plugin_files("later"), Vec::<String>::new(), "{status:?}");
    let said = bed.cli(&["explain", "later"]).await.ok();
    assert!(said.contains("no line of the policy allows it"), "{said}");
    assert!(bed.log().contains("later 1: denied: no line of the policy allows it"));

    // An upgrade that is denied leaves what runs alone.
    let before = bed.running("good", "1").await.pid;
    std::fs::write(&policy, "allow later\n").unwrap();
    let other = bed.echo().await;
    let upgrade = orders::install("good", "2", &other).order();
    reload(&bed).await;
    bed.configure(vec![upgrade, order("later")]).await;
    bed.running("later", "1").await;
    denied(&bed, "good", "2").await;
    assert_eq!(bed.running("good", "1").await.pid, before);
    bed.finish().await;
}

#[tokio::test]
async fn what_was_admitted_is_not_asked_about_again() {
    let mut bed = troubled(&[], "20s").await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("a", "1", &echo).order()]).await;
    let before = bed.running("a", "1").await.pid;
    assert_eq!(noted(&bed, "check"), ["a"]);
    // The same content: what was answered is remembered.
    bed.configure(vec![orders::remove("a")]).await;
    bed.gone("a").await;
    bed.configure(vec![orders::install("a", "1", &echo).order()]).await;
    let again = bed.running("a", "1").await.pid;
    assert_ne!(before, again);
    assert_eq!((noted(&bed, "check").len(), lives(&bed).len()), (1, 1));
    // A process that starts again, or an agent that does, deploys nothing.
    signal(again.unwrap(), Signal::SIGKILL);
    bed.event(7, "a", "1").await;
    bed.running("a", "1").await;
    let plugin = lives(&bed)[0];
    bed.stop_agent().await;
    assert!(!is_alive(plugin), "it was asked to go");
    bed.start_agent().await;
    bed.running("a", "1").await;
    assert_eq!((noted(&bed, "check").len(), lives(&bed).len()), (1, 1));
    bed.finish().await;
}

#[tokio::test]
async fn a_plugin_that_crashes_denies_what_it_was_asked_and_the_next_one_answers() {
    let bed = troubled(&["--hold=3", "--crash-at=2"], "20s").await;
    let echo = bed.echo().await;
    let order = |name| orders::install(name, "1", &echo).order();
    bed.configure(vec![order("a"), order("b")]).await;
    for name in ["a", "b"] {
        let details = denied(&bed, name, "1").await;
        assert!(details.contains("exited with code 7"), "{details}");
        assert!(details.contains("told to crash"), "its last words: {details}");
    }
    // The next agent process is asked; it has to be told otherwise, or it would crash as well.
    let path = bed.dir().join("agent.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("--hold=3", "--hold=1")).unwrap();
    signal(bed.agent_pid(), Signal::SIGHUP);
    bed.until("the command is changed", async || {
        bed.log().contains("changed=\"admission.command\"").then_some(())
    })
    .await;
    bed.configure(vec![order("c")]).await;
    bed.running("c", "1").await;
    // It crashes at the second check again, and is replaced by itself.
    bed.configure(vec![order("d")]).await;
    denied(&bed, "d", "1").await;
    bed.configure(vec![order("d")]).await;
    bed.running("d", "1").await;
    assert_eq!(lives(&bed).len(), 3);
    bed.finish().await;
}

#[tokio::test]
async fn a_plugin_that_breaks_the_protocol_denies() {
    let cases: [(&[&str], &str, &str); 3] = [
        (&["--version=2"], "20s", "speaks version 2 of the protocol"),
        (&["--never-connect"], "1s", "did not answer within 1s"),
        (&["--silent"], "1s", "did not answer within 1s"),
    ];
    for (flags, timeout, reason) in cases {
        let bed = troubled(flags, timeout).await;
        let echo = bed.echo().await;
        bed.configure(vec![orders::install("a", "1", &echo).order()]).await;
        let details = denied(&bed, "a", "1").await;
        assert!(details.contains(reason), "{flags:?}: {details}");
        assert_eq!(bed.plugin_files("a"), Vec::<String>::new());
        bed.finish().await;
    }
}

#[tokio::test]
async fn an_answer_without_a_status_admits() {
    // With `--hold`, the answers go out together, each by its own id.
    let bed = troubled(&["--no-status", "--hold=2"], "20s").await;
    let echo = bed.echo().await;
    let order = |name| orders::install(name, "1", &echo).order();
    bed.configure(vec![order("a"), order("b")]).await;
    bed.running("a", "1").await;
    bed.running("b", "1").await;
    assert_eq!(noted(&bed, "check").len(), 2);
    bed.finish().await;
}

#[tokio::test]
async fn a_program_that_cannot_be_executed_denies_and_the_doctor_knows() {
    let bed = Bed::builder().set("admission.command=[\"/no/such/program\"]").start().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("a", "1", &echo).order()]).await;
    let details = denied(&bed, "a", "1").await;
    assert!(details.contains("failed to execute /no/such/program"), "{details}");
    let config = bed.dir().join("agent.toml");
    let doctor = ["doctor", "--config", config.to_str().unwrap()];
    let setting = "admission.command=[\"/no/such/program\"]";
    let said = bed.cli(&[&doctor[..], &["--set", setting]].concat()).await;
    assert!(said.stdout.contains("/no/such/program"), "{said:?}");
    bed.finish().await;
}

#[tokio::test]
async fn calls_that_must_not_be_made_get_their_codes_and_do_no_harm() {
    let bed = troubled(&["--manners", "--deny=only the first"], "20s").await;
    let echo = bed.echo().await;
    let order = |name| orders::install(name, "1", &echo).arg("--flag=1").order();
    bed.configure(vec![order("a")]).await;
    // Its first answer admitted it.
    bed.running("a", "1").await;
    bed.until("it said all", async || bed.log().contains("answer: OK").then_some(())).await;
    let log = bed.log();
    for line in [
        "second list: FailedPrecondition",
        "no ticket: Unauthenticated",
        "wrong ticket: PermissionDenied",
        "unknown id: OK",
        "foreign service: PermissionDenied",
        "metadata: 5 entries on 3 pages: revision installation source-url entry-point argument",
    ] {
        assert!(log.contains(line), "{line}");
    }
    let line = |words: &str| log.lines().find(|line| line.contains(words)).unwrap_or_default();
    assert!(line("as warning").contains("WARN"), "{}", line("as warning"));
    assert!(line("as error").contains("ERROR"));
    assert!(line("as info").contains("INFO") && line("as shrill").contains("INFO"));
    assert!(line("as info").contains("admission_trouble"), "under its own name");
    assert!(!log.contains("not heard"));
    assert!(!log.lines().any(|line| line.starts_with("forged")), "it cannot forge a line");
    // What came after goes the usual way.
    bed.configure(vec![order("b")]).await;
    assert!(denied(&bed, "b", "1").await.contains("only the first"));
    bed.finish().await;
}

#[tokio::test]
async fn checks_that_wait_when_the_agent_stops_are_asked_again() {
    let mut bed = troubled(&["--silent"], "60s").await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("a", "1", &echo).order()]).await;
    bed.until("it is asked", async || (noted(&bed, "check").len() == 1).then_some(())).await;
    let first = lives(&bed)[0];
    bed.stop_agent().await;
    assert!(!is_alive(first), "no plugin outlives the agent");
    let path = bed.dir().join("agent.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("--silent", "--hold=1")).unwrap();
    bed.start_agent().await;
    bed.running("a", "1").await;
    assert_eq!(noted(&bed, "check"), ["a", "a"]);
    bed.finish().await;
}

#[tokio::test]
async fn a_plugin_that_does_not_go_dies_with_a_killed_agent() {
    let mut bed = troubled(&["--stay", "--silent"], "60s").await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("a", "1", &echo).order()]).await;
    bed.until("it is asked", async || (noted(&bed, "check").len() == 1).then_some(())).await;
    let plugin = lives(&bed)[0];
    let environment = std::fs::read(format!("/proc/{plugin}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    assert!(!environment.contains("GUEST_AGENT"), "a clean environment: {environment}");
    let descriptors = std::fs::read_dir(format!("/proc/{plugin}/fd")).unwrap();
    let inherited = descriptors.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
    let inherited: Vec<_> = inherited.filter(|to| to.starts_with(bed.dir())).collect();
    assert!(inherited.is_empty(), "a clean descriptor table: {inherited:?}");
    bed.kill_agent().await;
    bed.until("it dies", async || (!is_alive(plugin)).then_some(())).await;
    let path = bed.dir().join("agent.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"--stay\",\"--silent\"", "\"--hold=1\"")).unwrap();
    bed.start_agent().await;
    bed.running("a", "1").await;
    bed.finish().await;
}

#[tokio::test]
async fn an_admission_plugin_in_python_speaks_the_same_protocol() {
    let mut bed = Bed::builder().build().await;
    let Some(python) = Python::find(&bed) else {
        bed.start_agent().await;
        return bed.finish().await;
    };
    let ended = bed.dir().join("python-ended");
    let around =
        format!("{} '{}' good fine", python.executes("admission_plugin.py"), ended.display());
    let command = ["/bin/sh".to_owned(), "-c".to_owned(), around];
    let path = bed.dir().join("agent.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    let command = serde_json::to_string(&command).unwrap();
    std::fs::write(&path, format!("{config}\n[admission]\ncommand = {command}\n")).unwrap();
    bed.start_agent().await;
    let echo = bed.echo().await;
    let order = |name| orders::install(name, "1", &echo).order();
    bed.configure(vec![order("good"), order("fine"), order("bad")]).await;
    bed.running("good", "1").await;
    bed.running("fine", "1").await;
    let details = denied(&bed, "bad", "1").await;
    assert!(details.contains("python does not know it (PERMISSION_DENIED)"), "{details}");
    let log = bed.log();
    for line in
        ["no ticket: UNAUTHENTICATED", "second list: FAILED_PRECONDITION", "good revision 1"]
    {
        assert!(log.contains(line), "{line}");
    }
    bed.stop_agent().await;
    assert_eq!(std::fs::read_to_string(&ended).unwrap(), "ABORTED");
    bed.start_agent().await;
    bed.finish().await;
}

/// The gate by itself: an actor, its host, and a real plugin, without an agent around them.
struct Alone {
    actor: Addr<AdmissionActor>,
    queue: Recipient<Ask>,
    host: PluginHost,
    dir: tempfile::TempDir,
}

impl Alone {
    fn new(flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut arguments = vec![format!("--record={}", dir.path().join("record").display())];
        arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let command = AdmissionCommand::new(&command("admission_trouble", &arguments));
        let gate = Gate { command, timeout: PATIENCE };
        let (_, service_url) = tokio::sync::watch::channel("https://control".into());
        let host = PluginHost::new(service_url.clone(), Arc::new(|_| None), Default::default());
        let clock = Arc::new(SystemClock);
        let actor = AdmissionActor::new(
            Arc::new(host.clone()),
            (clock, Arc::new(NoCounters)),
            service_url,
            gate,
        )
        .start();
        Self { queue: actor.clone().recipient(), actor, host, dir }
    }

    fn ask(&self, package: usize) -> impl Future<Output = AdmissionVerdict> + use<> {
        let queue = self.queue.clone();
        let package = format!("p{package}");
        let sha256 = Sha256Digest::of(package.as_bytes());
        let question = Question { package: package.into(), sha256, metadata: Vec::new() };
        async move { ask(&queue, question).await }
    }

    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.dir.path().join("record")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

#[test]
fn a_thousand_checks_are_in_flight_and_duplicates_share_one() {
    actix_rt::System::new().block_on(async {
        // Nothing is answered before all of them have come.
        let gate = Alone::new(&["--hold=1000"]);
        let asks = (0..2000).map(|number| gate.ask(number % 1000));
        let answers = futures_util::future::join_all(asks).await;
        let other = answers.iter().find(|answer| **answer != AdmissionVerdict::Admitted);
        assert_eq!(other, None, "all are admitted");
        let lines = gate.lines();
        assert_eq!(lines.len(), 1001, "one life, and one check of each");
        let again = gate.ask(7).await;
        assert_eq!(
            (again, gate.lines().len()),
            (AdmissionVerdict::Admitted, 1001),
            "the answer is remembered"
        );
        gate.host.close().await;
    });
}

#[test]
fn closing_while_checks_wait_decides_nothing_and_ends_a_plugin_that_stays() {
    actix_rt::System::new().block_on(async {
        let gate = Alone::new(&["--silent", "--stay"]);
        let asking = actix_rt::spawn(gate.ask(1));
        let deadline = Instant::now() + PATIENCE;
        while gate.lines().len() < 2 {
            assert!(Instant::now() < deadline, "it is asked");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let pid: u32 = gate.lines()[0].strip_prefix("life ").unwrap().parse().unwrap();
        gate.actor.send(CloseGate).await.unwrap();
        assert_eq!(asking.await.unwrap(), AdmissionVerdict::Closing, "nobody answered");
        assert_eq!(gate.ask(2).await, AdmissionVerdict::Closing, "nothing is admitted any more");
        let began = Instant::now();
        gate.host.close().await;
        assert!(!is_alive(pid));
        assert!(began.elapsed() > Duration::from_secs(3), "it was given its time");
    });
}
