//! The incidents: each has a bed of its own, and says what has to fire when.

use std::time::Duration;

use guest_agent_lab::{Code, Faults};
use guest_agent_proto::agent_controlplane as pb;
use guest_agent_proto::agent_controlplane::execution_model as em;
use nix::sys::signal::Signal;

use super::proof::{Fires, Moment, Story};
use super::recording::{Pace, Recorder};
use crate::harness::{Archive, ArchiveSpec, Bed, Builder, orders, plugins, signal};
use crate::limits::can_limit;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// The agent's own times, by which incidents go, as their defaults are in stretched time. What a
/// healthy answer may take is not shortened: the machine is no faster than it is.
const TIMES: [&str; 4] = [
    // 100 ms, 5 m, 30 s and 10 s, divided by 60.
    "plugins.restart_initial_backoff=2ms",
    "plugins.restart_max_backoff=5s",
    "plugins.probation=500ms",
    "plugins.health_interval=167ms",
];

/// A bed with HTTP, and without a limit that every machine would have to be able to enforce.
fn plain_bed() -> Builder {
    Bed::builder().set("api.http_listen=127.0.0.1:0").set("plugins.max_tasks=0")
}

/// The same with the agent's times in the pace of minutes.
fn bed() -> Builder {
    TIMES.into_iter().fold(plain_bed(), Builder::set)
}

fn fires(alert: &'static str, labels: &[(&'static str, &'static str)]) -> Fires {
    Fires { alert, labels: labels.to_vec() }
}

