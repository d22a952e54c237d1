//! What systemd and the agent have to agree on.

use super::world::World;

/// The unit watches the agent, which says how it is, and keeps plugins when the agent stops.
pub(super) async fn the_unit_is_what_the_agent_expects(world: &mut World) {
    assert_eq!(world.property("KillMode").await, "process");
    assert_ne!(world.property("WatchdogUSec").await, "0");
    let says = "systemctl show --property=StatusText guest-agent.service | grep 'running; connected to the control plane'";
    world.guest.until("systemd has the status of the agent", says).await;
    let exposure =
        world.guest.ok("systemd-analyze security --no-pager guest-agent.service | tail -n 1").await;
    println!("       {exposure}");
    let (_, doctor) = world.guest.run("guest-agent doctor").await;
    assert!(!doctor.contains("error:"), "{doctor}");
}

/// The agent is in a leaf beside its plugins, and systemd delegated all controllers to where they
/// are.
pub(super) async fn the_group_is_divided_as_the_agent_needs_it(world: &mut World) {
    let group = world.group("web").await;
    let agent = world.property("MainPID").await;
    let of_agent = world.guest.ok(&format!("cut -d: -f3 /proc/{agent}/cgroup")).await;
    assert!(of_agent.ends_with("/@guest-agent"), "the agent is in a leaf of its own: {of_agent}");
    let controllers = world.guest.ok(&format!("cat {group}/cgroup.controllers")).await;
    for controller in ["cpu", "memory", "pids"] {
        assert!(controllers.split(' ').any(|it| it == controller), "{group} has {controllers}");
    }
    let (_, doctor) = world.guest.run("guest-agent doctor").await;
    assert!(!doctor.contains("not enforced"), "{doctor}");
}

/// `systemctl reload` applies the settings that need no restart, and no plugin is started again.
pub(super) async fn a_reload_is_taken_up(world: &mut World) {
    let (agent, web) = (world.property("MainPID").await, world.running("web").await);
    let setting =
        "printf '[plugins]\\nhealth_interval = \"700ms\"\\n' >/etc/guest-agent/conf.d/60-test.toml";
    world.guest.ok(&format!("{setting} && systemctl reload guest-agent.service")).await;
    let heard = "journalctl --boot --unit=guest-agent.service --no-pager | grep 'configuration was read again'";
    let said = world.guest.until("the log reports the reload", heard).await;
    assert!(said.contains("plugins.health_interval"), "{said}");
    assert_eq!((world.property("MainPID").await, world.running("web").await), (agent, web));
}

/// `systemctl restart` starts another agent, which finds the same plugins.
pub(super) async fn a_restart_keeps_plugins(world: &mut World) {
    agent_is_replaced(world, "systemctl restart guest-agent.service").await;
}

/// An agent that dies is started again by systemd.
pub(super) async fn an_agent_that_is_killed_comes_back(world: &mut World) {
    agent_is_replaced(world, "systemctl kill --kill-whom=main --signal=KILL guest-agent.service")
        .await;
}

/// An agent that hangs feeds no watchdog, and is replaced.
pub(super) async fn an_agent_that_hangs_is_replaced(world: &mut World) {
    // So that the test need not wait for the whole timeout of the unit.
    let sooner = "mkdir -p /run/systemd/system/guest-agent.service.d && \
        printf '[Service]\\nWatchdogSec=5s\\nTimeoutAbortSec=5s\\n' >/run/systemd/system/guest-agent.service.d/test.conf && \
        systemctl daemon-reload && systemctl restart guest-agent.service";
    agent_is_replaced(world, sooner).await;
    agent_is_replaced(world, "systemctl kill --kill-whom=main --signal=STOP guest-agent.service")
        .await;
    world
        .guest
        .ok("journalctl --boot --no-pager --unit=guest-agent.service | grep --ignore-case watchdog")
        .await;
    world
        .guest
        .ok("rm -r /run/systemd/system/guest-agent.service.d && systemctl daemon-reload")
        .await;
    agent_is_replaced(world, "systemctl restart guest-agent.service").await;
}

/// Between a stop and a start of the agent plugins run on.
pub(super) async fn a_stop_keeps_plugins(world: &mut World) {
    let web = world.running("web").await;
    world.guest.ok("systemctl stop guest-agent.service").await;
    world.guest.ok(&format!("[ -d /proc/{web} ]")).await;
    assert_eq!(world.guest.run("guest-agent status").await.0, 3, "nobody is there to ask");
    let told = world.guest.run("cat /var/lib/guest-agent/test/state/web/told").await.1;
    assert!(!told.contains("shutdown"), "the machine does not shut down: {told}");
    world.guest.ok("systemctl start guest-agent.service").await;
    world.connected().await;
    assert_eq!(world.running("web").await, web);
}

/// Neither the agent nor systemd complains of what must not happen, in any boot so far.
pub(super) async fn nothing_suspicious_was_said(world: &mut World) {
    let said = world.guest.ok("journalctl --no-pager --output=short-monotonic").await;
    // Where limits cannot hold, the agent has to say so.
    let can_limit = world.guest.can_limit().await;
    let is_suspicious = |line: &&str| {
        let ours = line.contains("guest-agent") || line.contains("guest_agent");
        let words =
            ["Unknown key", "Failed to", "timed out", "denied", "panicked", "left-over", "SECCOMP"];
        let must_not_be = words.iter().any(|word| line.contains(word))
            || can_limit && line.contains("not enforced");
        // The watchdog of a test that hung on purpose.
        ours && must_not_be && !line.contains("watchdog")
    };
    let suspicious: Vec<&str> = said.lines().filter(is_suspicious).collect();
    assert!(suspicious.is_empty(), "{suspicious:#?}");
}

/// Does something that ends the agent, and waits for the next one, which has the same `web`.
async fn agent_is_replaced(world: &mut World, how: &str) {
    let (agent, web) = (world.property("MainPID").await, world.running("web").await);
    let restarts = world.status("web", "it runs", |_| true).await["restarts"].clone();
    world.guest.ok(how).await;
    let another = format!(
        "pid=$(systemctl show --value --property=MainPID guest-agent.service); \
         systemctl is-active --quiet guest-agent.service && [ $pid != 0 ] && [ $pid != {agent} ]"
    );
    world.guest.until(&format!("another agent runs after `{how}`"), &another).await;
    world.connected().await;
    let status = world.status("web", "it runs", |status| status["state"] == "RUNNING").await;
    assert_eq!((&status["pid"], &status["restarts"]), (&web.into(), &restarts), "after `{how}`");
}
