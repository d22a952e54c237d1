//! Carries effects out: each begins here and comes back through `step` as an event.
//!
//! Work on one plugin's processes takes turns, and so does work on its files
//! ([`crate::plugin::serial_queue`]).

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tracing::field::Empty;
use tracing::{Span, debug, error_span, warn};

use super::PluginActor;
use super::event::{ApplyFailure, Effect, Event};
use super::snapshot::Beside;
use super::state::{Phase, Target};
use crate::admission::{self, AdmissionVerdict, Ask, Denied, Question};
use crate::crash_point;
use crate::error::Chain;
use crate::messages::{Measure, Retired, Unmeasure, Unwatch, Watch};
use crate::model::event;
use crate::model::id::{Attempt, Process, RevisionId};
use crate::model::runs::Due;
use crate::model::spec::{Limits, PluginSpec};
use crate::ports::{
    Cleanup, Count, InstallError, InstallStep, Installer, LimitError, Outcome, Ports, Progress,
    RpcError, StopManner, StopOrder, Unenforced,
};
use crate::trace;

/// The agent gives up work that does not answer within this time, so that the work which waits for
/// its turn can begin.
const PROCESSES_WAIT: Duration = Duration::from_secs(60);

/// The same for files, of which there may be many.
const FILES_WAIT: Duration = Duration::from_secs(10 * 60);

/// Longest that setting limits may take.
const LIMIT_WAIT: Duration = Duration::from_secs(10);

/// How often a download's progress is shown.
const PROGRESS_BEAT: Duration = Duration::from_millis(250);

// === impl PluginActor: effects ===

impl PluginActor {
    /// Carries one effect out. Its answer, if it has one, comes back through `step`.
    pub(super) fn perform(&mut self, effect: Effect, ctx: &mut Context<Self>) {
        let what = name_of(&effect);
        self.reach("begin", what);
        let ends = match effect {
            Effect::CancelInstall { .. }
            | Effect::CancelLaunch { .. }
            | Effect::Watch { .. }
            | Effect::Unwatch
            | Effect::Retire
            | Effect::Announce(_) => Ends::AtOnce,
            Effect::Install { .. }
            | Effect::Launch { .. }
            | Effect::Apply { .. }
            | Effect::Limit { .. }
            | Effect::Stop { .. }
            | Effect::Sweep
            | Effect::Discard { .. }
            | Effect::Remove { .. } => Ends::Later,
        };
        self.begin(effect, ctx);
        if ends == Ends::AtOnce {
            self.reach("end", what);
        }
    }

    fn begin(&mut self, effect: Effect, ctx: &mut Context<Self>) {
        match effect {
            Effect::Install { attempt, spec } => self.install(attempt, spec, ctx),
            Effect::CancelInstall { attempt } => {
                self.end_progress(ctx);
                if let Some(handle) = self.installs.remove(&attempt) {
                    ctx.cancel_future(handle);
                }
            }
            Effect::Launch { attempt, spec } => self.launch(attempt, spec, ctx),
            Effect::CancelLaunch { attempt } => {
                for handle in self.launches.remove(&attempt).into_iter().flatten() {
                    ctx.cancel_future(handle);
                }
            }
            Effect::Apply { attempt, endpoint, config } => {
                let rpc = self.ports.rpc.clone();
                let span = self.part("apply", attempt);
                let call = async move { rpc.apply(&endpoint, config).await };
                let call = followed(call, span, |result| result.as_ref().err().map(|e| reason(e)));
                self.answer("apply", call, ctx, move |result| Event::Applied {
                    attempt,
                    result: result.map_err(|error| match error {
                        RpcError::Unimplemented => ApplyFailure::Unimplemented,
                        other => ApplyFailure::Failed(reason(&other)),
                    }),
                });
            }
            Effect::Limit { attempt, process, limits } => {
                self.measure(&process, ctx);
                self.limit(Some(attempt), process, limits, ctx);
            }
            Effect::Stop { attempt, target, cleanup, manner } => {
                self.stop(attempt, target, cleanup, manner, ctx);
            }
            Effect::Sweep => self.sweep(ctx),
            Effect::Watch { process, endpoint } => {
                self.handles.watch.do_send(Watch {
                    name: self.state.name.clone(),
                    process: process.clone(),
                    endpoint,
                    happened: ctx.address().recipient(),
                    heard: ctx.address().recipient(),
                });
                self.measure(&process, ctx);
            }
            Effect::Unwatch => {
                self.handles.unwatch.do_send(Unwatch(self.state.name.clone()));
                self.handles.unmeasure.do_send(Unmeasure(self.state.name.clone()));
            }
            Effect::Discard { revision } => self.discard(revision, ctx),
            Effect::Remove { attempt } => {
                let (installer, name) = (self.ports.installer.clone(), self.state.name.clone());
                let turn = self.files.take();
                let span = self.part("remove", attempt);
                let remove = async move {
                    let _turn = turn.await;
                    tokio::time::timeout(FILES_WAIT, installer.remove(&name)).await
                };
                let remove = followed(remove, span, |result| match result {
                    Ok(result) => result.as_ref().err().map(|error| reason(error)),
                    Err(_) => Some("the deletion took too long".into()),
                });
                self.answer("remove", remove, ctx, move |result| Event::Removed {
                    attempt,
                    result: match result {
                        Ok(result) => result.map_err(|error| reason(&error)),
                        Err(_) => Err("the deletion took too long".into()),
                    },
                });
            }
            Effect::Retire => {
                let (name, generation) = (self.state.name.clone(), self.state.generation);
                self.handles.retired.do_send(Retired { name, generation });
            }
            // Sent together with the save.
            Effect::Announce(_) => {}
        }
    }