/// An alert about a plugin that goes by its verdict.
fn judged(alert: &'static str, plugin: &'static str, of: [&'static str; 2]) -> Fires {
    fires(alert, &[("plugin", plugin), ("verdict", of[0]), ("cause", of[1])])
}

fn one_shot(triggers: em::Triggers) -> pb::ExecutionModel {
    let one_shot = em::OneShot { triggers: Some(triggers), ..Default::default() };
    pb::ExecutionModel { r#type: Some(em::Type::OneShot(one_shot)), ..Default::default() }
}

async fn run_of(bed: &Bed, code: u8) -> orders::Install {
    let script = ArchiveSpec::script(&format!("echo so it ends\nexit {code}"));
    let archive = bed.archive("once.tar", script).await;
    orders::install("once", "1", &archive).manifest(|it| {
        it.plugin_type = pb::PluginType::OneShot.into();
        let triggers = em::Triggers { startup: true, ..Default::default() };
        it.execution_model = Some(one_shot(triggers));
    })
}

/// A day on which everything happens that is in order, and one plugin crashes once.
pub(super) async fn a_calm_day() -> Story {
    let mut bed = bed().start().await;
    let recorder = Recorder::start(&bed, "calm", Pace::MINUTES);
    let echo = bed.echo().await;
    let has_limits = can_limit("memory") && can_limit("cpu");
    let web = |revision: &str| {
        let install = orders::install("web", revision, &echo);
        install.manifest(|it| {
            if has_limits {
                it.max_memory_usage_bytes = 512 << 20;
                it.max_cpu_usage_percentage = 90;
            }
        })
    };
    let plain = |name: &str, revision: &str| orders::install(name, revision, &echo).order();
    let run = run_of(&bed, 0).await;
    bed.configure(vec![
        web("1").order(),
        plain("rolled", "1"),
        plain("stopped", "1"),
        plain("held", "1"),
        run.order(),
    ])
    .await;
    for name in ["rolled", "stopped", "held"] {
        bed.running(name, "1").await;
    }
    bed.in_state("once", "EXECUTION_COMPLETED").await;
    let first = bed.running("web", "1").await;
    recorder.pass(2 * MINUTE).await;
    signal(first.pid.unwrap(), Signal::SIGKILL);
    bed.running_again("web", &first).await;
    bed.configure(vec![web("2").order(), plain("rolled", "2"), orders::apply("held", Some("x"))])
        .await;
    bed.running("web", "2").await;
    bed.running("rolled", "2").await;
    bed.cli(&["rollback", "rolled", "--reason", "it leaks", "--wait"]).await.ok();
    bed.cli(&["stop", "stopped", "--reason", "maintenance", "--wait"]).await.ok();
    bed.cli(&["hold", "held", "--reason", "freeze"]).await.ok();
    recorder.pass(2 * MINUTE).await;
    bed.cli(&["release", "held"]).await.ok();
    bed.cut_link(Code::Unavailable).await;
    bed.kill_agent().await;
    bed.start_agent().await;
    bed.running("web", "2").await;
    // Longer than any alert of minutes waits.
    let at = recorder.pass(20 * MINUTE).await;
    let recording = recorder.stop();
    bed.finish().await;
    Story { recording, moments: vec![Moment { at, fires: Vec::new() }] }
}

/// For more than a day, a plugin that a person stopped, and one whose orders a person makes wait and
/// whose limits do not hold: none of that has a pace of its own.
pub(super) async fn plugins_are_held() -> Story {
    let bed = plain_bed().set("plugins.cgroups=off").start().await;
    let echo = bed.echo().await;
    let limited =
        orders::install("limited", "1", &echo).manifest(|it| it.max_memory_usage_bytes = 512 << 20);
    let plain = |name: &str| orders::install(name, "1", &echo).order();
    bed.configure(vec![plain("stopped"), plain("fine"), limited.order()]).await;
    for name in ["stopped", "fine", "limited"] {
        bed.running(name, "1").await;
    }
    let recorder = Recorder::start(&bed, "held", Pace::DAYS);
    let not_enforced =
        judged("GuestAgentPluginNotEnforced", "limited", ["degraded", "not_enforced"]);
    let at = recorder.pass(3 * HOUR).await;
    let before = Moment { at, fires: vec![not_enforced.clone()] };
    bed.cli(&["hold", "limited", "--reason", "freeze"]).await.ok();
    bed.cli(&["stop", "stopped", "--reason", "maintenance", "--wait"]).await.ok();
    let at = recorder.pass(20 * HOUR).await;
    let not_yet = Moment { at, fires: vec![not_enforced.clone()] };
    let at = recorder.pass(8 * HOUR).await;
    let held = |plugin, how| fires("GuestAgentPluginHeld", &[("plugin", plugin), ("how", how)]);
    let fires = vec![held("limited", "held"), held("stopped", "stopped"), not_enforced.clone()];
    let after = Moment { at, fires };
    bed.cli(&["release", "--all"]).await.ok();
    bed.cli(&["start", "stopped", "--wait"]).await.ok();
    let at = recorder.pass(2 * HOUR).await;
    let over = Moment { at, fires: vec![not_enforced] };
    let recording = recorder.stop();
    bed.finish().await;
    Story { recording, moments: vec![before, not_yet, after, over] }
}

/// Plugins in every bad state at once, beside one that is well.
pub(super) async fn plugins_fail() -> Story {
    let mut bed = bed().build().await;
    let odd = bed.dir().join("local/odd");
    std::fs::create_dir_all(&odd).unwrap();
    std::fs::write(odd.join("manifest.json"), "{ no json").unwrap();
    bed.start_agent().await;
    let recorder = Recorder::start(&bed, "plugins", Pace::MINUTES);
    let (echo, trouble) = (bed.echo().await, bed.trouble().await);
    let troubled = |name: &str, arguments: &[&str]| {
        let order = orders::install(name, "1", &trouble);
        arguments.iter().fold(order, |order, argument| order.arg(*argument))
    };
    bed.configure(vec![
        troubled("loops", &["--crash-after-ms=20"]).order(),
        troubled("back", &[]).order(),
        orders::install("fine", "1", &echo).order(),
        orders::install("old", "1", &echo).order(),
        gone(orders::install("missing", "1", &echo)),
        troubled("near", &["--allocate-mb=40"]).order(),
        troubled("never", &["--exit-before-start=3"]).order(),
        troubled("slow", &["--never-bind"])
            .manifest(|it| {
                it.start_timeout = orders::seconds(1.0);
                it.start_attempt_count = 100;
            })
            .order(),
        troubled("unwell", &["--unhealthy-code=7"]).order(),
        run_of(&bed, 7).await.order(),
    ])
    .await;
    for name in ["back", "old", "near"] {
        bed.running(name, "1").await;
    }
    let second = |order: orders::Install| order.plugin(|it| it.revision_id = "2".to_owned());
    let broken = troubled("back", &["--crash-after-ms=50"]);
    let absent = gone(second(orders::install("old", "2", &echo)));
    bed.configure(vec![second(broken).order(), absent]).await;
    come_near_its_limit(&bed, &trouble).await;
    // Everything that is to last has begun.
    for (name, state) in
        [("missing", "INSTALL_FAILED"), ("never", "CRASHED"), ("once", "EXECUTION_FAILED")]
    {
        bed.in_state(name, state).await;
    }
    bed.status_where("back", "it came back", |it| {
        it.revision == "1" && it.pending.as_ref().is_some_and(|it| it.state == "CRASHED")
    })
    .await;
    bed.status_where("old", "its upgrade failed", |it| {
        it.pending.as_ref().is_some_and(|it| it.state == "INSTALL_FAILED")
    })
    .await;
    bed.status_where("unwell", "it says so", |it| {
        it.health.as_ref().is_some_and(|it| it.code == 7)
    })
    .await;
    run_out_of_memory(&bed).await;
    let at = recorder.pass(17 * MINUTE).await;
    let recording = recorder.stop();
    // By now it pauses for minutes, which a rate over a quarter of an hour would take for calm.
    let crashes = recording.growth(
        "guest_agent_plugin_restarts_total{job=\"guest-agent\",instance=\"plugins\",plugin=\"loops\"",
        10 * MINUTE,
    );
    assert!((1.0..=5.0).contains(&crashes), "{crashes} crashes in the last ten minutes");
    std::fs::remove_dir_all(&odd).unwrap();
    signal(bed.agent_pid(), Signal::SIGHUP);
    bed.finish().await;
    Story { recording, moments: vec![Moment { at, fires: of_failing_plugins() }] }
}

fn of_failing_plugins() -> Vec<Fires> {
    let failing = |alert, plugin, cause| judged(alert, plugin, ["failing", cause]);
    let of = |alert, plugin| fires(alert, &[("plugin", plugin)]);
    let state = |alert, plugin, state| fires(alert, &[("plugin", plugin), ("state", state)]);
    let pending = |alert, plugin, state| {
        fires(alert, &[("plugin", plugin), ("revision", "2"), ("state", state)])
    };
    vec![
        failing("GuestAgentPluginCrashLooping", "loops", "crash_loop"),
        of("GuestAgentPluginOutOfMemory", "hungry"),
        of("GuestAgentPluginNearMemoryLimit", "near"),
        state("GuestAgentPluginInstallFailed", "missing", "INSTALL_FAILED"),
        pending("GuestAgentPluginUpgradeFailed", "old", "INSTALL_FAILED"),
        pending("GuestAgentPluginRolledBack", "back", "CRASHED"),
        of("GuestAgentPluginUnhealthy", "unwell"),
        of("GuestAgentPluginNotRunning", "never"),
        of("GuestAgentPluginNotRunning", "slow"),
        state("GuestAgentPluginRunFailed", "once", "EXECUTION_FAILED"),
        failing("GuestAgentPluginFailing", "odd", "manifest_refused"),
    ]
}

/// An order whose archive is not there.
fn gone(order: orders::Install) -> pb::configure_plugin_states::ConfigurePlugin {
    order
        .plugin(|it| it.gcs_signed_url.push_str(".gone"))
        .manifest(|it| it.download_attempt_count = 1)
        .order()
}

/// Gives the plugin `near` a limit a little above what it uses.
async fn come_near_its_limit(bed: &Bed, trouble: &Archive) {
    let is_measured = |bytes: Option<u64>| bytes.is_some_and(|bytes| bytes > 40 << 20);
    let status = bed.status_where("near", "it is measured", |it| is_measured(it.memory_bytes));
    let used = status.await.memory_bytes.unwrap();
    let limit = i64::try_from(used + used / 16).unwrap();
    let order = orders::install("near", "1", trouble).arg("--allocate-mb=40").manifest(|it| {
        it.max_memory_usage_bytes = limit;
        it.max_cpu_usage_percentage = 90;
    });
    bed.configure(vec![order.order()]).await;
}

/// Has the plugin `hungry` use more than it may, in its first life only.
async fn run_out_of_memory(bed: &Bed) {
    let (program, mark) = (plugins::program("trouble_plugin"), bed.dir().join("was-hungry"));
    let (program, mark) = (program.display(), mark.display());
    let script = format!(
        "if [ -e {mark} ]; then exec {program} \"$@\"; fi\n\
         touch {mark}\nexec {program} --allocate-mb=200 \"$@\""
    );
    let archive = bed.archive("hungry.tar", ArchiveSpec::script(&script)).await;
    let order = orders::install("hungry", "1", &archive);
    bed.configure(vec![order.manifest(|it| it.max_memory_usage_bytes = 48 << 20).order()]).await;
    bed.status_where("hungry", "its memory ran out", |it| {
        it.last_exit.as_ref().is_some_and(|exit| exit.kind == "oom")
    })
    .await;
    bed.running("hungry", "1").await;
}

/// The memory of a plugin runs out, and then the agent ends: no counter of the next one says so.
pub(super) async fn memory_runs_out_before_the_agent_ends() -> Story {
    let mut bed = bed().start().await;
    run_out_of_memory(&bed).await;
    bed.kill_agent().await;
    bed.start_agent().await;
    bed.running("hungry", "1").await;
    let recorder = Recorder::start(&bed, "memory", Pace::MINUTES);
    let at = recorder.pass(2 * MINUTE).await;
    let fires = vec![fires("GuestAgentPluginOutOfMemory", &[("plugin", "hungry")])];
    let recording = recorder.stop();
    bed.finish().await;
    Story { recording, moments: vec![Moment { at, fires }] }
}

/// No control plane for a while.
pub(super) async fn the_link_is_down() -> Story {
    let mut bed = bed().start().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("app", "1", &echo).order()]).await;
    bed.expect_events("app", &[1, 4, 3]).await;
    let recorder = Recorder::start(&bed, "link", Pace::MINUTES);
    recorder.pass(MINUTE).await;
    bed.stop_control_plane().await;
    let at = recorder.pass(10 * MINUTE).await;
    let not_yet = Moment { at, fires: Vec::new() };
    let at = recorder.pass(7 * MINUTE).await;
    let down = Moment { at, fires: vec![fires("GuestAgentLinkDown", &[])] };
    bed.start_control_plane().await;
    // The pauses between its attempts have grown, and are not shortened: the next agent begins anew.
    bed.kill_agent_only().await;
    bed.start_agent().await;
    recorder.next().await;
    let at = recorder.pass(MINUTE).await;
    let over = Moment { at, fires: Vec::new() };
    let recording = recorder.stop();
    bed.finish().await;
    Story { recording, moments: vec![not_yet, down, over] }
}

