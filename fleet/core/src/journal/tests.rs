use super::*;
use crate::desired::{Permission, Turn};

const DIGEST: [u8; 32] = [1; 32];
const OTHER: [u8; 32] = [2; 32];
const BODY: Digests = Digests { sent: DIGEST, declared: [7; 32] };
const NOW: Seconds = Seconds(1000);
const IGNORED: Generations = Generations::Ignored { late: REPEAT_AFTER };

fn decision(revision: Option<&str>) -> Decision {
    Decision {
        target: revision.map_or(Target::Absent, |revision| Target::Revision(revision.to_owned())),
        assignment: "a".to_owned(),
        attempt: 0,
        permission: Permission::Go,
        turn: None,
    }
}

fn there(revision: &str) -> Observed {
    Observed { revision: Some(revision.to_owned()), ..Observed::default() }
}

fn ordered(decision: &Decision, state: OrderState) -> Entry {
    let order = Order { state, ..Order::new(decision, &BODY, 3, NOW) };
    Entry { generation: 3, order: Some(order), ..Entry::default() }
}

/// What is next where a person accepted every generation that the journal does not know.
fn next(
    decision: &Decision,
    body: &Digests,
    entry: &Entry,
    observed: Option<&Observed>,
    generations: Generations,
    fenced: Option<Seconds>,
    now: Seconds,
) -> Next {
    let leave = Leave { accepted: u64::MAX, ..Leave::default() };
    let situation = Situation { observed, generations, fenced, leave, now };
    super::next(decision, body, entry, &situation)
}

#[track_caller]
fn check(decision: &Decision, entry: &Entry, observed: Option<&Observed>, expected: Next) {
    let kept = Generations::Kept;
    let found = next(decision, &BODY, entry, observed, kept, Some(NOW), NOW.plus(1000));
    assert_eq!(found, expected);
}

#[test]
fn nothing_is_ordered_that_is_not_permitted_or_whose_ground_is_unknown() {
    let mut decision = decision(Some("1"));
    check(&decision, &Entry::default(), None, Next::Nothing(Idle::NotObserved));
    decision.permission = Permission::NoRelease;
    check(
        &decision,
        &ordered(&decision, OrderState::Sent),
        None,
        Next::Nothing(Idle::NotPermitted),
    );
}

#[test]
fn a_new_order_has_a_generation_above_all_that_are_known() {
    let decision = decision(Some("2"));
    let entry = Entry { generation: 4, ..Entry::default() };
    let kept = Generations::Kept;
    let ask = |observed: &Observed, now| {
        next(&decision, &BODY, &entry, Some(observed), kept, None, Seconds(now))
    };
    assert_eq!(ask(&there("1"), 0), Next::Order { generation: 5 });
    let ahead = Observed { generation: 9, ..there("1") };
    assert_eq!(ask(&ahead, 0), Next::Order { generation: 10 });
    // An order that a lost ledger made has a time below this one.
    assert_eq!(ask(&ahead, 5000), Next::Order { generation: 5000 });
}

#[test]
fn what_is_there_is_adopted_and_never_ordered() {
    let one = decision(Some("1"));
    check(&one, &Entry::default(), Some(&there("1")), Next::Adopt { generation: 0, sent: DIGEST });
    let same = Observed { digest: Some(DIGEST), ..there("1") };
    check(&one, &Entry::default(), Some(&same), Next::Adopt { generation: 0, sent: DIGEST });
    // The revision is there, and is configured in another way.
    let changed = Observed { digest: Some(OTHER), ..there("1") };
    check(&one, &Entry::default(), Some(&changed), Next::Order { generation: 2000 });
    // It came with the machine: the fleet's is another plugin of that name.
    let local = Observed { is_local: true, ..there("1") };
    check(&one, &Entry::default(), Some(&local), Next::Order { generation: 2000 });
    // Another one is on its way.
    let moving = Observed { pending: Some("2".to_owned()), ..there("1") };
    check(&one, &Entry::default(), Some(&moving), Next::Order { generation: 2000 });
}

