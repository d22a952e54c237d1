use super::*;
use crate::desired::Permission;

const DIGEST: [u8; 32] = [1; 32];
const OTHER: [u8; 32] = [2; 32];
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
    let order = Order { state, ..Order::new(decision, DIGEST, 3, NOW) };
    Entry { generation: 3, order: Some(order) }
}

#[track_caller]
fn check(decision: &Decision, entry: &Entry, observed: Option<&Observed>, expected: Next) {
    let kept = Generations::Kept;
    let found = next(decision, &DIGEST, entry, observed, kept, Some(NOW), NOW.plus(1000));
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
    let entry = Entry { generation: 4, order: None };
    let kept = Generations::Kept;
    let ask = |observed: &Observed, now| {
        next(&decision, &DIGEST, &entry, Some(observed), kept, None, Seconds(now))
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
    check(&one, &Entry::default(), Some(&there("1")), Next::Adopt { generation: 0 });
    let same = Observed { digest: Some(DIGEST), ..there("1") };
    check(&one, &Entry::default(), Some(&same), Next::Adopt { generation: 0 });
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
    check(&decision(Some("1")), &settled, Some(&seen), Next::Adopt { generation: 3 });
}

#[test]
fn a_removal_is_sent_only_for_what_is_there() {
    let absent = decision(None);
    check(&absent, &Entry::default(), Some(&Observed::default()), Next::Adopt { generation: 0 });
    check(&absent, &Entry::default(), Some(&there("1")), Next::Order { generation: 2000 });
    let local = Observed { is_local: true, ..there("1") };
    check(&absent, &Entry::default(), Some(&local), Next::Adopt { generation: 0 });
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
        // Whatever the agent has meanwhile: drift is shown, not mended.
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
    let found = next(&one, &OTHER, &entry, Some(&there("0")), kept, None, NOW);
    assert_eq!(found, Next::Order { generation: 1000 });
    // Which assignment asks does not matter.
    let renamed = Decision { assignment: "b".to_owned(), ..one };
    check(&renamed, &entry, Some(&there("0")), Next::Nothing(Idle::Settled));
}

#[test]
fn an_agent_without_generations_is_given_the_order_again_when_it_did_not_take() {
    let one = decision(Some("1"));
    let entry = ordered(&one, OrderState::Acknowledged);
    let ask = |observed: Option<&Observed>, generations, fenced: Option<u64>, waited| {
        let fenced = fenced.map(|after| NOW.plus(after));
        next(&one, &DIGEST, &entry, observed, generations, fenced, NOW.plus(waited))
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
    let found = next(&one, &DIGEST, &begun, Some(&forgot), IGNORED, fenced, NOW.plus(70));
    assert_eq!(found, Next::Repeat);
    let mut tired = entry.clone();
    tired.order.as_mut().expect("an order").repeats = REPEATS;
    let found =
        next(&one, &DIGEST, &tired, Some(&forgot), IGNORED, Some(NOW.plus(10)), NOW.plus(70));
    assert_eq!(found, waiting);
}

#[test]
fn an_agent_without_generations_is_not_ordered_what_it_has() {
    let ask = |wanted: Option<&str>, entry: &Entry, observed: &Observed, waited| {
        let (fenced, now) = (Some(NOW.plus(10)), NOW.plus(waited));
        next(&decision(wanted), &DIGEST, entry, Some(observed), IGNORED, fenced, now)
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
    assert_eq!(ask(Some("1"), &other, &there("1"), 70), Next::Adopt { generation: 3 });
    assert_eq!(ask(Some("1"), &other, &moving, 70), waiting);
    assert_eq!(ask(Some("1"), &other, &there("2"), 0), Next::Order { generation: 1000 });
    // A removal is sent only for what is listed.
    assert_eq!(ask(None, &other, &Observed::default(), 69), waiting);
    assert_eq!(ask(None, &other, &Observed::default(), 70), Next::Adopt { generation: 3 });
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
    let mut entry = Entry::default();
    assert!(entry.told(&Told::Listed(&Observed { generation: 8, ..Observed::default() }), NOW));
    assert_eq!(entry.generation, 8);
    assert!(!entry.told(&Told::Listed(&Observed { generation: 7, ..Observed::default() }), NOW));
}

/// An agent with one plugin, and messages on their way to it that may be lost, repeated or come late.
/// Every sequence of a few steps is tried.
mod model {
    use super::*;
    use std::collections::HashSet;

    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct World {
        /// What operators want: the number of the revision.
        wanted: u8,
        /// The journal: generation, its revision, and its state as a number.
        journal: Option<(u64, u8, u8)>,
        /// Orders on their way: generation and revision.
        flying: Vec<(u64, u8)>,
        /// The agent: highest generation, revision, and the highest generation that took effect.
        agent: (u64, u8, u64),
        /// What the agent reported last: highest generation and revision.
        reported: (u64, u8),
        /// Orders that were made, which is also the time.
        made: u8,
        /// The ledger was lost.
        was_lost: bool,
    }

    fn entry(world: &World) -> Entry {
        let Some((generation, revision, state)) = world.journal else { return Entry::default() };
        let decided = decision(Some(&revision.to_string()));
        let state = match state {
            0 => OrderState::Sent,
            1 => OrderState::Acknowledged,
            _ => OrderState::Done { adopted: state == 3 },
        };
        let order = Order { state, ..Order::new(&decided, DIGEST, generation, NOW) };
        Entry { generation, order: Some(order) }
    }

    fn remembered(entry: &Entry) -> Option<(u64, u8, u8)> {
        let order = entry.order.as_ref()?;
        let Target::Revision(revision) = &order.target else { return None };
        let state = match order.state {
            OrderState::Sent => 0,
            OrderState::Acknowledged => 1,
            OrderState::Done { adopted } => 2 + u8::from(adopted),
            _ => unreachable!("the model's agent never fails"),
        };
        Some((entry.generation, revision.parse().expect("a number"), state))
    }

    /// The gateway's step, with the agent's report at hand.
    fn act(world: &World) -> Option<World> {
        let mut next_world = world.clone();
        let (generation, revision) = world.reported;
        let observed = Observed { generation, ..there(&revision.to_string()) };
        let decided = decision(Some(&world.wanted.to_string()));
        let mut entry = entry(world);
        let now = Seconds(u64::from(world.made) + 1);
        match next(&decided, &DIGEST, &entry, Some(&observed), Generations::Kept, None, now) {
            Next::Order { generation } => {
                next_world.made += 1;
                entry.give(Order::new(&decided, DIGEST, generation, NOW));
                next_world.flying.push((generation, world.wanted));
            }
            Next::Again => {
                let (generation, revision, _) = world.journal?;
                next_world.flying.push((generation, revision));
            }
            Next::Adopt { generation } => {
                entry.give(Order::adopted(&decided, DIGEST, generation, NOW));
            }
            Next::Repeat | Next::Nothing(_) => return None,
        }
        next_world.journal = remembered(&entry);
        Some(next_world)
    }

    /// One of the flying orders arrives, and the agent's answers come back or are lost.
    fn arrive(world: &World, at: usize, answers: bool, keeps_generations: bool) -> World {
        let mut after = world.clone();
        let (generation, revision) = after.flying.remove(at);
        let (highest, _, effective) = after.agent;
        let is_old = keeps_generations && generation <= highest;
        if !is_old {
            assert!(
                !keeps_generations || generation > effective,
                "an older order took effect after a newer one: {world:?}"
            );
            after.agent = (highest.max(generation), revision, effective.max(generation));
        }
        if answers {
            let mut entry = entry(&after);
            if entry.generation == generation {
                entry.told(&Told::Acknowledged, NOW);
                if !is_old {
                    entry.told(&Told::Installed(&revision.to_string()), NOW);
                }
            }
            after.journal = remembered(&entry);
        }
        after
    }

    fn reported(world: &World) -> World {
        World { reported: (world.agent.0, world.agent.1), ..world.clone() }
    }

    fn successors(world: &World, keeps_generations: bool) -> Vec<World> {
        let mut found = Vec::new();
        if world.flying.len() < 2 {
            found.extend(act(world));
        }
        for at in 0..world.flying.len() {
            found.push(arrive(world, at, true, keeps_generations));
            found.push(arrive(world, at, false, keeps_generations));
            let mut lost = world.clone();
            lost.flying.remove(at);
            found.push(lost);
        }
        found.push(reported(world));
        if world.made < 4 {
            found.push(World { wanted: (world.wanted + 1) % 3, ..world.clone() });
        }
        if !world.was_lost {
            // The ledger is lost.
            found.push(World { journal: None, was_lost: true, ..world.clone() });
        }
        found
    }

    fn reachable(keeps_generations: bool) -> HashSet<World> {
        let start = World {
            wanted: 1,
            journal: None,
            flying: Vec::new(),
            agent: (0, 0, 0),
            reported: (0, 0),
            made: 0,
            was_lost: false,
        };
        let mut seen = HashSet::from([start.clone()]);
        let mut open = vec![start];
        while let Some(world) = open.pop() {
            for next in successors(&world, keeps_generations) {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
            assert!(seen.len() < 2_000_000, "the model has no end");
        }
        seen
    }

    /// Calm: the gateway acts and every message arrives, oldest first, with its answers.
    fn calmed(mut world: World) -> World {
        for _ in 0..20 {
            while !world.flying.is_empty() {
                world = arrive(&world, 0, true, true);
            }
            world = reported(&world);
            match act(&world) {
                Some(next) => world = next,
                None => return world,
            }
        }
        panic!("it does not come to rest: {world:?}");
    }

    #[test]
    fn law_no_older_order_takes_effect_after_a_newer_one_and_calm_brings_what_is_wanted() {
        let worlds = reachable(true);
        assert!(worlds.len() > 1000, "{}", worlds.len());
        for world in worlds {
            let calm = calmed(world.clone());
            assert_eq!(calm.agent.1, calm.wanted, "from {world:?} to {calm:?}");
        }
    }

    #[test]
    fn without_generations_the_model_shows_an_older_order_after_a_newer_one() {
        let disordered = reachable(false).into_iter().any(|world| {
            world.flying.is_empty()
                && world.journal.is_some_and(|(.., state)| state == 2)
                && world.journal.is_some_and(|(_, revision, _)| revision != world.agent.1)
        });
        assert!(disordered, "the model cannot show what generations are for");
    }
}