/// A control plane that takes events and acknowledges none.
pub(super) async fn events_are_not_acknowledged() -> Story {
    let bed = bed().start().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("app", "1", &echo).order()]).await;
    bed.expect_events("app", &[1, 4, 3]).await;
    let recorder = Recorder::start(&bed, "outbox", Pace::MINUTES);
    recorder.pass(MINUTE).await;
    bed.control_plane.set_faults(Faults { drop_acknowledgements: u32::MAX, ..Faults::default() });
    let mut at = 0;
    for minute in 0..18 {
        let config = format!("of minute {minute}");
        bed.configure_locally(vec![orders::apply("app", Some(&config))]).await;
        at = recorder.pass(Duration::from_secs(30)).await;
    }
    let growing = Moment { at, fires: vec![fires("GuestAgentOutboxGrowing", &[])] };
    bed.control_plane.set_faults(Faults::default());
    bed.cut_link(Code::Unavailable).await;
    bed.until("all events are acknowledged", async || {
        let page = bed.get("/metrics").await.body;
        page.contains("\nguest_agent_outbox_events 0.0\n").then_some(())
    })
    .await;
    let at = recorder.pass(MINUTE).await;
    let over = Moment { at, fires: Vec::new() };
    let recording = recorder.stop();
    bed.finish().await;
    Story { recording, moments: vec![growing, over] }
}