#[test]
fn an_order_that_may_still_arrive_is_overruled_even_by_what_is_there() {
    let entry = ordered(&decision(Some("2")), OrderState::Sent);
    check(&decision(Some("1")), &entry, Some(&there("1")), Next::Order { generation: 2000 });
    check(&decision(None), &entry, Some(&Observed::default()), Next::Order { generation: 2000 });
    let settled = ordered(&decision(Some("2")), OrderState::Failed { reason: "x".to_owned() });
    // The report is from before the order.
    check(&decision(Some("1")), &settled, Some(&there("1")), Next::Order { generation: 2000 });
    let seen = Observed { generation: 3, ..there("1") };
    check(&decision(Some("1")), &settled, Some(&seen), Next::Adopt { generation: 3, sent: DIGEST });
}

#[test]
fn what_a_done_order_takes_away_and_a_report_still_shows_is_ordered_again() {
    let (one, absent) = (decision(Some("1")), decision(None));
    let done = || OrderState::Done { adopted: false };
    let order = |expected| Next::Order { generation: expected };
    // The agent took the removal when it reported, and removed the plugin afterwards.
    let removal = ordered(&absent, done());
    let taken = Observed { generation: 3, ..there("1") };
    check(&one, &removal, Some(&taken), order(2000));
    let upgrade = ordered(&decision(Some("2")), done());
    check(&one, &upgrade, Some(&taken), order(2000));
    let other_body =
        Order { declared: Some(OTHER), digest: OTHER, ..Order::new(&one, &BODY, 3, NOW) };
    let other_body = Order { state: done(), ..other_body };
    let other_body = Entry { generation: 3, order: Some(other_body), ..Entry::default() };
    check(&one, &other_body, Some(&taken), order(2000));
    // An order that this journal does not know brought it.
    let newer = Observed { generation: 4, ..there("1") };
    check(&one, &removal, Some(&newer), Next::Adopt { generation: 4, sent: DIGEST });
    // The order is for what is there, and a person asked for another attempt.
    let again = Decision { attempt: 1, ..one.clone() };
    check(
        &again,
        &ordered(&one, done()),
        Some(&taken),
        Next::Adopt { generation: 3, sent: DIGEST },
    );
}

#[test]
fn what_was_adopted_while_an_unknown_order_was_under_way_is_ordered_when_that_shows() {
    let (one, absent) = (decision(Some("1")), decision(None));
    let adopted = |decision| ordered(decision, OrderState::Done { adopted: true });
    let at = |generation, observed| Observed { generation, ..observed };
    let gone = || Observed { is_gone: true, ..Observed::default() };
    let order = || Next::Order { generation: 2000 };
    check(&one, &adopted(&one), Some(&at(3, gone())), order());
    check(&one, &adopted(&one), Some(&at(3, there("2"))), order());
    let coming = Observed { pending: Some("2".to_owned()), ..there("1") };
    check(&one, &adopted(&one), Some(&at(3, coming)), order());
    let changed = Observed { digest: Some(OTHER), ..there("1") };
    check(&one, &adopted(&one), Some(&at(3, changed)), order());
    check(&absent, &adopted(&absent), Some(&at(3, there("1"))), order());
    let done = || Next::Nothing(Idle::Done);
    // It is still there, or comes back, or crashed.
    check(&one, &adopted(&one), Some(&at(3, there("1"))), done());
    let returns = Observed { pending: Some("1".to_owned()), ..there("2") };
    check(&one, &adopted(&one), Some(&at(3, returns)), done());
    check(&one, &adopted(&one), Some(&at(3, Observed::default())), done());
    check(&absent, &adopted(&absent), Some(&at(3, gone())), done());
    // The agent lost its generations, or is not known yet.
    check(&one, &adopted(&one), Some(&there("2")), done());
    check(&one, &adopted(&one), None, done());
    // It never took an order with a number: nothing is under way, so that this is drift.
    let mut unnumbered = adopted(&one);
    unnumbered.generation = 0;
    unnumbered.order.as_mut().expect("an order").generation = 0;
    check(&one, &unnumbered, Some(&there("2")), done());
    // What was ordered is not ordered once more.
    let ordered = ordered(&one, OrderState::Done { adopted: false });
    check(&one, &ordered, Some(&at(3, there("2"))), done());
}

#[test]
fn events_of_earlier_orders_say_nothing_about_what_was_adopted() {
    let (one, absent) = (decision(Some("1")), decision(None));
    let adopted = || OrderState::Done { adopted: true };
    told(&one, adopted(), &Told::Begun("1"), None);
    told(&one, adopted(), &Told::Installed("1"), None);
    told(&absent, adopted(), &Told::Removed, None);
    // It was on trial when it was adopted.
    let back = OrderState::TakenBack { reason: "x".to_owned() };
    told(&one, adopted(), &Told::NotInstalled("1", "x"), Some(back));
}

