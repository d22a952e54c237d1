//! Orders as a control plane writes them, and what it makes of the events it hears.

use std::collections::BTreeSet;
use std::time::Duration;

use guest_agent_actors::fakes::{Harness, World};
use guest_agent_actors::messages::Listed;
use guest_agent_actors::model::view::{PluginView, Reported};
use guest_agent_proto::agent_controlplane as pb;
use guest_agent_proto::agent_controlplane::configure_plugin_states as cfg;
use prost::Message;

pub(crate) const CONFIGURE: &str = "agent_controlplane.ConfigurePluginStates";
pub(crate) const LIST: &str = "agent_controlplane.ListPluginStates";
pub(crate) const SOON: Duration = Duration::from_secs(5);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// An event as the control plane heard it: plugin, revision, number, details, message id.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Told {
    pub(crate) plugin: String,
    pub(crate) revision: String,
    pub(crate) number: i32,
    pub(crate) details: String,
    pub(crate) id: String,
}

pub(crate) fn install(name: &str, revision: &str) -> cfg::ConfigurePlugin {
    install_with(name, revision, |_| {})
}

pub(crate) fn install_with(
    name: &str,
    revision: &str,
    change: impl FnOnce(&mut cfg::Manifest),
) -> cfg::ConfigurePlugin {
    let mut manifest = cfg::Manifest::default();
    change(&mut manifest);
    cfg::ConfigurePlugin {
        action: cfg::Action::Install.into(),
        plugin: Some(cfg::Plugin {
            name: name.to_owned(),
            revision_id: revision.to_owned(),
            gcs_signed_url: format!("https://store.example/{name}-{revision}.tar.gz?signature=s"),
            entry_point: "bin/plugin".to_owned(),
            arguments: Vec::new(),
            checksum: guest_agent_actors::model::id::Sha256Digest::of(revision.as_bytes())
                .to_string(),
        }),
        manifest: Some(manifest),
    }
}

pub(crate) fn remove(name: &str) -> cfg::ConfigurePlugin {
    let plugin = cfg::Plugin { name: name.to_owned(), ..Default::default() };
    cfg::ConfigurePlugin {
        action: cfg::Action::Remove.into(),
        plugin: Some(plugin),
        manifest: None,
    }
}

pub(crate) fn apply(name: &str, config: &str) -> cfg::ConfigurePlugin {
    let plugin = cfg::Plugin { name: name.to_owned(), ..Default::default() };
    let config = cfg::manifest::Config::StringConfig(config.to_owned());
    let manifest = cfg::Manifest { config: Some(config), ..Default::default() };
    cfg::ConfigurePlugin {
        action: cfg::Action::Apply.into(),
        plugin: Some(plugin),
        manifest: Some(manifest),
    }
}

pub(crate) fn encoded(orders: &[cfg::ConfigurePlugin]) -> Vec<u8> {
    pb::ConfigurePluginStates { configure_plugins: orders.to_vec() }.encode_to_vec()
}

/// The control plane gives orders in one message.
pub(crate) async fn order(agent: &Harness, id: &str, orders: &[cfg::ConfigurePlugin]) {
    agent.receive(id, &[("message_type", CONFIGURE)], encoded(orders)).await;
}

/// The events of a plugin that the control plane received, without repetitions.
pub(crate) fn told(world: &World, plugin: &str) -> Vec<Told> {
    let mut seen = BTreeSet::new();
    let mut told = all_told(world);
    told.retain(|told| told.plugin == plugin && seen.insert(told.id.clone()));
    told
}

/// All events that the control plane received, with repetitions.
pub(crate) fn all_told(world: &World) -> Vec<Told> {
    let event = |heard: guest_agent_actors::fakes::Heard| {
        let kind = heard.message.labels.get("message_type")?;
        if kind != "agent_controlplane.PluginEventMessage" {
            return None;
        }
        assert_eq!(heard.message.labels.len(), 1, "an event has one label");
        let event = pb::PluginEventMessage::decode(&*heard.message.body).unwrap();
        Some(Told {
            plugin: event.plugin_name,
            revision: event.revision_id,
            number: event.event_type,
            details: String::from_utf8(event.event_details.unwrap_or_default()).unwrap(),
            id: heard.message.id,
        })
    };
    world.link.heard().into_iter().filter_map(event).collect()
}

/// The numbers of the events of a plugin, in the order in which they were heard.
pub(crate) fn numbers(world: &World, plugin: &str) -> Vec<i32> {
    told(world, plugin).into_iter().map(|told| told.number).collect()
}

/// The numbers together with the revisions they are about.
pub(crate) fn story(world: &World, plugin: &str) -> Vec<String> {
    told(world, plugin).iter().map(|told| format!("{}({})", told.number, told.revision)).collect()
}

pub(crate) fn find<'a>(listed: &'a [Listed], name: &str) -> Option<&'a PluginView> {
    listed.iter().map(|plugin| &*plugin.view).find(|view| view.name.as_str() == name)
}

pub(crate) fn is(listed: &[Listed], name: &str, revision: &str, state: Reported) -> bool {
    find(listed, name).is_some_and(|view| view.state == state && view.revision.as_str() == revision)
}

pub(crate) fn runs(listed: &[Listed], name: &str, revision: &str) -> bool {
    is(listed, name, revision, Reported::Running)
}

/// Waits until a plugin runs and all of its events were sent.
#[track_caller]
pub(crate) fn until_runs<'a>(
    agent: &'a Harness,
    name: &'a str,
    revision: &'a str,
) -> impl Future<Output = ()> + 'a {
    agent.until("it runs", HOUR, move |_, listed| runs(listed, name, revision))
}

/// A connected agent with one plugin that runs.
pub(crate) async fn agent_with(name: &str, revision: &str) -> Harness {
    let agent = Harness::awake().await;
    order(&agent, "first", &[install(name, revision)]).await;
    until_runs(&agent, name, revision).await;
    agent
}

/// Waits until a plugin's events are exactly these.
#[track_caller]
pub(crate) fn until_told<'a>(
    agent: &'a Harness,
    name: &'a str,
    expected: &'a [i32],
) -> impl Future<Output = ()> + 'a {
    let what = format!("events {expected:?} of {name}");
    async move {
        agent.until(&what, MINUTE, |world, _| numbers(world, name).len() >= expected.len()).await;
        assert_eq!(numbers(&agent.world, name), expected, "{:#?}", told(&agent.world, name));
    }
}
