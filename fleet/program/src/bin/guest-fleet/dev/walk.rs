//! A fleet from its first agent through a good release and a bad one, step by step; each step prints what was
//! seen and how long it took. A step that does not happen in time is an error with what was expected and
//! what was seen.

use std::collections::BTreeMap;

use super::fleet::{Plugin, Rollout, ordered, running};
use super::machines::{BAD_KERNEL, MACHINES, Machine, RINGS, ids, of_ring};
use super::step::Step;
use super::world::{Look, World};

/// The last wave that the bad release reaches, from 0.
const HALTS: usize = 1;

/// Starts everything and installs the first release.
pub(super) async fn begin(world: &mut World) -> anyhow::Result<()> {
    let step = Step::begin("serve");
    let addresses = world.serve().await?;
    step.done(format_args!(
        "agents connect to {}, with certificates of a new authority",
        addresses.gateway
    ));

    let step = Step::begin("enrol");
    world.enrol(&addresses).await?;
    world.start_agents()?;
    world
        .until(&step, "ten agents that have connected", async |world| {
            let found = world.reported().await?;
            let all = MACHINES.iter().all(|machine| found.iter().any(|id| id == machine.id));
            Ok(if all { Look::Seen(()) } else { Look::NotYet(found.join(" ")) })
        })
        .await?;
    step.done("ten agents enrolled with tokens and are connected");

    let step = Step::begin("release 1");
    let digest = world.upload(&addresses.artifacts).await?;
    std::fs::write(world.dir().join("digest"), &digest)?;
    world.release("1")?;
    world.assign("1")?;
    world.apply(&["--at-once", "--reason", "nobody uses these machines yet"]).await?;
    all_run(world, &step, "1").await?;
    world
        .until(&step, "all orders done", async |world| {
            let orders = world.orders().await?;
            let is_done = orders.values().all(|order| order.state.starts_with("done"));
            Ok(match is_done && orders.len() == MACHINES.len() {
                true => Look::Seen(()),
                false => Look::NotYet(ordered(&orders)),
            })
        })
        .await?;
    step.done("declared for the label ring, and given to all at once; all ten agents run it");
    Ok(())
}

/// Takes the fleet to the second release, and to the third and back.
pub(super) async fn walk(world: &mut World) -> anyhow::Result<()> {
    let step = Step::begin("release 2");
    world.roll_out("2").await?;
    for wave in 0..RINGS.len() {
        reached(world, "2", wave).await?;
    }
    world
        .until(&step, "a rollout that is done", async |world| {
            let rollout = world.rollout().await?;
            Ok(if rollout.state == "done" { Look::Seen(()) } else { Look::NotYet(rollout.words()) })
        })
        .await?;
    let before = all_run(world, &step, "2").await?;
    step.done("the rollout is done: all ten agents run it");

    let generations = world.orders().await?;
    let step = Step::begin("release 3");
    world.roll_out("3").await?;
    for wave in 0..HALTS {
        reached(world, "3", wave).await?;
    }
    halted(world, &step).await?;
    let untouched = || RINGS[HALTS + 1..].iter().flat_map(|ring| of_ring(ring));
    let not_ordered = async |world: &World, step: &Step| {
        let orders = world.orders().await?;
        let is_so = untouched().all(|one| orders.get(one.id) == generations.get(one.id));
        step.check(is_so, "no order for the agents of later waves", ordered(&orders))
    };
    not_ordered(world, &step).await?;
    Step::also(format_args!("not touched  {}: no order left for them", ids(untouched())));

    let step = Step::begin("rollback");
    world.roll_back().await?;
    world
        .until(&step, "a rollout that went back", async |world| {
            let rollout = world.rollout().await?;
            let is_back = rollout.state == "rolled back";
            Ok(if is_back { Look::Seen(()) } else { Look::NotYet(rollout.words()) })
        })
        .await?;
    not_ordered(world, &step).await?;
    step.done(format_args!(
        "release 2 again on {}; still no order for the others",
        ids(reached_by_bad(|machine| !machine.is_bad()))
    ));

    let step = Step::begin("agents");
    let after = all_run(world, &step, "2").await?;
    let process = |of: &BTreeMap<&'static str, Plugin>, one: &Machine| {
        of.get(one.id).map(|plugin| {
            let (pid, since) = plugin.process();
            (pid, since.map(str::to_owned))
        })
    };
    let replaced: Vec<_> =
        untouched().filter(|one| process(&before, one) != process(&after, one)).collect();
    step.check(
        replaced.is_empty(),
        "the same processes where release 3 never was",
        format_args!("others on {}", ids(replaced)),
    )?;
    step.done("each says itself that it runs release 2, five of them in the process from before");
    Ok(())
}