    /// Keeps beside the files of the current revision what an agent without a store needs to adopt
    /// the plugin. The store is what counts, so nothing waits for this and a failure is only logged.
    pub(super) fn keep_beside(&mut self, ctx: &mut Context<Self>) {
        let times = (self.shown.started_at, self.shown.last_exit_at);
        let (beside, revision) = (Beside::of(&self.state, times), self.state.spec.revision.clone());
        let Some(record) = self.beside.change(&revision, beside) else { return };
        let (installer, turn) = (self.ports.installer.clone(), self.beside.turns.take());
        let name = self.state.name.clone();
        let keep = async move {
            let _turn = turn.await;
            tokio::time::timeout(FILES_WAIT, installer.keep_record(&name, &revision, record)).await
        };
        ctx.spawn(keep.into_actor(self).map(|kept, this, _| {
            let reason = match kept {
                Ok(Ok(())) => return,
                Ok(Err(error)) => Chain(&*error).to_string(),
                Err(_) => "it took too long".to_owned(),
            };
            this.beside.failed();
            debug!(plugin = %this.state.name, reason, "the record beside the revision is not written");
        }));
    }

    /// From now on the process is measured, and held to its memory limit where nothing else does
    /// that.
    fn measure(&self, process: &Process, ctx: &mut Context<Self>) {
        self.handles.measure.do_send(Measure {
            name: self.state.name.clone(),
            process: process.clone(),
            policy: self.state.spec.metrics,
            memory_limit: self.state.limits().memory_bytes,
            happened: ctx.address().recipient(),
        });
    }

    /// Sets the limits of the running process, and remembers which of them do not hold.
    fn limit(
        &self,
        answers: Option<Attempt>,
        process: Process,
        limits: Limits,
        ctx: &mut Context<Self>,
    ) {
        let launcher = self.ports.launcher.clone();
        let turn = self.processes.take();
        let name = self.state.name.clone();
        let limited = process.clone();
        let span = self.part("limit", answers.unwrap_or(self.state.attempt));
        let limit = async move {
            let _turn = turn.await;
            let limit = launcher.limit(&name, &limited, limits);
            let limit = tokio::time::timeout(LIMIT_WAIT, limit).await;
            limit.unwrap_or(Err(LimitError::TimedOut))
        };
        let limit = followed(limit, span, |result| result.as_ref().err().map(|e| reason(e)));
        ctx.spawn(limit.into_actor(self).map(move |result, this, ctx| {
            this.reach("end", "limit");
            let is_of_this = this.recorded_process().as_ref() == Some(&process);
            let result = match result {
                Ok(unenforced) if is_of_this => {
                    let before = std::mem::take(&mut this.shown.story.unenforced);
                    this.shown.story.unenforced = before.with_limits(unenforced);
                    Ok(())
                }
                Ok(_) => Ok(()),
                Err(error) => {
                    // This answer belongs to no order that could start the plugin again.
                    if answers.is_none() && is_of_this {
                        warn!(plugin = %this.state.name, error = %Chain(&error), "limits not set again");
                    }
                    Err(reason(&error))
                }
            };
            match answers {
                Some(attempt) => this.step(Event::Limited { attempt, result }, ctx),
                None => this.publish(),
            }
        }));
    }

