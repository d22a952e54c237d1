//! The check before every deployment: an admission plugin decides, and no revision becomes visible
//! that it did not admit.
//!
//! ```text
//!   Plugin (install) ── Ask ──► AdmissionActor ─► AdmissionQueue (pure) ─► host (port): process, gRPC
//!                    ◄─ AdmissionVerdict ──────┘   ▲                          │
//!                                         └── listed, resolved, ended ┘
//! ```
//!
//! `AdmissionQueue` decides; the actor here keeps the timers, the callers and the plugin's stream,
//! and carries out the decisions. It fails closed: a deployment without a verdict is denied. Where
//! no plugin is configured, everything is admitted at once.

use actix::prelude::*;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{debug, info, warn};

use crate::ports::{
    AdmissionHost, Clock, Count, Counters, Describe, HungUp, ListCalled, ListRefused, Outcome,
    QueueRecipients, ResolveCalled,
};

mod question;
mod queue;
mod verdict;

use verdict::presentable;

pub use question::{CheckId, Metadatum, Offer, ProcessRun, Question};
pub use queue::{AdmissionQueue, Asker, Effect, Event, Gate, OPEN_MAX, Wait};
pub use verdict::AdmissionVerdict;

/// Why a deployment is denied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Denied(pub Arc<str>);

/// From a plugin's actor: may this content be deployed?
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct Ask {
    /// Without a question: is everything admitted?
    question: Option<Question>,
    answer: oneshot::Sender<AdmissionVerdict>,
    /// Resolves when the caller does not wait any more.
    lost: oneshot::Receiver<Infallible>,
}

/// From the agent: use these settings from now on, and forget all answers.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct UseGate(pub Gate);

/// From the agent: it is stopping. The queue decides nothing any more, and asks the plugin to exit.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct CloseGate;

/// The admission actor.
pub struct AdmissionActor {
    queue: AdmissionQueue,
    host: Arc<dyn AdmissionHost>,
    clock: Arc<dyn Clock>,
    counters: Arc<dyn Counters>,
    service_url: watch::Receiver<Arc<str>>,
    waiting: BTreeMap<Asker, Waiting>,
    next_asker: Asker,
    stream: Option<mpsc::Sender<Arc<Offer>>>,
    armed: Option<(Wait, SpawnHandle)>,
    /// Answers the ListAdmissions call that is being handled.
    listing: Option<Result<(), ListRefused>>,
}

/// A caller that waits for a verdict.
struct Waiting {
    answer: oneshot::Sender<AdmissionVerdict>,
    deadline: SpawnHandle,
    lost: SpawnHandle,
}

/// Sends the question and waits for the answer; the queue has the deadline. Dropping the future
/// cancels the question. If the actor has ended, the answer is a denial.
pub async fn ask(queue: &Recipient<Ask>, question: Question) -> AdmissionVerdict {
    put(queue, Some(question)).await
}

/// Whether no admission plugin is configured: then everything is admitted.
pub async fn is_open(queue: &Recipient<Ask>) -> bool {
    put(queue, None).await == AdmissionVerdict::Admitted
}

async fn put(queue: &Recipient<Ask>, question: Option<Question>) -> AdmissionVerdict {
    let (answer, answered) = oneshot::channel();
    let (interest, lost) = oneshot::channel();
    queue.do_send(Ask { question, answer, lost });
    let verdict = answered.await;
    drop(interest);
    verdict.unwrap_or_else(|_| {
        AdmissionVerdict::Denied("the admission actor ended before it answered".into())
    })
}

// === impl AdmissionActor ===

impl AdmissionActor {
    /// An actor with these settings. `service_url` names the control plane that deploys.
    #[must_use]
    pub fn new(
        host: Arc<dyn AdmissionHost>,
        (clock, counters): (Arc<dyn Clock>, Arc<dyn Counters>),
        service_url: watch::Receiver<Arc<str>>,
        gate: Gate,
    ) -> Self {
        Self {
            queue: AdmissionQueue::new(host.salt(), gate),
            host,
            clock,
            counters,
            service_url,
            waiting: BTreeMap::new(),
            next_asker: Asker(0),
            stream: None,
            armed: None,
            listing: None,
        }
    }

    fn step(&mut self, event: Event, ctx: &mut Context<Self>) {
        for effect in self.queue.step(event) {
            self.perform(effect, ctx);
        }
        self.arm(ctx);
    }