/// The agent is gone for a while; the next one waits for a boot-critical plugin; and then it does not
/// stay up.
pub(super) async fn the_agent_is_gone_and_comes_again() -> Story {
    let mut bed = bed().start().await;
    let (program, mark) = (plugins::program("trouble_plugin"), bed.dir().join("is-slow"));
    let script = format!(
        "if [ -e {mark} ]; then exec {program} --never-bind \"$@\"; fi\nexec {program} \"$@\"",
        program = program.display(),
        mark = mark.display(),
    );
    let archive = bed.archive("critical.tar", ArchiveSpec::script(&script)).await;
    let critical = orders::install("critical", "1", &archive).manifest(|it| {
        it.start_timeout = orders::seconds(25.0);
        let model = pb::ExecutionModel { boot_critical: true, ..pb::ExecutionModel::default() };
        it.execution_model = Some(model);
    });
    bed.configure(vec![critical.order()]).await;
    bed.running("critical", "1").await;
    let recorder = Recorder::start(&bed, "agent", Pace::MINUTES);
    recorder.pass(MINUTE).await;
    bed.kill_agent().await;
    let at = recorder.pass(7 * MINUTE).await;
    let down = Moment { at, fires: vec![fires("GuestAgentDown", &[])] };

    std::fs::write(&mark, "").unwrap();
    let pid = bed.processes("critical")[0];
    signal(pid, Signal::SIGKILL);
    bed.until("it is dead", async || bed.processes("critical").is_empty().then_some(())).await;
    bed.start_agent().await;
    recorder.next().await;
    let at = recorder.pass(7 * MINUTE).await;
    let not_ready = Moment { at, fires: vec![fires("GuestAgentNotReady", &[])] };

    std::fs::remove_file(&mark).unwrap();
    for _ in 0..4 {
        bed.kill_agent().await;
        bed.start_agent().await;
        recorder.next().await;
    }
    bed.running("critical", "1").await;
    let at = recorder.pass(MINUTE).await;
    let restarting = Moment { at, fires: vec![fires("GuestAgentRestarting", &[])] };
    let recording = recorder.stop();
    bed.finish().await;
    Story { recording, moments: vec![down, not_ready, restarting] }
}