    /// Sets the limits of a process that an earlier agent process started: the agent's own limits
    /// may be configured differently by now.
    pub(super) fn limit_again(&self, ctx: &mut Context<Self>) {
        if let Phase::Running { process, .. } | Phase::Executing { process, .. } = &self.state.phase
        {
            self.limit(None, process.clone(), self.state.limits(), ctx);
        }
    }

    /// Deletes a revision, unless a process runs that the state does not know: it may run from that
    /// revision, and a later sweep then deletes the files.
    fn discard(&self, revision: RevisionId, ctx: &mut Context<Self>) {
        let (installer, launcher) = (self.ports.installer.clone(), self.ports.launcher.clone());
        let (name, recorded) = (self.state.name.clone(), self.recorded_process());
        // A launch or a stop under way ends strays by itself, and must not be waited for: it takes
        // as long as the plugin likes.
        let alone = self.launches.is_empty() && self.stop.is_none();
        let processes = alone.then(|| self.processes.take());
        let files = self.files.take();
        let discard = async move {
            if let Some(turn) = processes {
                let looked = async {
                    let _turn = turn.await;
                    launcher.find(&name, recorded.as_ref()).await
                };
                match tokio::time::timeout(PROCESSES_WAIT, looked).await {
                    Ok(Ok(found)) if found.is_none() || found == recorded => {}
                    Ok(Ok(_)) => {
                        return Err("a process that may run from this revision lives".to_owned());
                    }
                    Ok(Err(error)) => return Err(error.to_string()),
                    Err(_) => return Err("the search for its processes failed".to_owned()),
                }
            }
            let _turn = files.await;
            match tokio::time::timeout(FILES_WAIT, installer.discard(&name, &revision)).await {
                Ok(result) => result.map_err(|error| Chain(&error).to_string()),
                Err(_) => Err("the deletion took too long".to_owned()),
            }
        };
        let span = error_span!(parent: &self.span, "discard", otel.end = Empty);
        let discard = trace::within(span, discard);
        ctx.spawn(discard.into_actor(self).map(|result, this, _| {
            this.reach("end", "discard");
            // What remains is left to the next installation or sweep.
            if let Err(reason) = result {
                warn!(plugin = %this.state.name, reason, "files of the plugin remain");
            }
        }));
    }

    fn install(&mut self, attempt: Attempt, spec: Arc<PluginSpec>, ctx: &mut Context<Self>) {
        self.end_progress(ctx);
        let (progress, shown) = watch::channel(Progress::default());
        let beat = ctx.run_interval(PROGRESS_BEAT, |this, _| {
            if let Some((progress, _)) = &mut this.shown.progress
                && progress.has_changed().unwrap_or(false)
            {
                progress.mark_unchanged();
                this.publish();
            }
        });
        self.shown.progress = Some((shown, beat));
        let installer = self.ports.installer.clone();
        let (admission, counters) = (self.handles.admission.clone(), self.ports.counters.clone());
        let turn = self.files.take();
        let span = self.part("install", attempt);
        let install = async move {
            let _turn = turn.await;
            // An installation that is given up takes its question back with it.
            let asked = admission::ask(&admission, Question::of(&spec));
            match trace::within(error_span!("admission", otel.end = Empty), asked).await {
                AdmissionVerdict::Admitted => {}
                AdmissionVerdict::Denied(reason) => {
                    let cause = Denied(reason).into();
                    return Err(InstallError { step: InstallStep::Admit, cause });
                }
                // The next agent process finds it unfinished, and begins it again.
                AdmissionVerdict::Closing => std::future::pending().await,
            }
            let begun_at = Instant::now();
            let plugin = spec.name.clone();
            let installed = installer.install(spec, progress).await;
            let outcome = Outcome::of(&installed);
            counters.note(Count::Installed { plugin, took: begun_at.elapsed(), outcome });
            installed
        };
        let install = followed(install, span, |result| result.as_ref().err().map(|e| reason(e)));
        let handle = ctx.spawn(install.into_actor(self).map(move |result, this, ctx| {
            this.reach("end", "install");
            this.installs.remove(&attempt);
            this.end_progress(ctx);
            let result = result.map_err(|error| reason(&error));
            this.step(Event::Installed { attempt, result }, ctx);
        }));
        self.installs.insert(attempt, handle);
    }