#[test]
fn a_removal_is_sent_only_for_what_is_there() {
    let absent = decision(None);
    check(
        &absent,
        &Entry::default(),
        Some(&Observed::default()),
        Next::Adopt { generation: 0, sent: DIGEST },
    );
    check(&absent, &Entry::default(), Some(&there("1")), Next::Order { generation: 2000 });
    let local = Observed { is_local: true, ..there("1") };
    check(&absent, &Entry::default(), Some(&local), Next::Adopt { generation: 0, sent: DIGEST });
}

#[test]
fn an_unacknowledged_order_is_sent_again_under_its_own_id() {
    let one = decision(Some("1"));
    check(&one, &ordered(&one, OrderState::Sent), None, Next::Again);
}

#[test]
fn an_outcome_settles_a_generation() {
    let one = decision(Some("1"));
    let reason = || "x".to_owned();
    for (state, idle) in [
        (OrderState::Acknowledged, Idle::Waiting),
        (OrderState::Begun, Idle::Waiting),
        (OrderState::Done { adopted: false }, Idle::Done),
        (OrderState::Failed { reason: reason() }, Idle::Settled),
        (OrderState::TakenBack { reason: reason() }, Idle::Settled),
    ] {
        // Whatever the agent has meanwhile: one look is no drift.
        for observed in [None, Some(&there("7")), Some(&Observed::default())] {
            check(&one, &ordered(&one, state.clone()), observed, Next::Nothing(idle));
        }
    }
}

#[test]
fn another_attempt_another_body_or_another_target_is_a_new_order() {
    let one = decision(Some("1"));
    let entry = ordered(&one, OrderState::Failed { reason: "x".to_owned() });
    let again = Decision { attempt: 1, ..one.clone() };
    check(&again, &entry, Some(&there("0")), Next::Order { generation: 2000 });
    check(&decision(Some("2")), &entry, Some(&there("0")), Next::Order { generation: 2000 });
    let kept = Generations::Kept;
    let other = Digests { declared: OTHER, ..BODY };
    let found = next(&one, &other, &entry, Some(&there("0")), kept, None, NOW);
    assert_eq!(found, Next::Order { generation: 1000 });
    // Which assignment asks does not matter.
    let renamed = Decision { assignment: "b".to_owned(), ..one };
    check(&renamed, &entry, Some(&there("0")), Next::Nothing(Idle::Settled));
}

#[test]
fn other_secrets_or_addresses_at_a_gateway_order_nothing_that_an_agent_has() {
    let one = decision(Some("1"));
    let elsewhere = Digests { sent: OTHER, ..BODY };
    let observed = Observed { generation: 3, digest: Some(DIGEST), ..there("1") };
    let ask = |entry: &Entry, generations| {
        next(&one, &elsewhere, entry, Some(&observed), generations, None, NOW.plus(1000))
    };
    let reason = || "x".to_owned();
    for (state, idle) in [
        (OrderState::Acknowledged, Idle::Waiting),
        (OrderState::Begun, Idle::Waiting),
        (OrderState::Done { adopted: false }, Idle::Done),
        (OrderState::Done { adopted: true }, Idle::Done),
        (OrderState::Failed { reason: reason() }, Idle::Settled),
        (OrderState::TakenBack { reason: reason() }, Idle::Settled),
    ] {
        let mut entry = ordered(&one, state);
        assert_eq!(ask(&entry, Generations::Kept), Next::Nothing(idle));
        assert_eq!(ask(&entry, IGNORED), Next::Nothing(idle));
        // It was recorded before orders said what was declared.
        entry.order.as_mut().expect("an order").declared = None;
        assert_eq!(ask(&entry, Generations::Kept), Next::Nothing(idle));
    }
    // Another attempt orders nothing that the agent has, and neither does another assignment.
    let again = Decision { attempt: 1, ..one.clone() };
    let kept = |body: &Digests, entry: &Entry, observed: &Observed| {
        next(&again, body, entry, Some(observed), Generations::Kept, None, NOW.plus(1000))
    };
    let mut done = ordered(&one, OrderState::Done { adopted: false });
    assert_eq!(kept(&elsewhere, &done, &observed), Next::Adopt { generation: 3, sent: DIGEST });
    let other = Digests { declared: OTHER, ..elsewhere };
    assert_eq!(kept(&other, &done, &observed), Next::Order { generation: 2000 });
    // The ledger is older than the agent, which has what this gateway would send by a later order.
    let later = Observed { generation: 9, digest: Some(OTHER), ..there("1") };
    assert_eq!(kept(&elsewhere, &done, &later), Next::Adopt { generation: 9, sent: OTHER });
    // Nobody knows by which declaration it came: its bytes alone say what it is.
    done.order.as_mut().expect("an order").declared = None;
    assert_eq!(kept(&elsewhere, &done, &observed), Next::Order { generation: 2000 });
    assert_eq!(kept(&BODY, &done, &observed), Next::Adopt { generation: 3, sent: DIGEST });
    // An id stands for the same bytes: an order that may not have arrived is another one with others.
    let mut sent = ordered(&one, OrderState::Sent);
    assert_eq!(ask(&sent, Generations::Kept), Next::Order { generation: 2000 });
    // Without generations it would come beside the one that is under way.
    let coming = Observed { pending: Some("1".to_owned()), is_listed: true, ..there("0") };
    let found = next(&one, &elsewhere, &sent, Some(&coming), IGNORED, None, NOW.plus(1000));
    assert_eq!(found, Next::Nothing(Idle::Waiting));
    sent.order.as_mut().expect("an order").digest = OTHER;
    assert_eq!(ask(&sent, Generations::Kept), Next::Again);
}

