//! Deletes files that nothing refers to: once when all plugins of an earlier agent process are
//! back, and daily.
//!
//! ```text
//!   timer, local API ─► Sweep ─► Sweeper (port) ─► what must stay, per plugin? ─► Manager
//! ```
//!
//! A run comes earlier when all processes have ended that made the last one leave files. This actor
//! decides when, never what: the adapter deletes by the reference set that the manager gives
//! ([`crate::ports::References`]). Nothing is deleted while the store cannot be written, because an
//! agent that crashes then returns to an earlier state, and needs the files of that state.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use async_trait::async_trait;
use tracing::{Span, debug, info, warn};

use crate::error::Chain;
use crate::manager::{ManagerActor, name_of_key};
use crate::messages::{ListPlugins, ListReferences, NotSwept, Save, SweepNow};
use crate::plugin::restart::RestartPolicy;
use crate::ports::{
    Clock, Count, Counters, Known, Losses, Machine, ReferenceSet, References, Storage, SweepFate,
    SweepManner, SweepReport, Sweeper, Table,
};
use crate::trace::{self, Trace};

/// Longest pause between two runs. The shortest is half of it: machines that were started together
/// do not sweep together.
const DAY: Duration = Duration::from_secs(30 * 3600);

/// The same after a run that did not complete.
const AGAIN: Duration = Duration::from_secs(1200);

/// The same after a run that only had to leave files that were in use; it doubles with every
/// further one. Also the longest pause after the end of processes that a run waited for.
const SOON: Duration = Duration::from_secs(10);

/// Longest that one run may take.
const SWEEP_WAIT: Duration = Duration::from_secs(600);

/// The sweep actor.
pub struct SweepActor {
    sweeper: Arc<dyn Sweeper>,
    storage: Arc<dyn Storage>,
    machine: Arc<dyn Machine>,
    clock: Arc<dyn Clock>,
    counters: Arc<dyn Counters>,
    list: Recipient<ListPlugins>,
    references: Recipient<ListReferences>,
    store: Recipient<Save>,
    runs: u32,
    /// Runs in a row that had to leave files.
    postponed: u32,
    /// Held while a run deletes.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// The files that must stay: the manager's answer now, and the losses from before the run.
struct Roster {
    references: Recipient<ListReferences>,
    losses: Losses,
}

// === impl SweepActor ===

impl SweepActor {
    /// An actor that begins when the manager knows all plugins.
    #[must_use]
    pub fn new(
        ports: crate::ports::Ports,
        manager: &Addr<ManagerActor>,
        store: Recipient<Save>,
    ) -> Self {
        Self {
            sweeper: ports.sweeper,
            storage: ports.storage,
            machine: ports.machine,
            clock: ports.clock,
            counters: ports.counters,
            list: manager.clone().recipient(),
            references: manager.clone().recipient(),
            store,
            runs: 0,
            postponed: 0,
            turn: Arc::default(),
        }
    }

    /// One run. It owns all that it needs, so that it can be part of an answer.
    fn run(
        &self,
        manner: SweepManner,
    ) -> impl Future<Output = Result<SweepReport, NotSwept>> + use<> {
        let (sweeper, storage) = (self.sweeper.clone(), self.storage.clone());
        let counters = self.counters.clone();
        let (references, store) = (self.references.clone(), self.store.clone());
        let turn = (manner == SweepManner::Delete).then(|| self.turn.clone().try_lock_owned());
        let span = match manner {
            SweepManner::Delete => Trace::of_own("sweep", "", self.clock.now()).sweep(),
            SweepManner::Pretend => Span::none(),
        };
        let run = async move {
            let _turn = turn.transpose().map_err(|_| NotSwept::UnderWay)?;
            // Nothing to save: answered as failed while something else cannot be saved.
            if manner == SweepManner::Delete
                && !matches!(store.send(Save::default()).await, Ok(Ok(())))
            {
                return Err(NotSwept::NotDurable);
            }
            let losses = storage.losses().await.map_err(|error| {
                warn!(error = %Chain(&error), "cannot tell which records were lost");
                NotSwept::NotReady
            })?;
            let roster = Arc::new(Roster { references, losses });
            roster.now().await.ok_or(NotSwept::NotReady)?;
            let swept = tokio::time::timeout(SWEEP_WAIT, sweeper.sweep(manner, roster));
            let swept = swept.await.map_err(|_| NotSwept::TimedOut(SWEEP_WAIT));
            if let (SweepManner::Delete, Ok(report)) = (manner, &swept) {
                let deleted = report.count(SweepFate::Deleted);
                counters.note(Count::Swept { deleted, failed: report.count(SweepFate::Failed) });
            }
            swept
        };
        let said = span.clone();
        trace::within(span, async move {
            let swept = run.await;
            if let Err(error) = &swept {
                trace::fail(&said, &error.to_string());
            }
            swept
        })
    }

