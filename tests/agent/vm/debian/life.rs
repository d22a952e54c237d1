//! From the installation of the package to its removal, with a reboot between.

use std::time::Duration;

use guest_agent_proto::agent_controlplane as pb;
use guest_agent_proto::agent_controlplane::execution_model as em;

use super::world::{Packages, World};

/// What `web` noted: boot, network, the configuration it got.
const TOLD: &str = "cat /var/lib/guest-agent/test/state/web/told";

/// Installing the package starts the service, which finds out from the metadata server who it is,
/// and connects.
pub(super) async fn the_package_starts_the_service(world: &mut World) {
    world.guest.ok("dpkg --install /etc/test/older.deb").await;
    for word in ["is-active", "is-enabled"] {
        let said = world.guest.ok(&format!("systemctl {word} guest-agent.service")).await;
        assert!(["active", "enabled"].contains(&said.as_str()), "{word}: {said}");
    }
    world.connected().await;
    assert!(world.metadata.tokens_asked() >= 1, "its token comes from the metadata server");
}

/// A plugin is downloaded, runs, is killed and runs again, and the control plane gets an event of
/// each.
pub(super) async fn a_plugin_is_installed_crashes_and_comes_back(world: &mut World) {
    world.configure(world.install("web").order()).await;
    world.event(3, "web").await;
    let pid = world.running("web").await;
    world.guest.ok(&format!("kill -KILL {pid}")).await;
    let details = world.event(7, "web").await;
    assert!(details.contains("SIGKILL"), "{details}");
    let is_back = |status: &serde_json::Value| {
        status["state"] == "RUNNING" && status["pid"].as_u64().is_some_and(|now| now != pid)
    };
    let status = world.status("web", "it is started again", is_back).await;
    assert_eq!(
        (&status["restarts"], &status["last_exit"]["signal"]),
        (&1.into(), &9.into()),
        "{status}"
    );
}

/// One plugin that runs at the first boot, and one that runs at each.
pub(super) async fn what_runs_once_is_installed(world: &mut World) {
    let first = em::Triggers { firstboot: true, ..em::Triggers::default() };
    let each = em::Triggers { startup: true, ..em::Triggers::default() };
    for (name, triggers) in [("first-boot", first), ("each-boot", each)] {
        let script = "echo run >>\"$GUEST_AGENT_STATE_DIR/runs\"";
        let one_shot = em::OneShot { triggers: Some(triggers), ..em::OneShot::default() };
        let model = em::Type::OneShot(one_shot);
        let install = world.script(name, script).await.manifest(|manifest| {
            manifest.plugin_type = pb::PluginType::OneShot.into();
            manifest.execution_model =
                Some(pb::ExecutionModel { r#type: Some(model), ..Default::default() });
        });
        world.configure(install.order()).await;
        world.event(14, name).await;
    }
}

/// Plugins receive the shutdown event while they run and the network is up, and the startup event
/// when they run again. Returns how long the machine took.
pub(super) async fn a_reboot_is_told_and_brings_plugins_back(world: &mut World) -> Duration {
    let boot = world.guest.boot_id().await;
    let took = world.guest.reboot().await;
    world.connected().await;
    world.running("web").await;
    let told_startup =
        format!("grep --quiet \"$(cat /proc/sys/kernel/random/boot_id) .*startup\" {}", &TOLD[4..]);
    world.guest.until("the plugin gets the startup event", &told_startup).await;
    let told = world.guest.ok(TOLD).await;
    let of = |event: &str| {
        told.lines().filter(|line| line.contains(&format!("\"{event}\""))).collect::<Vec<_>>()
    };
    let (shutdown, startup) = (of("shutdown"), of("startup"));
    assert_eq!((shutdown.len(), startup.len()), (1, 1), "each event comes once: {told}");
    assert!(shutdown[0].starts_with(&format!("{boot} online ")), "in time: {told}");
    assert!(startup[0].contains(" online "), "{told}");

    let state = world.guest.ok("systemctl is-system-running").await;
    assert_eq!(state, "running");
    let before = world.guest.ok("journalctl --boot=-1 --no-pager --unit='guest-agent*'").await;
    // The agent was killed in that life, too; what counts is its last stop.
    let last_stop = before.rfind("Stopping guest-agent.service").expect("the journal is kept");
    let before = &before[last_stop..];
    let was_forced =
        before.contains("stop-sigterm' timed out") || before.contains("Killing process");
    assert!(!was_forced, "it stops in time: {before}");
    for (name, runs) in [("each-boot", "2"), ("first-boot", "1")] {
        let count = format!("[ $(wc -l </var/lib/guest-agent/test/state/{name}/runs) = {runs} ]");
        world.guest.until(&format!("{name} ran {runs} times"), &count).await;
    }
    let (_, files) = world.guest.run("cat /var/lib/guest-agent/test/state/first-boot/runs").await;
    assert_eq!(files, "run\n", "the first boot is one");
    took
}

/// A newer package replaces the agent; plugins do not notice.
pub(super) async fn an_upgrade_keeps_plugins(world: &mut World, packages: &Packages) {
    let (agent, web) = (world.property("MainPID").await, world.running("web").await);
    world.guest.ok("dpkg --install /etc/test/newer.deb").await;
    let version = world.guest.ok("dpkg-query --show --showformat='${Version}' guest-agent").await;
    assert_eq!(version, packages.newer);
    assert_ne!(world.property("MainPID").await, agent, "the agent was started again");
    world.connected().await;
    let status = world.status("web", "it runs", |status| status["state"] == "RUNNING").await;
    assert_eq!(status["pid"], web, "the plugin was not: {status}");
    let settings = world.guest.ok("cat /etc/guest-agent/conf.d/50-test.toml").await;
    assert!(settings.contains("169.254.169.100"), "what was configured stays");
}

/// Removing the package ends the plugins and keeps what they know; purging it leaves nothing.
pub(super) async fn a_removal_ends_plugins_and_a_purge_leaves_nothing(world: &mut World) {
    let web = world.running("web").await;
    world.guest.ok("dpkg --remove guest-agent").await;
    let (code, said) =
        world.guest.run(&format!("[ ! -e /proc/{web} ] && ! pgrep --list-full guest-agent")).await;
    assert_eq!(code, 0, "processes are left: {said}");
    world.guest.ok("[ -d /var/lib/guest-agent/test/state/web ]").await;
    world.guest.ok("dpkg --purge guest-agent").await;
    let find = "find /etc /usr /var/lib /var/log /run -xdev -name '*guest-agent*' -not -path '/var/log/journal/*' \
                -not -path '/var/lib/dpkg/*' -not -path '/run/systemd/*' -not -path '/usr/local/*'";
    assert_eq!(world.guest.ok(find).await, "", "files are left");
    let (_, failed) = world.guest.run("systemctl --failed --no-legend --plain").await;
    assert_eq!(failed, "", "units that failed are left");
}