#[test]
fn an_agent_without_generations_is_given_the_order_again_when_it_did_not_take() {
    let one = decision(Some("1"));
    let entry = ordered(&one, OrderState::Acknowledged);
    let ask = |observed: Option<&Observed>, generations, fenced: Option<u64>, waited| {
        let fenced = fenced.map(|after| NOW.plus(after));
        next(&one, &BODY, &entry, observed, generations, fenced, NOW.plus(waited))
    };
    let waiting = Next::Nothing(Idle::Waiting);
    let forgot = there("0");
    assert_eq!(ask(Some(&forgot), IGNORED, Some(10), 70), Next::Repeat);
    assert_eq!(ask(Some(&forgot), IGNORED, Some(10), 69), waiting);
    assert_eq!(ask(Some(&forgot), IGNORED, None, 1000), waiting);
    assert_eq!(ask(Some(&forgot), Generations::Kept, Some(10), 70), waiting);
    assert_eq!(ask(None, IGNORED, Some(10), 70), waiting);
    let took = Observed { pending: Some("1".to_owned()), ..there("0") };
    assert_eq!(ask(Some(&took), IGNORED, Some(10), 70), waiting);
    // It may forget what it had begun with.
    let begun = ordered(&one, OrderState::Begun);
    let fenced = Some(NOW.plus(10));
    let found = next(&one, &BODY, &begun, Some(&forgot), IGNORED, fenced, NOW.plus(70));
    assert_eq!(found, Next::Repeat);
    let mut tired = entry.clone();
    tired.order.as_mut().expect("an order").repeats = REPEATS;
    let found = next(&one, &BODY, &tired, Some(&forgot), IGNORED, Some(NOW.plus(10)), NOW.plus(70));
    assert_eq!(found, waiting);
}

#[test]
fn an_agent_without_generations_is_not_ordered_what_it_has() {
    let ask = |wanted: Option<&str>, entry: &Entry, observed: &Observed, waited| {
        let (fenced, now) = (Some(NOW.plus(10)), NOW.plus(waited));
        next(&decision(wanted), &BODY, entry, Some(observed), IGNORED, fenced, now)
    };
    let waiting = Next::Nothing(Idle::Waiting);
    // The order may have been done when its acknowledgement was lost.
    let sent = ordered(&decision(Some("1")), OrderState::Sent);
    assert_eq!(ask(Some("1"), &sent, &there("1"), 0), waiting);
    let moving = Observed { pending: Some("1".to_owned()), ..there("0") };
    assert_eq!(ask(Some("1"), &sent, &moving, 0), waiting);
    assert_eq!(ask(Some("1"), &sent, &there("0"), 0), Next::Again);
    // The former order may still arrive, and what is there is what is wanted again.
    let other = ordered(&decision(Some("2")), OrderState::Acknowledged);
    let moving = Observed { pending: Some("2".to_owned()), ..there("1") };
    assert_eq!(ask(Some("1"), &other, &there("1"), 69), waiting);
    assert_eq!(
        ask(Some("1"), &other, &there("1"), 70),
        Next::Adopt { generation: 3, sent: DIGEST }
    );
    assert_eq!(ask(Some("1"), &other, &moving, 70), waiting);
    assert_eq!(ask(Some("1"), &other, &there("2"), 0), Next::Order { generation: 1000 });
    // A removal is sent only for what is listed.
    assert_eq!(ask(None, &other, &Observed::default(), 69), waiting);
    assert_eq!(
        ask(None, &other, &Observed::default(), 70),
        Next::Adopt { generation: 3, sent: DIGEST }
    );
    assert_eq!(ask(None, &other, &there("1"), 0), Next::Order { generation: 1000 });
    let begun = Observed { pending: Some("2".to_owned()), ..Observed::default() };
    assert_eq!(ask(None, &other, &begun, 0), Next::Order { generation: 1000 });
}

