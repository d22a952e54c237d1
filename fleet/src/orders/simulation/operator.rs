//! An operator who changes the configuration again and again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    ConfigurePlugin, Manifest, Plugin,
};
use guest_fleet_core::repair::Repair;
use guest_fleet_core::rollout::Strategy;
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::view::{
    ANY_ARCHITECTURE, Archive, Assignment, Hold, Plugins, Release, ReleaseName, Target, View,
};
use guest_fleet_ledger::records::configuration::{
    AssignmentRecord, HoldRecord, ReleaseRecord, release_key,
};
use guest_fleet_ledger::records::repair::{RepairRecord, repair_key};
use guest_fleet_ledger::{Bucket, Ledger, Revision, Write};
use prost::Message;

use super::world::{AGENTS, World};

/// How often drifted agents are looked for.
const REPAIRS: Duration = Duration::from_secs(5);

pub(super) const PLUGINS: [&str; 2] = ["p", "q"];
const REVISIONS: [&str; 3] = ["1", "2", "3"];

pub(super) async fn work(world: Arc<World>) {
    let mut view = View::default();
    world.laws.configures(&view);
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let template = ConfigurePlugin {
        plugin: Some(Plugin { entry_point: "bin/plugin".to_owned(), ..Plugin::default() }),
        // What processes use is not looked at.
        manifest: Some(Manifest { metrics_interval: seconds(300), ..Manifest::default() }),
        ..ConfigurePlugin::default()
    };
    for plugin in PLUGINS {
        for revision in REVISIONS {
            let name = ReleaseName { plugin: plugin.to_owned(), revision: revision.to_owned() };
            let archive = Archive { digest: "ab".repeat(32), url: String::new() };
            let archives = [(ANY_ARCHITECTURE.to_owned(), archive)].into();
            let release = Release { archives, order: template.encode_to_vec() };
            let key = release_key(&name);
            let value = ReleaseRecord::of(&name, &release).encode_to_vec();
            view.releases.insert(name, release);
            put(&world, &key, Some(value), &view).await;
        }
    }
    while !world.is_calm() {
        change(&world, &mut view).await;
        tokio::time::sleep(world.time(Duration::from_secs(8))).await;
    }
    // In the end nothing is held, so that everything comes about.
    view.holds.clear();
    put(&world, "hold/freeze", None, &view).await;
}

/// A person accepts that the journals were lost.
pub(super) async fn resumes(world: &World) {
    world.laws.resumes();
    let repair = Repair { accepted: world.laws.highest_recorded(), ..Repair::default() };
    for plugin in PLUGINS {
        write(
            world,
            &repair_key(&format!("of-{plugin}")),
            Some(RepairRecord::of(&repair).encode_to_vec()),
        )
        .await;
    }
}

/// Lets drifted agents be ordered again, as the controller does, until the run ends.
pub(super) async fn repairs(world: Arc<World>) {
    loop {
        tokio::time::sleep(REPAIRS).await;
        for plugin in PLUGINS {
            let leave: BTreeMap<String, u64> = AGENTS
                .iter()
                .filter_map(|agent| Some(((*agent).to_owned(), world.laws.drifted(agent, plugin)?)))
                .collect();
            let key = repair_key(&format!("of-{plugin}"));
            let found = world.ledger.peek(Bucket::Configuration, &key);
            let before = found.and_then(|value| RepairRecord::decode(value).ok());
            let before = before.and_then(|record| record.repair(&key).ok()).unwrap_or_default();
            if before.leave != leave {
                let after = RepairRecord::of(&Repair { leave, ..before });
                world.trace(|| {
                    format!("the controller lets {plugin} be repaired: {:?}", after.leave)
                });
                write(&world, &key, Some(after.encode_to_vec())).await;
            }
        }
    }
}

async fn change(world: &World, view: &mut View) {
    let pick = |bound: usize| usize::try_from(world.below(bound as u64)).unwrap_or(0);
    if pick(5) == 0 {
        let hold = Hold {
            selector: Selector::all(),
            own_labels: OwnLabels::Ignored,
            plugins: Plugins::All,
            reason: "freeze".to_owned(),
            by: "ann".to_owned(),
            until: None,
        };
        let value = if view.holds.remove("freeze").is_none() {
            let value = HoldRecord::of(&hold).encode_to_vec();
            view.holds.insert("freeze".to_owned(), hold);
            Some(value)
        } else {
            None
        };
        return put(world, "hold/freeze", value, view).await;
    }
    let plugin = PLUGINS[pick(PLUGINS.len())];
    let name = format!("of-{plugin}");
    if pick(7) == 0 && view.assignments.remove(&name).is_some() {
        // What was ordered and has not left must not leave any more.
        return put(world, &format!("assignment/{name}"), None, view).await;
    }
    let target = match pick(REVISIONS.len() + 1) {
        0 => Target::Absent,
        at => Target::Revision(REVISIONS[at - 1].to_owned()),
    };
    let assignment = Assignment {
        plugin: plugin.to_owned(),
        target,
        selector: Selector::all(),
        own_labels: OwnLabels::Ignored,
        priority: 0,
        attempt: 0,
        strategy: Strategy::default(),
        declared: None,
    };
    let value = AssignmentRecord::of(&assignment).encode_to_vec();
    view.assignments.insert(name.clone(), assignment);
    put(world, &format!("assignment/{name}"), Some(value), view).await;
}

/// Writes until it is certain that it is written.
async fn put(world: &World, key: &str, value: Option<Vec<u8>>, view: &View) {
    world.trace(|| format!("the operator writes {key}"));
    world.laws.configures(view);
    write(world, key, value).await;
    world.laws.configured();
}

async fn write(world: &World, key: &str, value: Option<Vec<u8>>) {
    let value = value.map(bytes::Bytes::from);
    loop {
        let found = world.ledger.get(Bucket::Configuration, key).await;
        if let Ok(found) = found {
            let expected = found.map_or(Revision::ABSENT, |record| record.revision);
            let write = Write { key: key.to_owned(), expected, value: value.clone() };
            if world.ledger.write(Bucket::Configuration, vec![write]).await.is_ok() {
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
