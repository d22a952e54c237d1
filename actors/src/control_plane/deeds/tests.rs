//! The deeds that orders of people add, and the deeds that an order of a control plane leaves.

use std::time::Duration;

use super::*;
use crate::model::audit::Via;
use crate::model::id::Sha256Digest;
use crate::model::spec::{PluginSpec, tests::spec};

/// A plugin of which a control plane wants the configuration that [`install`] gives.
fn there() -> Target {
    Target { asks: Some(Asks::Config(config("config"))), is_there: true }
}

fn config(text: &str) -> Option<Sha256Digest> {
    Some(Config::Text(text.into()).digest())
}

fn install(revision: &str) -> Order {
    Order::Install(spec("web", revision))
}

/// The same with the digest of its message, as a control plane gives it.
fn ordered(revision: &str) -> Order {
    let order_digest = Some(Sha256Digest::of(revision.as_bytes()));
    let spec = PluginSpec { order_digest, ..PluginSpec::clone(&spec("web", revision)) };
    Order::Install(Arc::new(spec))
}

fn apply(text: &str) -> Order {
    Order::Apply(Some(Config::Text(text.into())))
}

fn person(second: u64) -> Giver {
    let asker = Asker { who: "alice".into(), via: Via::AgentSocket, detail: "".into() };
    Giver::person(Some(&asker), SystemTime::UNIX_EPOCH + Duration::from_secs(second))
}

/// The deeds after these orders of a person, for a plugin that is there.
fn done(orders: &[Order]) -> Deeds {
    let orders = orders.iter().zip(1..);
    orders.fold(Deeds::default(), |deeds, (order, second)| {
        after(deeds, &person(second), order, there())
    })
}

fn changes(deeds: &Deeds) -> Vec<Change> {
    deeds.iter().map(|deed| deed.change.clone()).collect()
}

/// The deeds that an order of a control plane leaves of these.
#[track_caller]
fn check(orders: &[Order], then: &Order, left: &[Change]) {
    let deeds = after(done(orders), &Giver::ControlPlane, then, there());
    assert_eq!(changes(&deeds), left);
}

fn installed(revision: &str) -> Change {
    Change::Installed(revision.parse().expect("a revision"))
}

#[test]
fn each_order_of_a_person_is_remembered_with_who_gave_it_and_when() {
    let stop = Order::Asked(Act::Stop("bob: maintenance".into()));
    let back = Order::Asked(Act::Rollback("bob: slow".into()));
    let deeds = done(&[install("2"), back, apply("x"), Order::Apply(None), stop, Order::Remove]);
    let expected = [
        installed("2"),
        Change::RolledBack,
        Change::Configured(config("x")),
        Change::Configured(None),
        Change::Stopped,
        Change::Removed,
    ];
    assert_eq!(changes(&deeds), expected);
    let by: Vec<_> = deeds.iter().map(|deed| &*deed.by).collect();
    assert_eq!(by, ["alice", "bob: slow", "alice", "alice", "bob: maintenance", "alice"]);
    assert_eq!(deeds.iter().next().and_then(|deed| deed.at), {
        Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1))
    });
}

#[test]
fn an_order_that_changes_nothing_of_the_control_plane_is_no_deed() {
    for order in [Order::Restart, Order::Asked(Act::Start), Order::Asked(Act::Release)] {
        assert!(done(&[order]).is_empty());
    }
    assert!(done(&[apply("config")]).is_empty(), "a control plane ordered this configuration");
    let unknown = Target { asks: None, ..there() };
    assert_eq!(after(Deeds::default(), &person(1), &apply("config"), unknown).iter().count(), 1);
}

#[test]
fn a_person_removes_nothing_that_is_gone_or_that_a_control_plane_removes() {
    for target in
        [Target { is_there: false, ..there() }, Target { asks: Some(Asks::Removal), ..there() }]
    {
        assert!(after(Deeds::default(), &person(1), &Order::Remove, target).is_empty());
    }
    let unknown = Target { asks: None, ..there() };
    assert!(!after(Deeds::default(), &person(1), &Order::Remove, unknown).is_empty());
}

#[test]
fn a_removal_ends_with_the_next_order_of_a_control_plane() {
    for then in [ordered("1"), install("1"), Order::Remove] {
        check(&[Order::Remove], &then, &[]);
    }
}

#[test]
fn a_revision_of_a_person_stays_until_the_digest_of_an_order_tells_that_it_was_replaced() {
    check(&[install("2")], &ordered("3"), &[installed("2")]);
    // Without one, the next revision would be taken for that of a person.
    check(&[install("2")], &install("3"), &[]);
    check(&[install("2"), apply("x")], &Order::Remove, &[]);
}

#[test]
fn a_configuration_of_a_person_ends_where_a_control_plane_wants_it_too() {
    check(&[apply("x")], &apply("y"), &[Change::Configured(config("x"))]);
    check(&[apply("x")], &apply("x"), &[]);
    check(&[apply("x")], &ordered("3"), &[Change::Configured(config("x"))]);
    check(&[Order::Apply(None)], &Order::Apply(None), &[]);
}

#[test]
fn who_gives_orders_has_a_bounded_name_with_a_reason() {
    let by = |asker: Option<&Asker>| match Giver::person(asker, SystemTime::UNIX_EPOCH) {
        Giver::Person { by, .. } => by,
        Giver::ControlPlane => panic!("it is a person"),
    };
    let asker =
        |detail: &str| Some(Asker { who: "root".into(), via: Via::Http, detail: detail.into() });
    assert_eq!(&*by(asker("it leaks").as_ref()), "root: it leaks");
    assert_eq!(&*by(None), "");
    assert!(by(asker(&"é".repeat(BY_MAX)).as_ref()).len() <= BY_MAX);
}

#[test]
fn of_many_deeds_the_oldest_are_forgotten() {
    let many = crate::model::deed::DEEDS_MAX + 3;
    let orders: Vec<_> = (0..many).map(|n| install(&format!("r{n}"))).collect();
    let deeds = done(&orders);
    assert_eq!(changes(&deeds).first(), Some(&installed("r3")));
    assert_eq!(changes(&deeds).last(), Some(&installed(&format!("r{}", many - 1))));
}