    fn launch(&mut self, attempt: Attempt, spec: Arc<PluginSpec>, ctx: &mut Context<Self>) {
        let (spawned, process) = oneshot::channel();
        let heard = ctx.spawn(process.into_actor(self).map(move |process, this, ctx| {
            // A launch that fails before it has a process drops the channel.
            if let Ok(process) = process {
                this.step(Event::Spawned { attempt, process }, ctx);
            }
        }));
        // Nothing changes the state between the step that decided on the launch and this.
        let trigger = self.state.runs.trigger;
        let Ports { installer, launcher, .. } = self.ports.clone();
        let admission = self.handles.admission.clone();
        let turn = self.processes.take();
        let span = self.part("launch", attempt);
        let launch = async move {
            let _turn = turn.await;
            if spec.is_local() {
                // The revision stays on disk; no link leads to it.
                admit_again(&*installer, &admission, &spec).await?;
            } else {
                let activated = installer.activate(&spec.name, &spec.revision).await;
                activated.map_err(|error| reason(&error))?;
            }
            launcher.launch(spec, trigger, spawned).await.map_err(|error| reason(&error))
        };
        let launch = followed(launch, span, |result| result.as_ref().err().cloned());
        let launched = ctx.spawn(launch.into_actor(self).map(move |result, this, ctx| {
            this.reach("end", "launch");
            this.launches.remove(&attempt);
            let result = result.map(|launched| {
                this.note_unenforced(attempt, launched.unenforced);
                (launched.process, launched.endpoint)
            });
            this.step(Event::Launched { attempt, result }, ctx);
        }));
        self.launches.insert(attempt, [heard, launched]);
    }

    /// Remembers which limits of a new process do not hold. An answer that came late is about an
    /// earlier process.
    fn note_unenforced(&mut self, of: Attempt, unenforced: Unenforced) {
        if matches!(self.state.phase, Phase::Starting { attempt, .. } if attempt == of) {
            self.shown.story.unenforced = unenforced;
        }
    }

    fn stop(
        &mut self,
        attempt: Attempt,
        target: Target,
        cleanup: Cleanup,
        manner: StopManner,
        ctx: &mut Context<Self>,
    ) {
        if let Some(older) = self.stop.take() {
            ctx.cancel_future(older);
        }
        let launcher = self.ports.launcher.clone();
        let turn = self.processes.take();
        let Target { process, endpoint } = target;
        let name = self.state.name.clone();
        let span = self.part("stop", attempt);
        let stop = async move {
            let _turn = turn.await;
            launcher.stop(StopOrder { name, process, endpoint, cleanup, manner }).await
        };
        let stop = followed(stop, span, |result| result.as_ref().err().map(|e| reason(e)));
        self.stop = Some(ctx.spawn(stop.into_actor(self).map(move |result, this, ctx| {
            this.reach("end", "stop");
            this.stop = None;
            let result = result.map_err(|error| reason(&error));
            let event = Event::Stopped { attempt, result };
            if this.state.runs.unfinished == Due::Yes {
                this.step_with_output(event, ctx);
            } else {
                this.step(event, ctx);
            }
        })));
    }