    fn sweep(&mut self, ctx: &mut Context<Self>) {
        self.runs = self.runs.wrapping_add(1);
        let run = self.run(SweepManner::Delete);
        ctx.spawn(run.into_actor(self).map(|result, this, ctx| {
            let most = match result {
                Ok(report) => {
                    let left_out = report.count(SweepFate::Postponed) > 0;
                    this.postponed = if left_out { this.postponed.saturating_add(1) } else { 0 };
                    tell(&report);
                    match (report.unfinished, left_out) {
                        (true, _) => AGAIN,
                        (false, true) => doubled(SOON, this.postponed).min(AGAIN),
                        (false, false) => DAY,
                    }
                }
                Err(error) => {
                    warn!(%error, "files without a reference may remain");
                    AGAIN
                }
            };
            let pause = this.pause(most);
            debug!(?pause, "sweeps again");
            // Processes of one plugin end shortly after each other.
            let (sweeper, settled) = (this.sweeper.clone(), this.pause(SOON));
            let waiting = async move {
                if tokio::time::timeout(pause, sweeper.freed()).await.is_ok() {
                    tokio::time::sleep(settled).await;
                }
            };
            ctx.spawn(waiting.into_actor(this).map(|(), this, ctx| this.sweep(ctx)));
        }));
    }

    /// Between half and all of `most`.
    fn pause(&self, most: Duration) -> Duration {
        let policy = RestartPolicy { initial: most, max: most, ..RestartPolicy::default() };
        policy.pause(self.runs, 1, &self.machine.instance_id())
    }
}

/// `first` the first time, twice as much every further time.
fn doubled(first: Duration, times: u32) -> Duration {
    first.saturating_mul(1 << times.saturating_sub(1).min(20))
}

impl Actor for SweepActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(64);
        // Answered when the plugins of an earlier agent process are back.
        let ready = self.list.send(ListPlugins);
        ctx.spawn(ready.into_actor(self).map(|_, this, ctx| this.sweep(ctx)));
    }
}

impl Handler<SweepNow> for SweepActor {
    type Result = ResponseActFuture<Self, Result<SweepReport, NotSwept>>;

    fn handle(&mut self, SweepNow(manner): SweepNow, _: &mut Self::Context) -> Self::Result {
        let run = self.run(manner).into_actor(self);
        Box::pin(run.map(move |result, _, _| {
            if let (SweepManner::Delete, Ok(report)) = (manner, &result) {
                tell(report);
            }
            result
        }))
    }
}

// === impl Roster ===

#[async_trait]
impl ReferenceSet for Roster {
    async fn now(&self) -> Option<References> {
        let mut references = self.references.send(ListReferences).await.ok()??;
        for record in self.losses.records.iter().filter(|record| record.table == Table::Plugins) {
            match name_of_key(&record.key) {
                Some(name) => drop(references.lost.insert(name)),
                None => references.known = Known::Some,
            }
        }
        if !self.losses.stores.is_empty() {
            references.known = Known::Some;
        }
        Some(references)
    }
}

fn tell(report: &SweepReport) {
    for item in &report.items {
        let (path, why) = (&item.path, &item.why);
        match item.fate {
            SweepFate::Failed => warn!(path, why, "a leftover could not be deleted"),
            SweepFate::Deleted => info!(path, why, "swept away"),
            SweepFate::LeftAlone => info!(path, why, "left alone"),
            SweepFate::WouldDelete | SweepFate::Postponed => debug!(path, why, "{}", item.fate),
        }
    }
}
