//! What reports say, and how large they can become.

use std::time::{Duration, SystemTime};

use super::*;
use crate::fakes::sample_view;
use crate::model::deed::Deeds;
use crate::model::id::{FleetGeneration, Sha256Digest};
use crate::model::spec::PluginSpec;
use crate::model::view::{Held, Pending};

fn agent() -> AgentFacts {
    AgentFacts { name: "guest-agent".to_owned(), version: "1.2.3".to_owned() }
}

fn host() -> HostFacts {
    let labels = [("rack", "7"), ("env", "prod"), ("a", "b")];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    HostFacts {
        labels: Arc::new(labels.into()),
        host_name: "vm-1".to_owned(),
        kernel: "6.18.0".to_owned(),
        boot: BootId("boot-1".into()),
    }
}

fn report(
    plugins: &[PluginView],
    generations: &[(&str, u64)],
) -> (pb::AgentReport, OutboundMessage) {
    let plugins: Vec<_> = plugins.iter().cloned().map(Arc::new).collect();
    let numbered = |(name, number): &(&str, u64)| {
        let generation = FleetGeneration::new(*number).expect("a number");
        (name.parse().expect("a name"), Numbered { generation, deeds: Deeds::default() })
    };
    let numbered = generations.iter().map(numbered).collect();
    let message = encode_report(&agent(), &host(), (&plugins, &BTreeMap::new()), &numbered);
    (pb::AgentReport::decode(&*message.body).expect("a report"), message)
}

fn ordered(view: PluginView, body: &[u8]) -> PluginView {
    let order_digest = Some(Sha256Digest::of(body));
    let spec = Arc::new(PluginSpec { order_digest, ..PluginSpec::clone(&view.spec) });
    PluginView { current: Some(spec.clone()), spec, ..view }
}

#[test]
fn a_report_says_what_the_machine_is_and_what_the_agent_can() {
    let (report, message) = report(&[], &[]);
    assert_eq!(message.labels[MESSAGE_TYPE], "guest_agent.fleet.v1.AgentReport");
    assert_eq!(message.type_url, "type.googleapis.com/guest_agent.fleet.v1.AgentReport");
    assert_eq!(report.labels, *host().labels);
    assert_eq!((&*report.agent_version, &*report.hostname), ("1.2.3", "vm-1"));
    assert_eq!((&*report.kernel, &*report.boot_id), ("6.18.0", "boot-1"));
    assert_eq!(report.capabilities, ["generations", "faults"]);
    assert!(report.plugins.is_empty() && report.plugins_left_out == 0);
}

#[test]
fn a_plugin_has_its_revision_the_order_that_it_came_by_and_its_number() {
    let (report, _) = report(&[ordered(sample_view("web", "3"), b"the order")], &[("web", 7)]);
    let plugin = &report.plugins[0];
    assert_eq!((&*plugin.name, &*plugin.revision, plugin.generation), ("web", "3", 7));
    assert_eq!(plugin.order_digest, Sha256Digest::of(b"the order").as_bytes());
    assert_eq!(plugin.installation(), pb::plugin_report::Installation::Dynamic);
    assert!(plugin.pending_revision.is_empty() && plugin.hold.is_none());
    assert!(!plugin.stopped_by_owner);
}

#[test]
fn what_is_on_its_way_is_pending_and_what_failed_is_not() {
    let pending = |state| {
        let pending = Pending { revision: "4".parse().expect("it is"), state, error: "".into() };
        PluginView { pending: Some(pending), ..sample_view("web", "3") }
    };
    for (state, expected) in [
        (Reported::Installing, "4"),
        (Reported::Starting, "4"),
        (Reported::InstallFailed, ""),
        (Reported::Crashed, ""),
    ] {
        let plugin = report(&[pending(state)], &[]).0.plugins.remove(0);
        assert_eq!((&*plugin.revision, &*plugin.pending_revision), ("3", expected), "{state:?}");
    }
    for (state, expected) in [(Reported::Installing, "3"), (Reported::InstallFailed, "")] {
        let first = PluginView { current: None, state, ..sample_view("web", "3") };
        let plugin = report(&[first], &[]).0.plugins.remove(0);
        assert_eq!((&*plugin.revision, &*plugin.pending_revision), ("", expected), "{state:?}");
    }
}

#[test]
fn limits_that_a_person_gave_are_reported_apart() {
    let mut view = sample_view("a", "1");
    assert_eq!(report(&[view.clone()], &[]).0.plugins[0].owners_limits, None);
    let limits = Limits { memory_bytes: Some(96 << 20), cpu_percent: None, tasks: Some(77) };
    let (by, since) = ("root: backfill".into(), SystemTime::UNIX_EPOCH);
    view.limit_override = Some(LimitOverride { limits, by, since });
    let plugin = report(&[view], &[]).0.plugins.remove(0);
    assert!(plugin.owners_changes.is_empty());
    let own = plugin.owners_limits.expect("a person gave some");
    assert_eq!((own.memory_bytes, own.cpu_percent, own.tasks), (Some(96 << 20), None, Some(77)));
    assert_eq!(own.by, "root: backfill");
}