#[test]
fn a_list_of_an_agent_without_reports_settles_an_order_whatever_was_heard_of_it() {
    use OrderState::{Acknowledged, Begun, Done, Failed, Sent, TakenBack};
    let one = decision(Some("1"));
    let listed = Observed { is_listed: true, ..there("1") };
    let reason = || "already installed".to_owned();
    for state in
        [Sent, Acknowledged, Begun, Failed { reason: reason() }, TakenBack { reason: reason() }]
    {
        let other = Observed { is_listed: true, ..there("0") };
        told(&one, state.clone(), &Told::Listed(&other), None);
        told(&one, state, &Told::Listed(&listed), Some(Done { adopted: false }));
    }
    told(&one, Done { adopted: true }, &Told::Listed(&listed), None);
    let gone = Observed { is_listed: true, ..Observed::default() };
    told(&decision(None), Sent, &Told::Listed(&gone), Some(Done { adopted: false }));
}

#[track_caller]
fn told(decision: &Decision, before: OrderState, told: &Told<'_>, after: Option<OrderState>) {
    let mut entry = ordered(decision, before.clone());
    let changed = entry.told(told, NOW.plus(5));
    let order = entry.order.expect("an order");
    assert_eq!(changed, after.is_some(), "{told:?}");
    assert_eq!(order.since, if changed { NOW.plus(5) } else { NOW });
    assert_eq!(order.state, after.unwrap_or(before), "{told:?}");
}

#[test]
fn events_of_the_ordered_revision_move_the_order() {
    use OrderState::{Acknowledged, Begun, Done, Failed, Sent, TakenBack};
    let one = decision(Some("1"));
    let done = Done { adopted: false };
    let failed = Failed { reason: "disk".to_owned() };
    told(&one, Sent, &Told::Acknowledged, Some(Acknowledged));
    told(&one, done.clone(), &Told::Acknowledged, None);
    // It may belong to an earlier order of the revision.
    told(&one, Sent, &Told::Begun("1"), None);
    told(&one, Sent, &Told::Installed("1"), None);
    told(&one, Sent, &Told::NotInstalled("1", "disk"), None);
    told(&one, Acknowledged, &Told::Begun("1"), Some(Begun));
    told(&one, Acknowledged, &Told::Begun("2"), None);
    told(&one, Begun, &Told::Installed("1"), Some(done.clone()));
    told(&one, Begun, &Told::NotInstalled("1", "disk"), Some(failed.clone()));
    told(&one, Begun, &Told::NotInstalled("2", "disk"), None);
    told(&one, failed.clone(), &Told::NotInstalled("1", "later"), None);
    let back = TakenBack { reason: "disk".to_owned() };
    told(&one, done.clone(), &Told::NotInstalled("1", "disk"), Some(back));
    // The outcome of an earlier order of this revision is put right by what follows.
    told(&one, failed, &Told::Begun("1"), Some(Begun));
    told(&one, done, &Told::Removed, None);
}

#[test]
fn a_refused_message_is_a_failure_that_names_the_refusal() {
    let one = decision(Some("1"));
    let reason = "the agent refused the order: no such field".to_owned();
    told(
        &one,
        OrderState::Sent,
        &Told::Refused("no such field"),
        Some(OrderState::Failed { reason }),
    );
    told(&one, OrderState::Acknowledged, &Told::Refused("late"), None);
}

