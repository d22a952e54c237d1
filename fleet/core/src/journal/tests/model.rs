use std::collections::HashSet;

use super::*;

/// Nothing of the plugin; the other numbers are revisions.
const ABSENT: u8 = 0;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    /// What operators want.
    wanted: u8,
    /// The journal: its generation, and the order's generation, target, and state as a number.
    journal: Option<(u64, u64, u8, u8)>,
    /// Orders on their way: generation and target.
    flying: Vec<(u64, u8)>,
    agent: Agent,
    /// What the agent tells and nobody heard yet, in order.
    events: Vec<u8>,
    /// What the agent reported last: highest generation, and what is there.
    reported: (u64, u8),
    /// Orders that were made, which is also the time.
    made: u8,
    /// The ledger was lost.
    was_lost: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Agent {
    /// The highest generation of an order that it took.
    highest: u64,
    /// What it took and has not carried out. No report shows it.
    taken: Option<(u64, u8)>,
    /// What is there.
    has: u8,
    /// The highest generation that took effect.
    effective: u64,
}

fn target(number: u8) -> Decision {
    let revision = number.to_string();
    decision((number != ABSENT).then_some(revision.as_str()))
}

fn entry(world: &World) -> Entry {
    let Some((known, generation, wanted, state)) = world.journal else { return Entry::default() };
    let state = match state {
        0 => OrderState::Sent,
        1 => OrderState::Acknowledged,
        _ => OrderState::Done { adopted: state == 3 },
    };
    let order = Order { state, ..Order::new(&target(wanted), &BODY, generation, NOW) };
    Entry { generation: known, order: Some(order), ..Entry::default() }
}

fn remembered(entry: &Entry) -> Option<(u64, u64, u8, u8)> {
    let order = entry.order.as_ref()?;
    let wanted = match &order.target {
        Target::Absent => ABSENT,
        Target::Revision(revision) => revision.parse().expect("a number"),
    };
    let state = match order.state {
        OrderState::Sent => 0,
        OrderState::Acknowledged => 1,
        OrderState::Done { adopted } => 2 + u8::from(adopted),
        _ => unreachable!("the model's agent never fails, and does not say that it begins"),
    };
    Some((entry.generation, order.generation, wanted, state))
}

fn observed((generation, has): (u64, u8)) -> Observed {
    let revision = (has != ABSENT).then(|| has.to_string());
    let is_gone = revision.is_none() && generation > 0;
    Observed { generation, revision, is_gone, ..Observed::default() }
}

/// The gateway's step, with the agent's report at hand.
fn act(world: &World) -> Option<World> {
    let mut after = world.clone();
    let observed = observed(world.reported);
    let decided = target(world.wanted);
    let mut entry = entry(world);
    let now = Seconds(u64::from(world.made) + 1);
    match next(&decided, &BODY, &entry, Some(&observed), Generations::Kept, None, now) {
        Next::Order { generation } => {
            after.made += 1;
            entry.give(Order::new(&decided, &BODY, generation, NOW));
            after.flying.push((generation, world.wanted));
        }
        Next::Again => {
            let (_, generation, wanted, _) = world.journal?;
            after.flying.push((generation, wanted));
        }
        Next::Adopt { generation, .. } => {
            assert!(
                world.was_lost || world.agent.taken.is_none_or(|(_, taken)| taken == world.wanted),
                "it is adopted, and what the agent took takes it away: {world:?}"
            );
            entry.give(Order::adopted(&decided, &BODY, generation, NOW));
        }
        Next::Repeat | Next::Nothing(_) => return None,
    }
    after.journal = remembered(&entry);
    Some(after)
}

/// One of the flying orders arrives, and the acknowledgement comes back or is lost.
fn arrive(world: &World, at: usize, answers: bool, keeps_generations: bool) -> World {
    let mut after = world.clone();
    let (generation, wanted) = after.flying.remove(at);
    if !keeps_generations || generation > after.agent.highest {
        after.agent.highest = after.agent.highest.max(generation);
        after.agent.taken = Some((generation, wanted));
    }
    if answers {
        let mut entry = entry(&after);
        if entry.order.as_ref().is_some_and(|order| order.generation == generation) {
            entry.told(&Told::Acknowledged, NOW);
        }
        after.journal = remembered(&entry);
    }
    after
}

/// The agent carries out what it took.
fn carry_out(world: &World, keeps_generations: bool) -> Option<World> {
    let mut after = world.clone();
    let (generation, wanted) = after.agent.taken.take()?;
    assert!(
        !keeps_generations || generation > after.agent.effective,
        "an older order took effect after a newer one: {world:?}"
    );
    after.agent.effective = after.agent.effective.max(generation);
    after.agent.has = wanted;
    after.events.push(wanted);
    Some(after)
}

/// The oldest event is heard.
fn hear(world: &World) -> Option<World> {
    let mut after = world.clone();
    let wanted = (!after.events.is_empty()).then(|| after.events.remove(0))?;
    let revision = wanted.to_string();
    let mut entry = entry(&after);
    entry.told(&if wanted == ABSENT { Told::Removed } else { Told::Installed(&revision) }, NOW);
    after.journal = remembered(&entry);
    Some(after)
}

/// The agent reports.
fn report(world: &World) -> World {
    let mut after = world.clone();
    after.reported = (world.agent.highest, world.agent.has);
    let mut entry = entry(&after);
    if entry.order.is_some() {
        entry.told(&Told::Listed(&observed(after.reported)), NOW);
        after.journal = remembered(&entry);
    }
    after
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
    if world.events.len() < 2 {
        found.extend(carry_out(world, keeps_generations));
    }
    found.extend(hear(world));
    found.push(report(world));
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
        agent: Agent { highest: 0, taken: None, has: ABSENT, effective: 0 },
        events: Vec::new(),
        reported: (0, ABSENT),
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
        assert!(seen.len() < 4_000_000, "the model has no end");
    }
    seen
}

/// Calm: the gateway acts, and everything arrives and is carried out and told, oldest first.
fn calmed(mut world: World) -> World {
    for _ in 0..20 {
        while !world.flying.is_empty() {
            world = arrive(&world, 0, true, true);
            world = carry_out(&world, true).unwrap_or(world);
        }
        world = carry_out(&world, true).unwrap_or(world);
        while let Some(heard) = hear(&world) {
            world = heard;
        }
        world = report(&world);
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
        assert_eq!(calm.agent.has, calm.wanted, "from {world:?} to {calm:?}");
    }
}

#[test]
fn without_generations_the_model_shows_an_older_order_after_a_newer_one() {
    let disordered = reachable(false).into_iter().any(|world| {
        world.flying.is_empty()
            && world.agent.taken.is_none()
            && world.events.is_empty()
            && world.journal.is_some_and(|(.., state)| state == 2)
            && world.journal.is_some_and(|(_, _, wanted, _)| wanted != world.agent.has)
    });
    assert!(disordered, "the model cannot show what generations are for");
}