#[test]
fn a_failure_that_a_person_dismissed_is_reported_with_who_did_it() {
    let pending = Pending {
        revision: "4".parse().expect("it is"),
        state: Reported::InstallFailed,
        error: "404".into(),
    };
    let mut view = PluginView { pending: Some(pending), ..sample_view("web", "3") };
    assert_eq!(report(&[view.clone()], &[]).0.plugins[0].dismissed, None);
    view.history.dismissed = Some("root: known".into());
    let dismissed = report(&[view], &[]).0.plugins.remove(0).dismissed.expect("it is dismissed");
    assert_eq!((&*dismissed.revision, &*dismissed.by), ("4", "root: known"));
}

#[test]
fn a_hold_says_who_why_and_until_when() {
    let held = |by: &str, until| {
        let hold = Hold { by: by.into(), since: SystemTime::UNIX_EPOCH, until };
        let held = Some(Held { hold, waits: None });
        PluginView { held, stopped: Some("root".into()), ..sample_view("web", "3") }
    };
    let until = SystemTime::UNIX_EPOCH + Duration::from_secs(9);
    let plugin =
        report(&[held("root (uid 0): a freeze: yes", Some(until))], &[]).0.plugins.remove(0);
    let hold = plugin.hold.expect("it is held");
    assert_eq!((&*hold.by, &*hold.reason), ("root (uid 0)", "a freeze: yes"));
    assert_eq!(hold.until.expect("it ends").seconds, 9);
    assert!(plugin.stopped_by_owner);
    let plugin = report(&[held("root", None)], &[]).0.plugins.remove(0);
    let hold = plugin.hold.expect("it is held");
    assert_eq!((&*hold.by, &*hold.reason, hold.until), ("root", "", None));
}

#[test]
fn a_plugin_that_is_gone_is_listed_with_its_number_alone() {
    let (report, _) = report(&[sample_view("web", "3")], &[("app", 9), ("web", 7)]);
    let names: Vec<_> = report.plugins.iter().map(|plugin| &*plugin.name).collect();
    assert_eq!(names, ["web", "app"]);
    let gone = pb::PluginReport { name: "app".to_owned(), generation: 9, ..Default::default() };
    assert_eq!(report.plugins[1], gone);
}

#[test]
fn a_plugin_that_no_fleet_ordered_has_no_changes() {
    let stopped = PluginView { stopped: Some("root".into()), ..sample_view("web", "3") };
    let (mine, _) = report(std::slice::from_ref(&stopped), &[]);
    assert_eq!((mine.plugins[0].stopped_by_owner, mine.plugins[0].owners_changes.len()), (true, 0));
    let (theirs, _) = report(&[stopped], &[("web", 1)]);
    assert_eq!(theirs.plugins[0].owners_changes[0].by, "root");
}

#[test]
fn equal_facts_make_equal_bytes() {
    let stopped = PluginView { stopped: Some("root".into()), ..sample_view("b", "2") };
    let plugins = [ordered(sample_view("a", "1"), b"x"), stopped];
    let one = report(&plugins, &[("b", 1), ("c", 2)]).1;
    for _ in 0..20 {
        assert_eq!(report(&plugins, &[("b", 1), ("c", 2)]).1, one);
    }
}

#[test]
fn a_report_is_never_larger_than_it_may_be_and_says_how_many_it_leaves_out() {
    let name = |n: usize| format!("{n:04}{}", "p".repeat(59));
    let large = |n: usize| {
        let hold = Hold { by: "é".repeat(256).into(), since: SystemTime::UNIX_EPOCH, until: None };
        let revision = "r".repeat(128);
        let pending = Pending {
            revision: revision.parse().expect("a revision"),
            state: Reported::Installing,
            error: "".into(),
        };
        let view = ordered(sample_view(&name(n), &revision), b"x");
        let (held, stopped) = (Some(Held { hold, waits: None }), Some("é".repeat(256).into()));
        PluginView { pending: Some(pending), held, stopped, ..view }
    };
    let plugins: Vec<_> = (0..PLUGINS_MAX + 7).map(large).collect();
    let names: Vec<String> = (5000..5000 + PLUGINS_MAX + 3).map(name).collect();
    let gone: Vec<_> = names.iter().map(|name| (name.as_str(), u64::MAX)).collect();
    let (report, message) = report(&plugins, &gone);
    assert!(message.body.len() <= REPORT_MAX, "{}", message.body.len());
    let left_out = usize::try_from(report.plugins_left_out).expect("small");
    assert_eq!(report.plugins.len() + left_out, plugins.len() + gone.len());
    assert!(left_out >= 10, "{left_out}");
    assert!(report.plugins.len() >= PLUGINS_MAX, "those that are there come first");
}
