//! One play: install, configure, upgrade, a bad upgrade, remove, with an agent that dies as
//! planned.
//!
//! The play gives each order once, as a control plane does, and never gives one again: whatever the
//! agent had not acknowledged, the control plane sends by itself when the agent is back. Who died
//! is started again at once.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::local::{Act, ActRequest, AskRequest, PluginStatus};

use super::checks::{self, Witness};
use crate::harness::{ArchiveSpec, Bed, PATIENCE, orders, plugins};

/// The plugin.
pub(super) const NAME: &str = "p";

/// What became of a play.
#[derive(Debug)]
pub(super) struct Played {
    /// The points that each life of the agent reached.
    pub(super) lives: Vec<Vec<String>>,
    /// The points that an agent died at.
    pub(super) deaths: Vec<String>,
}

struct Play<'a> {
    bed: Bed,
    plan: &'a [String],
    played: Played,
}

/// Plays the scenario with an agent that dies at the first of the given points in its first life,
/// at the second in its second, and so on. Panics when something is not as it has to be.
pub(super) async fn play(plan: &[String]) -> Played {
    let bed = Bed::builder()
        .by_hand()
        .set("plugins.probation=240ms")
        .set("plugins.restart_initial_backoff=20ms")
        .build()
        .await;
    let witness = Witness::of(bed.dir());
    let good =
        witness.script(&format!("exec '{}' \"$@\"", plugins::program("echo_plugin").display()));
    let bad = witness.script("exit 3");
    let good = bed.archive("good.tar", ArchiveSpec::script(&good)).await;
    let bad = bed.archive("bad.tar", ArchiveSpec::script(&bad)).await;
    let mut play = Play { bed, plan, played: Played { lives: Vec::new(), deaths: Vec::new() } };
    play.begin_life();

    play.order(orders::install(NAME, "1", &good).config("one").order()).await;
    play.runs("1", "one").await;
    play.told(3, "1").await;
    let first = witness.starts();

    play.order(orders::apply(NAME, Some("two"))).await;
    play.told(12, "1").await;
    play.runs("1", "two").await;
    assert_eq!(witness.starts(), first, "the plugin was started again while it simply ran");

    play.order(orders::install(NAME, "2", &good).config("three").order()).await;
    play.told(5, "1").await;
    play.runs("2", "three").await;
    play.has_revisions(&["1", "2", "current"]).await;
    let second = witness.starts();

    let order = orders::install(NAME, "3", &bad).config("four");
    play.order(order.manifest(|it| it.start_attempt_count = 1).order()).await;
    play.told(8, "3").await;
    play.told_twice(4, "2").await;
    let status = play.runs("2", "three").await;
    let pending = status.pending.unwrap_or_default();
    assert_eq!((pending.revision.as_str(), pending.state.as_str()), ("3", "CRASHED"));
    play.has_revisions(&["1", "2", "current"]).await;
    assert!(witness.starts().len() > second.len(), "it did not come back as another process");

    play.act(Act::Stop).await;
    play.rests("2").await;
    play.act(Act::Start).await;
    play.told_times(4, "2", 3).await;
    play.runs("2", "three").await;
    play.act(Act::Rollback).await;
    play.told(8, "2").await;
    play.told_twice(4, "1").await;
    play.runs("1", "two").await;

    play.act(Act::Hold).await;
    play.order(orders::remove(NAME)).await;
    play.told_twice(2, "1").await;
    play.runs("1", "two").await;
    play.act(Act::Release).await;
    play.told_twice(5, "1").await;
    play.told_everything().await;
    play.end(&witness).await
}

// === impl Play ===

