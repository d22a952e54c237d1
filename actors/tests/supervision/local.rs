//! Plugins that came with the machine, beside what a control plane orders.

use guest_agent_actors::fakes::{Answer, Harness};
use guest_agent_actors::messages::{RefusedManifests, RescanLocal};
use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::model::origin::Origin;
use guest_agent_actors::model::spec::{LocalFiles, PluginSpec, Source};
use guest_agent_actors::model::verdict::{Cause, Level};
use guest_agent_actors::model::view::Reported;
use guest_agent_actors::plugin::event::Order;
use guest_agent_actors::wire::{DecodedOrder, NamedOrder, decode_orders};

use super::support::{
    HOUR, MINUTE, SOON, encoded, find, install, is, order, remove, runs, story, told, until_runs,
};

pub(crate) fn manifest(name: &str, revision: &str) -> PluginSpec {
    let decoded: DecodedOrder =
        decode_orders(&encoded(&[install(name, revision)]), Origin::Local).unwrap().remove(0);
    let Ok(NamedOrder { order: Order::Install(spec), .. }) = decoded else { panic!("{decoded:?}") };
    let sha256 = Sha256Digest::of(revision.as_bytes());
    let files = LocalFiles { folder: format!("/plugins/{name}").into(), sha256 };
    PluginSpec { source: Source::Local(files), ..PluginSpec::clone(&spec) }
}

/// What SIGHUP does.
pub(crate) async fn rescan(agent: &Harness) {
    let before = agent.world.local.scans();
    agent.run(|system| system.manager.send(RescanLocal)).await.unwrap();
    agent.until("it is read", MINUTE, |world, _| world.local.scans() > before).await;
}

async fn agent_with_local(name: &str, revision: &str) -> Harness {
    let mut agent = Harness::asleep();
    agent.world.local.put(manifest(name, revision));
    agent.wake().await;
    agent.connect().await;
    until_runs(&agent, name, revision).await;
    agent
}

#[tokio::test(start_paused = true)]
async fn a_local_plugin_is_started_with_the_agent_and_nothing_is_downloaded() {
    let agent = agent_with_local("a", "image").await;
    agent.until("it is told", MINUTE, |world, _| told(world, "a").len() == 3).await;
    assert_eq!(story(&agent.world, "a"), ["1(image)", "4(image)", "3(image)"]);
    assert!(agent.world.installer.downloaded().is_empty());
    assert_eq!(agent.world.installer.current("a"), None);
    assert!(agent.view("a").await.unwrap().spec.is_local());
}