/// An agent finds its store damaged.
pub(super) async fn the_store_is_damaged() -> Story {
    let mut bed = bed().start().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("app", "1", &echo).order()]).await;
    bed.expect_events("app", &[1, 4, 3]).await;
    let recorder = Recorder::start(&bed, "store", Pace::MINUTES);
    recorder.pass(MINUTE).await;
    bed.kill_agent().await;
    let db = bed.state_root().join("store/db");
    let length = usize::try_from(std::fs::metadata(&db).unwrap().len()).unwrap();
    std::fs::write(&db, vec![0x5a; length]).unwrap();
    bed.start_agent().await;
    recorder.next().await;
    let at = recorder.pass(7 * MINUTE).await;
    let fires = vec![fires("GuestAgentStoreSetAside", &[("what", "store")])];
    let recording = recorder.stop();
    bed.finish().await;
    Story { recording, moments: vec![Moment { at, fires }] }
}

/// An agent cannot use its state directory.
pub(super) async fn the_state_directory_cannot_be_used() -> Story {
    let mut bed = bed().build().await;
    let recorder = Recorder::start(&bed, "disk", Pace::MINUTES);
    let state = bed.dir().join("state");
    let _may_not_be_there = std::fs::remove_dir_all(&state);
    std::fs::write(&state, "in the way").unwrap();
    bed.start_agent().await;
    recorder.next().await;
    let at = recorder.pass(4 * MINUTE).await;
    let down = Moment { at, fires: vec![fires("GuestAgentStoreDown", &[])] };
    std::fs::remove_file(&state).unwrap();
    std::fs::create_dir(&state).unwrap();
    assert!(!bed.agent_ends().await.success());
    bed.start_agent().await;
    recorder.next().await;
    let at = recorder.pass(MINUTE).await;
    let over = Moment { at, fires: Vec::new() };
    let recording = recorder.stop();
    bed.finish().await;
    Story { recording, moments: vec![down, over] }
}