#[test]
fn a_removal_is_done_when_the_agent_says_so_or_lists_nothing() {
    let absent = decision(None);
    let done = OrderState::Done { adopted: false };
    told(&absent, OrderState::Acknowledged, &Told::Removed, Some(done.clone()));
    let gone = Observed::default();
    told(&absent, OrderState::Acknowledged, &Told::Listed(&gone), Some(done));
    // The list may have been made before the order came.
    told(&absent, OrderState::Sent, &Told::Listed(&gone), None);
    told(&absent, OrderState::Acknowledged, &Told::Listed(&there("1")), None);
}

#[test]
fn what_is_there_replaces_an_event_that_nobody_could_place() {
    let one = decision(Some("1"));
    let done = OrderState::Done { adopted: false };
    told(&one, OrderState::Acknowledged, &Told::Listed(&there("1")), Some(done.clone()));
    told(&one, OrderState::Sent, &Told::Listed(&there("1")), None);
    let moving = Observed { pending: Some("2".to_owned()), ..there("1") };
    told(&one, OrderState::Acknowledged, &Told::Listed(&moving), None);
    // An agent that keeps generations says that it has the order, and whether what is there is of it.
    let kept = |generation, digest| Observed { generation, digest: Some(digest), ..there("1") };
    told(&one, OrderState::Sent, &Told::Listed(&kept(3, DIGEST)), Some(done));
    told(&one, OrderState::Sent, &Told::Listed(&kept(3, OTHER)), Some(OrderState::Acknowledged));
    told(&one, OrderState::Sent, &Told::Listed(&kept(2, DIGEST)), None);
    told(&one, OrderState::Acknowledged, &Told::Listed(&kept(2, DIGEST)), None);
}

#[test]
fn generations_go_on_above_what_an_agent_reports() {
    let entry = Entry { generation: 5, ..Entry::default() };
    let observed = Observed { generation: 8, ..Observed::default() };
    let ask = |now: u64| {
        next(
            &decision(Some("1")),
            &BODY,
            &entry,
            Some(&observed),
            Generations::Kept,
            None,
            Seconds(now),
        )
    };
    assert_eq!(ask(0), Next::Order { generation: 9 });
    assert_eq!(ask(20), Next::Order { generation: 20 });
}

/// An agent with one plugin, and messages on their way to it that may be lost, repeated or come late.
/// It takes an order, carries it out later, and tells that later still. Every sequence of a few steps
/// is tried.
mod model;

#[test]
fn an_order_says_what_it_replaced_and_which_rollout_gave_it() {
    let revision = |text: &str| Target::Revision(text.to_owned());
    let observed = |text: &str| Observed { revision: Some(text.to_owned()), ..Observed::default() };
    let order = |to: &str, gives: bool| {
        let turn = Turn {
            rollout: "spring".to_owned(),
            to: revision(to),
            state: "running",
            waits: false,
            is_member: true,
            gives,
        };
        let decision = Decision {
            target: revision(to),
            assignment: "a".to_owned(),
            attempt: 0,
            permission: Permission::Go,
            turn: Some(turn),
        };
        Order::new(&decision, &BODY, 1, Seconds(1))
    };
    let first = order("1", true).replacing(None, Some(&observed("0")));
    assert_eq!((first.rollout.as_str(), first.replaced.clone()), ("spring", Some(revision("0"))));
    assert_eq!(order("1", false).rollout, "");
    // An order that did not come about left what was there before.
    let failed = Order { state: OrderState::Failed { reason: "x".to_owned() }, ..first.clone() };
    for former in [&first, &failed] {
        let second = order("2", true).replacing(Some(former), Some(&observed("9")));
        assert_eq!(second.replaced, Some(revision("0")), "{:?}", former.state);
    }
    let done = Order { state: OrderState::Done { adopted: false }, ..first.clone() };
    let second = order("2", true).replacing(Some(&done), None);
    assert_eq!(second.replaced, Some(revision("1")));
    // The same once more replaces nothing else.
    let again = order("2", true).replacing(Some(&second), None);
    assert_eq!(again.replaced, Some(revision("1")));
    let local = Observed { is_local: true, ..observed("0") };
    assert_eq!(order("1", true).replacing(None, Some(&local)).replaced, Some(Target::Absent));
    assert_eq!(order("1", true).replacing(None, None).replaced, None);
}