#[tokio::test(start_paused = true)]
async fn another_scan_without_a_change_does_nothing() {
    let mut agent = agent_with_local("a", "image").await;
    agent.until("it is told", MINUTE, |world, _| told(world, "a").len() == 3).await;
    let pid = agent.view("a").await.unwrap().pid;
    rescan(&agent).await;
    agent.crash_and_wake().await;
    until_runs(&agent, "a", "image").await;
    rescan(&agent).await;
    agent.pass(HOUR).await;
    assert_eq!(agent.view("a").await.unwrap().pid, pid);
    assert_eq!(story(&agent.world, "a").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_dynamic_revision_takes_precedence_and_its_removal_falls_back() {
    let mut agent = agent_with_local("a", "image").await;
    order(&agent, "1", &[install("a", "new")]).await;
    until_runs(&agent, "a", "new").await;
    agent.crash_and_wake().await;
    until_runs(&agent, "a", "new").await;
    agent.pass(MINUTE).await;
    order(&agent, "2", &[remove("a")]).await;
    until_runs(&agent, "a", "image").await;
    agent.until("it is told", MINUTE, |world, _| told(world, "a").len() >= 13).await;
    let local = ["1(image)", "4(image)", "3(image)"];
    let upgrade = ["1(new)", "6(image)", "4(new)", "3(new)"];
    let removal = ["2(new)", "6(new)", "5(new)"];
    let expected: Vec<&str> =
        local.iter().chain(&upgrade).chain(&removal).chain(&local).copied().collect();
    assert_eq!(story(&agent.world, "a"), expected);
}

#[tokio::test(start_paused = true)]
async fn wherever_the_agent_dies_between_install_and_remove_the_local_version_runs() {
    for pause in [0u64, 1, 5, 20, 50, 100, 300, 1000, 10_000] {
        let mut agent = agent_with_local("a", "image").await;
        order(&agent, "1", &[install("a", "new")]).await;
        agent.pass(std::time::Duration::from_millis(pause)).await;
        agent.crash_and_wake().await;
        agent.pass(std::time::Duration::from_millis(pause)).await;
        order(&agent, "2", &[remove("a")]).await;
        agent.pass(std::time::Duration::from_millis(pause)).await;
        agent.crash_and_wake().await;
        until_runs(&agent, "a", "image").await;
        agent.pass(HOUR).await;
        assert!(runs(&agent.list().await, "a", "image"), "{pause} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_local_plugin_is_not_removed_by_order() {
    let agent = agent_with_local("a", "image").await;
    order(&agent, "1", &[remove("a")]).await;
    agent.until("it is told", MINUTE, |world, _| told(world, "a").len() == 4).await;
    let refused = told(&agent.world, "a").pop().unwrap();
    assert!(refused.number == 10 && refused.details.contains("manifest"), "{refused:?}");
    assert!(runs(&agent.list().await, "a", "image"));
}

#[tokio::test(start_paused = true)]
async fn a_manifest_that_goes_ends_its_plugin_and_one_that_comes_back_begins_it() {
    let agent = agent_with_local("a", "image").await;
    agent.world.local.take_away(&"a".parse().unwrap());
    rescan(&agent).await;
    agent.until("it is gone", MINUTE, |_, listed| find(listed, "a").is_none()).await;
    agent.world.local.put(manifest("a", "image-2"));
    rescan(&agent).await;
    until_runs(&agent, "a", "image-2").await;
}

#[tokio::test(start_paused = true)]
async fn a_manifest_that_comes_back_at_once_loses_nothing() {
    let agent = agent_with_local("a", "image").await;
    for _ in 0..3 {
        agent.world.local.take_away(&"a".parse().unwrap());
        agent.run(|system| system.manager.send(RescanLocal)).await.unwrap();
        agent.pass(std::time::Duration::from_millis(1)).await;
        agent.world.local.put(manifest("a", "image"));
        rescan(&agent).await;
        until_runs(&agent, "a", "image").await;
    }
    agent.pass(HOUR).await;
    assert!(runs(&agent.list().await, "a", "image"));
}

#[tokio::test(start_paused = true)]
async fn trouble_with_manifests_stops_nothing_and_is_told_once() {
    let agent = agent_with_local("a", "image").await;
    agent.world.local.spoil("a", "it is broken");
    agent.world.local.spoil("never seen", "it is broken too");
    for _ in 0..3 {
        rescan(&agent).await;
    }
    agent.world.local.break_down(Some("the disk is on fire"));
    rescan(&agent).await;
    agent.pass(HOUR).await;
    assert!(runs(&agent.list().await, "a", "image"));
    assert_eq!(story(&agent.world, "a"), ["1(image)", "4(image)", "3(image)", "8()"]);
    let other = told(&agent.world, "never seen");
    assert!(other.len() == 1 && other[0].details.contains("it is broken too"), "{other:?}");
}

#[tokio::test(start_paused = true)]
async fn refusals_are_known_until_their_manifests_are_mended_and_no_control_plane_lists_them() {
    let agent = agent_with_local("a", "image").await;
    let refused = async || {
        let refused = agent.run(|system| system.manager.send(RefusedManifests)).await.unwrap();
        refused.into_iter().map(|(name, it)| (name, it.reason)).collect::<Vec<_>>()
    };
    agent.world.local.spoil("a", "it is broken");
    agent.world.local.spoil("od\\u{1b}d", "no plugin is called so");
    let before = agent.run(|system| std::future::ready(*system.roster.borrow())).await;
    rescan(&agent).await;
    agent.until("the plugin says so", SOON, |_, listed| listed[0].refusal.is_some()).await;
    let now = agent.run(|system| std::future::ready(*system.roster.borrow())).await;
    assert_ne!(now, before, "those who watch the status learn of it");
    let pair = |name: &str, reason: &str| (name.to_owned(), reason.to_owned());
    let both = [pair("a", "it is broken"), pair("od\\u{1b}d", "no plugin is called so")];
    assert_eq!(refused().await, both);
    // The plugin runs on with what it had; the folder is no plugin.
    let listed = agent.list().await;
    let [plugin] = &listed[..] else { panic!("{listed:?}") };
    let verdict = plugin.verdict(agent.world.clock.now());
    assert_eq!((verdict.level, verdict.cause), (Level::Degraded, Cause::ManifestRefused));
    assert!(runs(&listed, "a", "image"));
    agent.world.local.put(manifest("a", "image"));
    rescan(&agent).await;
    agent.until("it is mended", SOON, |_, listed| listed[0].refusal.is_none()).await;
    assert_eq!(refused().await, both[1..]);
    agent.world.local.take_away(&"a".parse().unwrap());
    agent.world.local.unspoil("od\\u{1b}d");
    rescan(&agent).await;
    agent.until("all are gone", MINUTE, |_, listed| listed.is_empty()).await;
    assert_eq!(refused().await, []);
}

#[tokio::test(start_paused = true)]
async fn a_slow_scan_holds_nothing_up() {
    let mut agent = Harness::asleep();
    agent.world.local.put(manifest("a", "image"));
    agent.world.local.set_takes(MINUTE);
    agent.wake().await;
    agent.connect().await;
    order(&agent, "1", &[install("b", "1")]).await;
    agent.until("b runs", SOON, |_, listed| runs(listed, "b", "1")).await;
    until_runs(&agent, "a", "image").await;
}

#[tokio::test(start_paused = true)]
async fn a_local_plugin_that_cannot_be_started_rests_until_its_manifest_changes() {
    let mut agent = Harness::asleep();
    agent.world.local.put(manifest("a", "image"));
    agent.world.installer.preflights("a", &[Answer::Fail("it is gone".to_owned())]);
    agent.wake().await;
    agent.connect().await;
    agent
        .until("it failed", MINUTE, |_, listed| is(listed, "a", "image", Reported::InstallFailed))
        .await;
    agent.world.local.put(manifest("a", "image-2"));
    rescan(&agent).await;
    until_runs(&agent, "a", "image-2").await;
}