impl Play<'_> {
    /// Starts the next agent process, and tells it where to die.
    fn begin_life(&mut self) {
        let life = self.played.lives.len();
        let log = self.bed.dir().join(format!("points-{life}")).display().to_string();
        let mut environment = vec![("GUEST_AGENT_CRASH_POINTS".to_owned(), log)];
        if let Some(death) = self.plan.get(life) {
            environment.push(("GUEST_AGENT_CRASH_AT".to_owned(), death.clone()));
        }
        self.bed.set_environment(environment);
        self.bed.spawn_agent();
        self.played.lives.push(Vec::new());
    }

    /// Records the points that this agent process has reached so far.
    fn read_points(&mut self) {
        let life = self.played.lives.len() - 1;
        let log = std::fs::read_to_string(self.bed.dir().join(format!("points-{life}")));
        self.played.lives[life] = log.unwrap_or_default().lines().map(str::to_owned).collect();
    }

    /// If the agent died as planned, the next one takes over. Any other end is a failure.
    fn revive(&mut self) {
        let Some(status) = self.bed.agent_ended() else { return };
        self.read_points();
        let life = self.played.lives.len() - 1;
        let last = self.played.lives[life].last().cloned().unwrap_or_default();
        let is_planned = self.plan.get(life).is_some_and(|wanted| {
            *wanted == last || wanted.parse() == Ok(self.played.lives[life].len())
        });
        if status.signal() != Some(9) || !is_planned {
            self.bed.fail(format_args!("the agent ended with {status} after {last:?}"));
        }
        self.played.deaths.push(last);
        self.begin_life();
    }

    /// Waits until a condition returns a value, whichever process dies meanwhile.
    async fn until<T>(
        &mut self,
        what: &str,
        mut condition: impl AsyncFnMut(&Bed) -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.revive();
            if let Some(found) = condition(&self.bed).await {
                return found;
            }
            if Instant::now() > deadline {
                let events = checks::told(&self.bed).await;
                let status = self.bed.try_status().await.map(|status| status.plugins);
                self.bed.fail(format_args!(
                    "not so within {PATIENCE:?}: {what}\nevents: {events:?}\nstatus: {status:?}"
                ));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Gives an order, without waiting for its acknowledgement.
    async fn order(&mut self, order: ConfigurePlugin) {
        drop(self.bed.send_by_hand(vec![order]).await);
    }

    /// Asks as a person does, again where the agent died before it answered.
    async fn act(&mut self, act: Act) {
        self.until(&format!("somebody takes {act:?}"), async |bed| {
            let request =
                ActRequest { name: NAME.to_owned(), act: act.into(), ..ActRequest::default() };
            let answer = bed.client().await.ok()?.act(request).await;
            let status = bed.try_status().await.ok()?;
            let is_back = status.plugins.iter().any(|status| !status.rolled_back.is_empty());
            let is_held = status.plugins.iter().any(|status| status.hold.is_some());
            // One that was taken leaves nothing to return to, or to release.
            let was_taken = act == Act::Rollback && is_back || act == Act::Release && !is_held;
            (answer.is_ok() || was_taken).then_some(())
        })
        .await;
    }

    /// Waits until a person's stop is carried out.
    async fn rests(&mut self, revision: &str) {
        self.until(&format!("revision {revision} is stopped"), async |bed| {
            let plugins = bed.try_status().await.ok()?.plugins;
            let status = plugins.into_iter().find(|status| status.name == NAME)?;
            let rests = status.revision == revision && status.state == "STOPPED" && !status.busy;
            (rests && bed.processes(NAME).is_empty()).then_some(())
        })
        .await;
    }

    async fn told(&mut self, kind: i32, revision: &str) {
        self.told_times(kind, revision, 1).await;
    }

    async fn told_twice(&mut self, kind: i32, revision: &str) {
        self.told_times(kind, revision, 2).await;
    }

    async fn told_times(&mut self, kind: i32, revision: &str, times: usize) {
        self.until(&format!("event {kind} of revision {revision} comes"), async |bed| {
            let told = checks::told(bed).await;
            let wanted = told.iter().filter(|it| (it.0, it.1.as_str()) == (kind, revision));
            (wanted.count() >= times).then_some(())
        })
        .await;
    }

    /// Waits until a revision runs, with this configuration, and nothing more is being done.
    async fn runs(&mut self, revision: &str, config: &str) -> PluginStatus {
        self.until(&format!("revision {revision} runs with {config:?}"), async |bed| {
            let plugins = bed.try_status().await.ok()?.plugins;
            let status = plugins.into_iter().find(|status| status.name == NAME)?;
            let request = AskRequest { name: NAME.to_owned(), data: Some("config".to_owned()) };
            let is_there = status.revision == revision
                && status.state == "RUNNING"
                && !status.busy
                && status.config_hash == checks::hash(config)
                && bed.processes(NAME).len() == 1;
            if !is_there {
                return None;
            }
            let answer = bed.client().await.ok()?.ask(request).await.ok()?.into_inner();
            (answer.results == [config]).then_some(status)
        })
        .await
    }

    async fn has_revisions(&mut self, wanted: &[&str]) {
        self.until(&format!("only {wanted:?} are there"), async |bed| {
            (bed.revisions(NAME) == wanted).then_some(())
        })
        .await;
    }

    async fn told_everything(&mut self) {
        self.until("nothing is left to do or to tell", async |bed| {
            let status = bed.try_status().await.ok()?;
            let agent = status.agent.unwrap_or_default();
            (status.plugins.is_empty() && agent.outbox_depth == 0 && agent.link_connected)
                .then_some(())
        })
        .await;
    }

    /// What must hold when all is done, and the end of the play.
    async fn end(mut self, witness: &Witness) -> Played {
        self.revive();
        self.read_points();
        if self.played.deaths.len() < self.plan.len() {
            // A point that was not reached must not be reached while the bed is taken down.
            self.bed.kill_agent_only().await;
            self.bed.set_environment(Vec::new());
            self.bed.spawn_agent();
            self.told_everything().await;
        }
        let deaths = self.played.deaths.len();
        let told = checks::told(&self.bed).await;
        let starts = witness.starts();
        self.bed.finish_after(async |bed| checks::store_is_empty(bed).await).await;
        checks::events(&told, deaths);
        checks::starts(&told, &starts);
        witness.check_overlaps();
        self.played
    }
}