    fn perform(&mut self, effect: Effect, ctx: &mut Context<Self>) {
        match effect {
            Effect::Tell { asker, verdict } => {
                if let Some(waiting) = self.waiting.remove(&asker) {
                    match verdict {
                        AdmissionVerdict::Admitted => {
                            self.counters.note(Count::Judged(Outcome::Succeeded))
                        }
                        AdmissionVerdict::Denied(_) => {
                            self.counters.note(Count::Judged(Outcome::Failed))
                        }
                        AdmissionVerdict::Closing => {}
                    }
                    ctx.cancel_future(waiting.deadline);
                    ctx.cancel_future(waiting.lost);
                    // A caller that has gone needs no answer.
                    drop(waiting.answer.send(verdict));
                }
            }
            Effect::Launch { life, command } => {
                info!(life = life.0, ?command, "starts the admission plugin");
                let host = self.host.clone();
                let queue = QueueRecipients {
                    list: ctx.address().recipient(),
                    resolve: ctx.address().recipient(),
                    hung_up: ctx.address().recipient(),
                    describe: ctx.address().recipient(),
                };
                let run = async move { host.run(life, command, queue).await };
                ctx.spawn(run.into_actor(self).map(move |how, this, ctx| {
                    if this.queue.life() == Some(life) {
                        warn!(life = life.0, how, "the admission plugin ended");
                    } else {
                        debug!(life = life.0, how, "an earlier admission plugin ended");
                    }
                    this.step(Event::Ended { life, how: presentable(&how).into() }, ctx);
                }));
            }
            Effect::Offer { life, offer } => {
                let full =
                    self.stream.as_ref().is_none_or(|stream| stream.try_send(offer).is_err());
                if full {
                    // The plugin does not read the stream: it counts as closed.
                    ctx.notify(HungUp(life));
                }
            }
            Effect::AnswerList(answer) => self.listing = Some(answer),
            Effect::End { life, why } => {
                if !why.is_empty() {
                    warn!(
                        life = life.0,
                        why = &*why,
                        "stops the admission plugin; it is not needed"
                    );
                }
                self.stream = None;
                self.host.end(life);
            }
        }
    }

    /// Arms the deadline of the queue, which has at most one beside those of the callers.
    fn arm(&mut self, ctx: &mut Context<Self>) {
        let wanted = self.queue.deadline();
        if self.armed.map(|(wait, _)| wait) == wanted.map(|(wait, _)| wait) {
            return;
        }
        if let Some((_, armed)) = self.armed.take() {
            ctx.cancel_future(armed);
        }
        if let Some((wait, after)) = wanted {
            let timer = ctx.run_later(after, move |this, ctx| {
                this.armed = None;
                this.step(Event::DeadlinePassed(wait), ctx);
            });
            self.armed = Some((wait, timer));
        }
    }
}

impl Actor for AdmissionActor {
    type Context = Context<Self>;
}

impl Handler<Ask> for AdmissionActor {
    type Result = ();

    fn handle(&mut self, Ask { question, answer, lost }: Ask, ctx: &mut Context<Self>) {
        let Some(question) = question else {
            let open = self.queue.is_open();
            let verdict = if open {
                AdmissionVerdict::Admitted
            } else {
                AdmissionVerdict::Denied("not all is".into())
            };
            drop(answer.send(verdict));
            return;
        };
        let asker = self.next_asker;
        self.next_asker = Asker(asker.0.wrapping_add(1));
        let deadline = ctx.run_later(self.queue.patience(), move |this, ctx| {
            this.step(Event::DeadlinePassed(Wait::Answer(asker)), ctx);
        });
        let lost = ctx.spawn(lost.into_actor(self).map(move |_, this, ctx| {
            if let Some(waiting) = this.waiting.remove(&asker) {
                ctx.cancel_future(waiting.deadline);
            }
            this.step(Event::Forgotten { asker }, ctx);
        }));
        self.waiting.insert(asker, Waiting { answer, deadline, lost });
        let service_url = self.service_url.borrow().clone();
        self.step(Event::Asked { asker, service_url, question, at: self.clock.now() }, ctx);
    }
}

impl Handler<ListCalled> for AdmissionActor {
    type Result = Result<(), ListRefused>;

    fn handle(&mut self, call: ListCalled, ctx: &mut Context<Self>) -> Self::Result {
        let ListCalled { life, protocol_version, stream } = call;
        // Checks that this same step offers already go to this stream.
        let before = self.stream.replace(stream);
        self.step(Event::Listed { life, protocol_version }, ctx);
        let answer = self.listing.take().unwrap_or_else(|| Err(ListRefused("not now".into())));
        if answer.is_err() {
            self.stream = before;
        }
        answer
    }
}

impl Handler<ResolveCalled> for AdmissionActor {
    type Result = ();

    fn handle(
        &mut self,
        ResolveCalled { life, id, verdict }: ResolveCalled,
        ctx: &mut Context<Self>,
    ) {
        debug!(life = life.0, id, ?verdict, "the admission plugin answers again");
        self.step(Event::Resolved { life, id, verdict }, ctx);
    }
}

impl Handler<HungUp> for AdmissionActor {
    type Result = ();

    fn handle(&mut self, HungUp(life): HungUp, ctx: &mut Context<Self>) {
        self.step(Event::HungUp { life }, ctx);
    }
}

impl Handler<Describe> for AdmissionActor {
    type Result = MessageResult<Describe>;

    fn handle(
        &mut self,
        Describe { package, sha256 }: Describe,
        _: &mut Context<Self>,
    ) -> Self::Result {
        let service_url = self.service_url.borrow().clone();
        MessageResult(self.queue.describe(&service_url, &package, sha256))
    }
}

impl Handler<UseGate> for AdmissionActor {
    type Result = ();

    fn handle(&mut self, UseGate(gate): UseGate, ctx: &mut Context<Self>) {
        self.step(Event::Reconfigured(gate), ctx);
    }
}

impl Handler<CloseGate> for AdmissionActor {
    type Result = ();

    fn handle(&mut self, CloseGate: CloseGate, ctx: &mut Context<Self>) {
        self.step(Event::Closed, ctx);
    }
}
