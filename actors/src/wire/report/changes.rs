//! The changes by people on the machine in a report: the deeds that are in force.
//!
//! A deed names the order of a person, and the plugin shows whether the order was carried out. So an
//! installation that failed, and one that an order of a control plane replaced, are no changes.

use std::time::SystemTime;

use guest_agent_proto::fleet::OwnersChange;
use guest_agent_proto::fleet::owners_change::Kind;

use crate::model::deed::{Change, Deed, Deeds};
use crate::model::spec::Config;
use crate::model::view::PluginView;
use crate::text::shortened;

/// Longest text of who made a change, and why, in bytes: as long as the texts about the machine.
const BY_MAX: usize = 256;

/// The changes of a plugin that is there, in the order of their kinds.
pub(super) fn of(view: &PluginView, deeds: &Deeds) -> Vec<OwnersChange> {
    let current = view.current.as_ref().unwrap_or(&view.spec);
    // The version that came with the machine runs instead of the one that was removed.
    let removed = deeds.of(&Change::Removed).filter(|_| current.is_local());
    // A control plane's own order for this revision leaves its digest.
    let is_theirs = !current.is_local() && current.order_digest.is_none();
    let installed = deeds.of(&Change::Installed(current.revision.clone())).filter(|_| is_theirs);
    let config = current.config.as_ref().map(Config::digest);
    let configured = deeds.of(&Change::Configured(config));
    let rolled_back = view.left.as_ref().map(|left| kept(Change::RolledBack, &left.by, deeds));
    let stopped = view.stopped.as_ref().map(|by| kept(Change::Stopped, by, deeds));
    let ordered = |kind, deed: Option<&Deed>| deed.map(|deed| change(kind, &deed.by, deed.at));
    let kept = |kind, deed: Option<(&str, _)>| deed.map(|(by, at)| change(kind, by, at));
    [
        ordered(Kind::Removed, removed),
        ordered(Kind::Installed, installed),
        kept(Kind::RolledBack, rolled_back),
        ordered(Kind::Configured, configured),
        kept(Kind::Stopped, stopped),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The change of a plugin that is gone, if a person removed it.
pub(super) fn of_gone(deeds: &Deeds) -> Vec<OwnersChange> {
    let removed = deeds.of(&Change::Removed);
    removed.map(|deed| change(Kind::Removed, &deed.by, deed.at)).into_iter().collect()
}

/// The author that the plugin itself keeps; the deed, if it is remembered, says when.
fn kept<'a>(change: Change, by: &'a str, deeds: &Deeds) -> (&'a str, Option<SystemTime>) {
    let deed = deeds.of(&change).filter(|deed| *deed.by == *by);
    (by, deed.and_then(|deed| deed.at))
}

fn change(kind: Kind, by: &str, at: Option<SystemTime>) -> OwnersChange {
    let by = shortened(by, BY_MAX).to_owned();
    OwnersChange { kind: kind.into(), by, at: at.map(Into::into) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::fakes::sample_view;
    use crate::model::act::Left;
    use crate::model::id::Sha256Digest;
    use crate::model::spec::tests::local_spec;
    use crate::model::spec::{PluginSpec, Source};

    fn deeds(changes: &[Change]) -> Deeds {
        let deed = |(change, second): (&Change, _)| {
            let at = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(second));
            Deed { change: change.clone(), by: format!("alice: {second}").into(), at }
        };
        changes.iter().zip(1..).map(deed).collect()
    }

    fn installed(revision: &str) -> Change {
        Change::Installed(revision.parse().expect("a revision"))
    }

    /// A plugin whose current revision is made like this.
    fn view(make: impl FnOnce(&mut PluginSpec)) -> PluginView {
        let view = sample_view("web", "2");
        let mut spec = PluginSpec::clone(&view.spec);
        make(&mut spec);
        PluginView { current: Some(Arc::new(spec)), ..view }
    }

    #[track_caller]
    fn check(view: &PluginView, did: &[Change], expected: &[(Kind, &str, Option<i64>)]) {
        let told = of(view, &deeds(did));
        let told: Vec<_> = told
            .iter()
            .map(|it| (it.kind(), &*it.by, it.at.as_ref().map(|at| at.seconds)))
            .collect();
        assert_eq!(told, expected);
    }

    #[test]
    fn a_revision_of_a_person_is_told_with_the_one_who_installed_it() {
        let did = [installed("1"), installed("2"), installed("3")];
        check(&view(|_| {}), &did, &[(Kind::Installed, "alice: 2", Some(2))]);
        check(&view(|_| {}), &[installed("3")], &[]);
        // A revision that is being installed first has no other beside it.
        let first = PluginView { current: None, ..view(|_| {}) };
        check(&first, &did, &[(Kind::Installed, "alice: 2", Some(2))]);
    }

    #[test]
    fn a_revision_that_a_control_plane_ordered_is_no_change() {
        let theirs = |spec: &mut PluginSpec| {
            spec.order_digest = Some(Sha256Digest::of(b"order"));
        };
        check(&view(theirs), &[installed("2")], &[]);
        let local = |spec: &mut PluginSpec| {
            spec.source = Source::clone(&local_spec("web", "2").source);
        };
        check(&view(local), &[installed("2")], &[]);
    }

    #[test]
    fn a_removal_is_told_where_the_version_of_the_machine_runs_instead() {
        let local = |spec: &mut PluginSpec| {
            spec.source = Source::clone(&local_spec("web", "2").source);
        };
        check(&view(local), &[Change::Removed], &[(Kind::Removed, "alice: 1", Some(1))]);
        check(&view(|_| {}), &[Change::Removed], &[]);
        let told = of_gone(&deeds(&[Change::Stopped, Change::Removed]));
        assert_eq!((told.len(), told[0].kind(), &*told[0].by), (1, Kind::Removed, "alice: 2"));
        assert_eq!(of_gone(&deeds(&[Change::Stopped, installed("2")])), []);
    }

    #[test]
    fn a_configuration_of_a_person_is_told_while_the_plugin_has_it() {
        let config = |text: &str| Config::Text(text.into());
        let of = |text: &str| Change::Configured(Some(config(text).digest()));
        let with = |text: &str| view(|spec| spec.config = Some(config(text)));
        let did = [of("x"), of("y"), Change::Configured(None)];
        check(&with("x"), &did, &[(Kind::Configured, "alice: 1", Some(1))]);
        check(&with("y"), &did, &[(Kind::Configured, "alice: 2", Some(2))]);
        check(&view(|_| {}), &did, &[(Kind::Configured, "alice: 3", Some(3))]);
        check(&with("z"), &did, &[]);
    }

    #[test]
    fn a_plugin_knows_itself_who_stopped_it_and_who_rolled_it_back() {
        let did = [Change::RolledBack, Change::Stopped];
        check(&view(|_| {}), &did, &[]);
        let kept = |left: &str, stopped: &str| PluginView {
            left: Some(Left { revision: "3".parse().expect("a revision"), by: left.into() }),
            stopped: Some(stopped.into()),
            ..view(|_| {})
        };
        let both = [(Kind::RolledBack, "alice: 1", Some(1)), (Kind::Stopped, "alice: 2", Some(2))];
        check(&kept("alice: 1", "alice: 2"), &did, &both);
        // Older agents did not record when.
        let both = [(Kind::RolledBack, "bob", None), (Kind::Stopped, "eve", None)];
        check(&kept("bob", "eve"), &did, &both);
        check(&kept("bob", "eve"), &[], &both);
        let long = "é".repeat(256);
        let both =
            [(Kind::RolledBack, &long[..BY_MAX], None), (Kind::Stopped, &long[..BY_MAX], None)];
        check(&kept(&long, &long), &[], &both);
    }
}