/// The machines of the waves that the bad release reached.
fn reached_by_bad(is_meant: impl Fn(&Machine) -> bool) -> impl Iterator<Item = &'static Machine> {
    RINGS[..=HALTS].iter().flat_map(|ring| of_ring(ring)).filter(move |machine| is_meant(machine))
}

/// Waits until the agents of a wave have the release, and nobody of a later wave was ordered it.
async fn reached(world: &mut World, to: &str, wave: usize) -> anyhow::Result<()> {
    let step = Step::begin(format!("wave {}", wave + 1));
    // Waves have a number from 1.
    let is_over = |rollout: &Rollout| {
        rollout.wave > wave + 1
            || rollout.wave == wave + 1 && matches!(rollout.state.as_str(), "soaking" | "done")
    };
    let expected = format!("the agents of wave {} settled with release {to}", wave + 1);
    world
        .until(&step, &expected, async |world| {
            let rollout = world.rollout().await?;
            if rollout.state == "halted" {
                return Err(step.unseen(&expected, rollout.words()));
            }
            Ok(if is_over(&rollout) { Look::Seen(()) } else { Look::NotYet(rollout.words()) })
        })
        .await?;
    let orders = world.orders().await?;
    // Read after the orders: a wave that has not begun by now had not when they were read.
    let begun = world.rollout().await?.wave;
    let has = |machine: &Machine| {
        orders.get(machine.id).is_some_and(|order| order.revision.as_deref() == Some(to))
    };
    let [of_wave, of_later] = [wave..=wave, begun..=RINGS.len() - 1]
        .map(|rings| RINGS[rings].iter().flat_map(|ring| of_ring(ring)).collect::<Vec<_>>());
    let is_so = of_wave.iter().all(|one| has(one)) && !of_later.iter().any(|one| has(one));
    step.check(is_so, format_args!("{expected}, and nobody else"), ordered(&orders))?;
    step.done(format_args!("ring={}: {} run release {to}", RINGS[wave], ids(of_wave)));
    Ok(())
}

/// Waits until the bad release has stopped by itself, and says why.
async fn halted(world: &mut World, step: &Step) -> anyhow::Result<()> {
    let bad: Vec<_> = reached_by_bad(Machine::is_bad).collect();
    let halted = world
        .until(step, "a rollout that halted, and what its failures have in common", async |world| {
            let rollout = world.rollout().await?;
            let Some(progress) = &rollout.progress else {
                return Ok(Look::NotYet(rollout.words()));
            };
            let is_whole = rollout.state == "halted"
                && progress.in_flight == 0
                && progress.failed.len() == bad.len()
                && !progress.facets.is_empty();
            Ok(if is_whole { Look::Seen(rollout) } else { Look::NotYet(rollout.words()) })
        })
        .await?;
    step.check(halted.wave == HALTS + 1, "a halt in the second wave", halted.words())?;
    let (Some(cause), Some(progress)) = (&halted.cause, &halted.progress) else {
        return Err(step.unseen("a cause", halted.words()));
    };
    step.done(format_args!("halted by itself in wave {} of {}: {cause}", halted.wave, RINGS.len()));
    let failed: Vec<&str> = progress.failed.iter().map(|failed| failed.agent.as_str()).collect();
    let expected = format!("failures on {}", ids(bad.iter().copied()));
    let are_those = bad.iter().all(|machine| failed.contains(&machine.id));
    step.check(are_those, expected, failed.join(" "))?;
    for one in &progress.failed {
        Step::also(format_args!("failed       {}: {}", one.agent, one.reason));
    }
    for print in &progress.fingerprints {
        Step::also(format_args!("fingerprint  {} × {}", print.agents, print.fingerprint));
    }
    let facets = progress.facets.iter().map(|facet| {
        let (failed, passed) = (facet.failed, facet.passed);
        format!("{} {}: {failed} failed have it, {passed} passed do", facet.key, facet.value)
    });
    let facets: Vec<String> = facets.collect();
    for facet in &facets {
        Step::also(format_args!("in common    {facet}"));
    }
    let is_named = progress
        .facets
        .iter()
        .any(|facet| facet.key == "kernel" && facet.value == BAD_KERNEL && facet.passed == 0);
    step.check(
        is_named,
        format_args!("the kernel {BAD_KERNEL} as what they have in common"),
        facets.join("; "),
    )
}

/// Waits until all agents themselves say that they run a revision.
async fn all_run(
    world: &mut World,
    step: &Step,
    revision: &str,
) -> anyhow::Result<BTreeMap<&'static str, Plugin>> {
    world
        .until(step, &format!("release {revision} on all agents"), async |world| {
            let plugins = world.plugins().await?;
            let all = plugins.values().filter(|plugin| plugin.runs(revision)).count();
            Ok(match all == MACHINES.len() {
                true => Look::Seen(plugins),
                false => Look::NotYet(running(&plugins)),
            })
        })
        .await
}