    /// What a crashed process left running must not outlive it.
    pub(super) fn sweep(&self, ctx: &mut Context<Self>) {
        let launcher = self.ports.launcher.clone();
        let turn = self.processes.take();
        let name = self.state.name.clone();
        let sweep = async move {
            let _turn = turn.await;
            let order = StopOrder {
                name,
                process: None,
                endpoint: None,
                cleanup: Cleanup::Keep,
                manner: StopManner::AtOnce,
            };
            tokio::time::timeout(PROCESSES_WAIT, launcher.stop(order)).await
        };
        let span = error_span!(parent: &self.span, "end_strays", otel.end = Empty);
        let sweep = trace::within(span, sweep);
        ctx.spawn(sweep.into_actor(self).map(|result, this, _| {
            this.reach("end", "sweep");
            match result {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    warn!(
                        plugin = %this.state.name,
                        error = %Chain(&error),
                        "processes of the plugin remain"
                    );
                }
                Err(_) => warn!(plugin = %this.state.name, "gave up ending processes"),
            }
        }));
    }

    fn answer<T: 'static>(
        &self,
        what: &'static str,
        work: impl Future<Output = T> + 'static,
        ctx: &mut Context<Self>,
        event: impl FnOnce(T) -> Event + 'static,
    ) {
        ctx.spawn(work.into_actor(self).map(move |result, this, ctx| {
            this.reach("end", what);
            this.step(event(result), ctx);
        }));
    }

    /// The span of one part of what the plugin is busy with.
    fn part(&self, what: &'static str, attempt: Attempt) -> Span {
        let attempt = attempt.0;
        macro_rules! part {
            ($($name:literal)*) => {
                match what {
                    $($name => error_span!(
                        parent: &self.span, $name, attempt, error = Empty, otel.end = Empty
                    ),)*
                    _ => error_span!(
                        parent: &self.span, "part", what, attempt, error = Empty, otel.end = Empty
                    ),
                }
            };
        }
        part!("install" "launch" "apply" "limit" "stop" "remove")
    }

    /// A crash point of this plugin.
    pub(super) fn reach(&self, moment: &str, what: &str) {
        crash_point::reach(moment, what, self.state.name.as_str());
    }

    fn end_progress(&mut self, ctx: &mut Context<Self>) {
        if let Some((_, beat)) = self.shown.progress.take() {
            ctx.cancel_future(beat);
        }
    }
}

/// Work inside of its span, which says why it failed, if it did.
async fn followed<T>(
    work: impl Future<Output = T>,
    span: Span,
    failure: impl FnOnce(&T) -> Option<Arc<str>>,
) -> T {
    let said = span.clone();
    let work = async move {
        let result = work.await;
        if let Some(why) = failure(&result) {
            trace::fail(&said, &why);
        }
        result
    };
    trace::within(span, work).await
}

/// When an effect is over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// When it was begun.
    AtOnce,
    /// When its future resolves.
    Later,
}

/// What an effect is called among the crash points.
const fn name_of(effect: &Effect) -> &'static str {
    match effect {
        Effect::Install { .. } => "install",
        Effect::CancelInstall { .. } => "cancel install",
        Effect::Launch { .. } => "launch",
        Effect::CancelLaunch { .. } => "cancel launch",
        Effect::Apply { .. } => "apply",
        Effect::Limit { .. } => "limit",
        Effect::Stop { .. } => "stop",
        Effect::Sweep => "sweep",
        Effect::Watch { .. } => "watch",
        Effect::Unwatch => "unwatch",
        Effect::Discard { .. } => "discard",
        Effect::Remove { .. } => "remove",
        Effect::Announce(_) => "announce",
        Effect::Retire => "retire",
    }
}

/// Checks that a local plugin still has the files that were admitted, or has the new ones admitted.
/// Where no admission plugin decides, nothing is checked.
async fn admit_again(
    installer: &dyn Installer,
    admission: &Recipient<Ask>,
    spec: &PluginSpec,
) -> Result<(), Arc<str>> {
    if admission::is_open(admission).await {
        return Ok(());
    }
    let content = installer.content(spec).await.map_err(|error| reason(&error))?;
    if content == spec.source.sha256() {
        return Ok(());
    }
    let question = Question { sha256: content, ..Question::of(spec) };
    match admission::ask(admission, question).await {
        AdmissionVerdict::Admitted => Ok(()),
        AdmissionVerdict::Denied(why) => {
            Err(format!("its entry point was replaced, and the new file is not admitted: {why}")
                .into())
        }
        // The next agent process begins the launch again.
        AdmissionVerdict::Closing => std::future::pending().await,
    }
}

/// An error with its causes. It becomes part of the state, so it is cut to what an event may carry.
fn reason(error: &(dyn std::error::Error + 'static)) -> Arc<str> {
    crate::text::shortened(&Chain(error).to_string(), event::DETAILS_MAX).into()
}
