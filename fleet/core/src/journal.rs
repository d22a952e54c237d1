//! The order journal of one agent: what it was ordered, and what became of it.
//!
//! ```text
//!   decision + entry + what the agent has ─► next ─► Order | Again | Adopt | Nothing(why)
//!   acknowledgement, event, list ──────────► Order::told ─► the order's next state
//!
//!   Made ─► Sent ─► Acknowledged ─► Begun ─► Done | Failed | TakenBack     (outcomes)
//!     └───────┴───────────┴───────────┴────► Superseded                    (a newer order)
//! ```
//!
//! One order per plugin counts: the newest. It carries a generation above every earlier one of the
//! plugin, so that an agent can tell an old order that arrives late. A generation is the time in
//! seconds at which the order was made, or one above the last where that is more. An outcome settles a
//! generation. A done order of which the agent lacks something later has drifted ([`crate::drift`]), and the fleet may
//! let it be given again.

use std::cmp::Ordering;
use std::fmt;

use crate::desired::Decision;
use crate::drift::{Drift, Leave, Repairs};
use crate::target::{Ordered, Target};
use crate::time::Seconds;

mod drifted;
mod observed;
#[cfg(test)]
mod tests;

pub use observed::Observed;

/// For how long an order may still arrive at an agent without generations, in seconds, unless the
/// gateway is set up for another time. So long after the former session was fenced such an agent is
/// asked whether its order took.
pub const REPEAT_AFTER: u64 = 60;

/// How soon after an adoption an order that the agent had taken before may show, in seconds.
const UNDONE_WITHIN: u64 = 1800;

/// How often an order is given again to an agent that cannot say whether it took.
pub const REPEATS: u32 = 3;

/// The digests of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digests {
    /// SHA-256 of what is sent, with secrets and addresses in it: agents report it.
    pub sent: [u8; 32],
    /// SHA-256 of what was declared of it. It is the same whatever secrets and addresses a gateway puts
    /// into the body.
    pub declared: [u8; 32],
}

/// What an agent was ordered for one plugin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// The highest generation that was given or adopted.
    pub generation: u64,
    /// The newest order.
    pub order: Option<Order>,
    /// The repairs of this order's target and attempt so far.
    pub repairs: Repairs,
}

/// An order.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// Its generation, above those of all earlier orders of the plugin.
    pub generation: u64,
    /// What it asks for.
    pub target: Target,
    /// SHA-256 of its body as it was sent.
    pub digest: [u8; 32],
    /// SHA-256 of what was declared of its body; `None` where an order was recorded without it.
    pub declared: Option<[u8; 32]>,
    /// Name of the assignment it came from.
    pub assignment: String,
    /// The assignment's attempt.
    pub attempt: u32,
    /// Name of the rollout that gave it; empty where none did.
    pub rollout: String,
    /// The target that the agent had before; `None` where that is not known.
    pub replaced: Option<Target>,
    /// How often it was given again under a new message id.
    pub repeats: u32,
    /// When it was made.
    pub made: Seconds,
    /// When it came into its state.
    pub since: Seconds,
    /// What became of it.
    pub state: OrderState,
    /// The agent lacks what the order brought, or forgot the order; `None` where it has that.
    pub drift: Option<Drift>,
}

/// What became of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderState {
    /// It is recorded and may be on its way.
    Sent,
    /// The agent has it.
    Acknowledged,
    /// The agent began with it.
    Begun,
    /// It is as was ordered. `adopted` where it was so before anything was ordered.
    Done {
        /// Nothing was sent: the agent had it already.
        adopted: bool,
    },
    /// The agent could not do it, and is where it was or without the plugin.
    Failed {
        /// What the agent said.
        reason: String,
    },
    /// It was done, and the agent went back to what was before.
    TakenBack {
        /// What the agent said.
        reason: String,
    },
}

/// Whether an agent keeps generations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generations {
    /// It acknowledges and ignores an order below the highest.
    Kept,
    /// It does whatever comes last.
    Ignored {
        /// For how long an order that left may still arrive, in seconds: [`REPEAT_AFTER`].
        late: u64,
    },
}

/// What is known of an agent and a plugin when it is decided what to do.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// What the agent has; `None` while that is not known. It may be older than the newest order only where
    /// the agent keeps generations.
    pub observed: Option<&'a Observed>,
    /// Whether the agent keeps generations.
    pub generations: Generations,
    /// When the former session of the agent was fenced; `None` where there was no former session.
    pub fenced: Option<Seconds>,
    /// What the fleet lets be done.
    pub leave: Leave,
    /// What time it is.
    pub now: Seconds,
}

/// What to do about one plugin now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Give a new order, with this generation.
    Order {
        /// The generation of the new order.
        generation: u64,
    },
    /// Send the newest order again, under its own id.
    Again,
    /// Give the newest order again under a new message id.
    Repeat,
    /// Record that the agent has it already.
    Adopt {
        /// The generation to record.
        generation: u64,
        /// The digest of the body by which the agent has it.
        sent: [u8; 32],
    },
    /// Nothing, and why.
    Nothing(Idle),
}

/// Why nothing is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// No change may happen now: see the decision's permission.
    NotPermitted,
    /// It is not known yet what the agent has.
    NotObserved,
    /// The agent has the order and has not said what became of it.
    Waiting,
    /// The order was done.
    Done,
    /// The order failed, or was taken back. A person decides whether it is given again.
    Settled,
    /// The agent lacks what the order brought. The fleet decides when it is given again.
    Drifted,
    /// The agent reports a generation that the journal does not know: the ledger went back. A person decides
    /// whether orders go on.
    LedgerWentBack,
}

/// What an agent tells of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told<'a> {
    /// It has it.
    Acknowledged,
    /// It refused the message.
    Refused(&'a str),
    /// It began to install this revision.
    Begun(&'a str),
    /// This revision is installed.
    Installed(&'a str),
    /// This revision could not be installed, or did not stay.
    NotInstalled(&'a str, &'a str),
    /// The plugin is removed.
    Removed,
    /// A report, or a list that is newer than the order, says what there is of the plugin.
    Listed(&'a Observed),
}

/// Decides what to do about one plugin of an agent.
///
/// An agent without generations reports an installation of what it has as a failure, so it is ordered
/// nothing that it has: not when an earlier order may still arrive, and not once more.
///
/// `body` has the digests of the body that an order of this decision would have. Once the agent has an order,
/// only what was declared makes another one: a gateway with other secrets or addresses changes nothing
/// that is there.
///
/// Where the agent reports a generation that the journal does not know, the ledger went back, and with it
/// what is wanted. Then nothing is ordered, and nothing that the agent has is adopted, so that it stays known,
/// until a person accepts that.
#[must_use]
pub fn next(decision: &Decision, body: &Digests, entry: &Entry, at: &Situation<'_>) -> Next {
    if !decision.permission.is_go() {
        return Next::Nothing(Idle::NotPermitted);
    }
    let unknown = at.observed.and_then(|observed| entry.unknown_generation(observed, at.now));
    if unknown.is_some_and(|unknown| unknown > at.leave.accepted) {
        return Next::Nothing(Idle::LedgerWentBack);
    }
    wanted(decision, body, entry, at)
}

/// The same, whatever ledger the journal is from.
fn wanted(decision: &Decision, body: &Digests, entry: &Entry, at: &Situation<'_>) -> Next {
    let Situation { observed, generations, fenced, leave, now } = *at;
    // The agent took an order that this journal does not know: the ledger was lost or restored from
    // an older copy while it was on its way. The record of this one says nothing any more.
    let reported = observed.map_or(0, |observed| observed.generation);
    let same = entry
        .order
        .as_ref()
        .filter(|order| order.is_for(decision, body) && order.generation >= reported);
    let Some(order) = same else {
        let Some(observed) = observed else { return Next::Nothing(Idle::NotObserved) };
        // The agent may have it by an order of another attempt or assignment, which another gateway composed.
        let by = entry.order.as_ref().filter(|order| order.declared == Some(body.declared));
        let by = by.map(|order| order.digest);
        let sent = by.filter(|sent| observed.has(&decision.target, sent)).unwrap_or(body.sent);
        let digest = &sent;
        let known = entry.generation.max(observed.generation);
        let former = entry.order.as_ref().filter(|order| !order.state.is_settled());
        let is_coming = former.is_some_and(|order| order.is_of(&decision.target, body))
            && observed.takes_up(&decision.target);
        if let Generations::Ignored { late } = generations
            && (is_coming || observed.is_at(&decision.target))
        {
            // What may still arrive would undo what is there; nothing that is sent now forbids that.
            let is_alone = former.is_none_or(|order| {
                let since = fenced.map_or(order.since, |at| at.max(order.since));
                now.since(since) >= late
            });
            return if is_alone && observed.has(&decision.target, digest) {
                Next::Adopt { generation: known, sent }
            } else {
                Next::Nothing(Idle::Waiting)
            };
        }
        // An order that may still arrive, or that the agent took and has not carried out, would undo
        // what is there; a newer one forbids that.
        let is_recent = entry
            .order
            .as_ref()
            .is_none_or(|order| order.is_seen_by(observed, &decision.target, digest));
        // A person changed what an order brought, and another person has it given again.
        let is_changed = entry.order.as_ref().is_some_and(|order| {
            let is_retry =
                order.assignment == decision.assignment && order.attempt < decision.attempt;
            is_retry && order.is_changed_by_owner()
        });
        let has = observed.has(&decision.target, digest) && !is_changed;
        // The agent took a later order than this journal knows, and does no earlier one.
        let is_overruled = generations == Generations::Kept
            && former.is_some_and(|former| observed.generation > former.generation);
        return if (former.is_none() || is_overruled) && is_recent && has {
            Next::Adopt { generation: known, sent }
        } else {
            Next::Order { generation: generation_above(known, now) }
        };
    };
    let is_undone = generations == Generations::Kept
        && order.state == (OrderState::Done { adopted: true })
        && observed.is_some_and(|observed| order.is_undone(observed, now));
    if is_undone {
        return Next::Order { generation: generation_above(entry.generation, now) };
    }
    if order.drift.is_some() {
        // The report may be from before the agent had it again.
        let is_lacking = observed.is_some_and(|observed| order.lack(observed).is_some());
        return if is_lacking && leave.repair == Some(order.generation) {
            Next::Order { generation: generation_above(entry.generation, now) }
        } else {
            Next::Nothing(Idle::Drifted)
        };
    }
    let is_taken_up = observed.is_some_and(|observed| observed.takes_up(&order.target));
    match (&order.state, generations) {
        // A former session sent it, and the agent was heard no more.
        (OrderState::Sent, Generations::Ignored { .. }) if is_taken_up => {
            Next::Nothing(Idle::Waiting)
        }
        (OrderState::Sent, _) => Next::Again,
        (OrderState::Done { .. }, _) => Next::Nothing(Idle::Done),
        (OrderState::Failed { .. } | OrderState::TakenBack { .. }, _) => {
            Next::Nothing(Idle::Settled)
        }
        // It may have forgotten what it acknowledged, or what it began with.
        (OrderState::Acknowledged | OrderState::Begun, Generations::Ignored { late })
            if order.repeats < REPEATS
                && fenced.is_some_and(|at| at >= order.since && now.since(at) >= late)
                && observed.is_some()
                && !is_taken_up =>
        {
            Next::Repeat
        }
        (OrderState::Acknowledged | OrderState::Begun, _) => Next::Nothing(Idle::Waiting),
    }
}

/// A generation above what is known, and not below the clock: where the ledger was lost or restored
/// from an older copy, an order that nobody remembers may still be on its way, and two orders must
/// never have one generation.
fn generation_above(known: u64, now: Seconds) -> u64 {
    known.saturating_add(1).max(now.0)
}

// === impl Entry ===

impl Entry {
    /// Records a new order; the one before is superseded.
    pub fn give(&mut self, order: Order) {
        self.count_repair(&order);
        self.generation = self.generation.max(order.generation);
        self.order = Some(order);
    }

    /// Takes in what the agent tells; whether anything changed.
    pub fn told(&mut self, told: &Told<'_>, now: Seconds) -> bool {
        let Some(order) = &mut self.order else { return false };
        let mut is_back = false;
        if let Told::Listed(observed) = told
            && order.drift.is_some()
            && order.lack(observed).is_none()
        {
            order.drift = None;
            self.repairs.rest(now);
            is_back = true;
        }
        let Some(state) = order.after(told).filter(|state| *state != order.state) else {
            return is_back;
        };
        order.state = state;
        order.since = now;
        order.drift = None;
        true
    }
}

// === impl Order ===

impl Order {
    /// A new order, about to be sent. [`Order::replacing`] says what the agent had before.
    #[must_use]
    pub fn new(decision: &Decision, body: &Digests, generation: u64, now: Seconds) -> Self {
        let rollout = decision.turn.as_ref().filter(|turn| turn.gives);
        Self {
            rollout: rollout.map(|turn| turn.rollout.clone()).unwrap_or_default(),
            replaced: None,
            generation,
            target: decision.target.clone(),
            digest: body.sent,
            declared: Some(body.declared),
            assignment: decision.assignment.clone(),
            attempt: decision.attempt,
            repeats: 0,
            made: now,
            since: now,
            state: OrderState::Sent,
            drift: None,
        }
    }

    /// What the agent had already.
    #[must_use]
    pub fn adopted(decision: &Decision, body: &Digests, generation: u64, now: Seconds) -> Self {
        let state = OrderState::Done { adopted: true };
        // No rollout gave it.
        Self { state, rollout: String::new(), ..Self::new(decision, body, generation, now) }
    }

    /// With the target that the agent had before: that of the former order if it came about, or else the
    /// observed one.
    #[must_use]
    pub fn replacing(self, former: Option<&Self>, observed: Option<&Observed>) -> Self {
        let left = former.and_then(|former| former.left(&self.target));
        let replaced = left.or_else(|| observed.map(Observed::target));
        Self { replaced, ..self }
    }

    /// The target that the agent had last, as far as that is known, when an order for the next one comes.
    fn left(&self, next: &Target) -> Option<Target> {
        let is_there = matches!(self.state, OrderState::Done { .. }) && self.target != *next;
        if is_there { Some(self.target.clone()) } else { self.replaced.clone() }
    }

    /// The order as decisions look at it.
    #[must_use]
    pub fn ordered(&self) -> Ordered {
        Ordered {
            target: self.target.clone(),
            assignment: self.assignment.clone(),
            rollout: self.rollout.clone(),
            replaced: self.replaced.clone(),
        }
    }

    /// Whether the order has the target and the attempt that were decided. Its declaration may be another one.
    #[must_use]
    pub fn asks_for(&self, decision: &Decision) -> bool {
        self.target == decision.target && self.attempt == decision.attempt
    }

    /// Whether the order asks for what was decided. Another declaration of its body is another order, and so is
    /// another attempt. Which assignment asks does not matter.
    ///
    /// An order that the agent has not acknowledged is sent again under its own id, which stands for the same
    /// bytes: with others it is another order.
    fn is_for(&self, decision: &Decision, body: &Digests) -> bool {
        self.asks_for(decision)
            && self.is_of(&decision.target, body)
            && (self.state != OrderState::Sent || self.digest == body.sent)
    }

    /// Whether the order asks for the same declaration, whichever gateway composed it.
    fn is_of(&self, target: &Target, body: &Digests) -> bool {
        let is_declared = self.declared.is_none_or(|declared| declared == body.declared);
        self.target == *target && is_declared
    }

    /// Whether what an agent that keeps generations reported is from after this order was carried out,
    /// where the agent has `target` by this digest.
    ///
    /// An event may settle the order before a report says what the agent has since. The generation
    /// says only that the agent took the order: while it is carried out, and before that, the report
    /// shows what was there before. So one that is done, by which something else would be there, was
    /// not carried out yet, unless the agent took another one since.
    fn is_seen_by(&self, observed: &Observed, target: &Target, digest: &[u8; 32]) -> bool {
        if self.state == (OrderState::Done { adopted: true }) {
            return true;
        }
        let is_done = self.state == (OrderState::Done { adopted: false });
        let is_same = self.target == *target && self.digest == *digest;
        match observed.generation.cmp(&self.generation) {
            Ordering::Less => false,
            Ordering::Equal => !is_done || is_same,
            Ordering::Greater => true,
        }
    }

    /// Whether what was adopted is there no more, by a numbered order that the agent had taken before
    /// and carried out afterwards: one of a ledger that was lost, or one that an event of an earlier
    /// order had settled. Long afterwards it is drift.
    fn is_undone(&self, observed: &Observed, now: Seconds) -> bool {
        self.generation > 0
            && now.since(self.since) < UNDONE_WITHIN
            && observed.owners_change.as_ref().is_none_or(|change| !change.kind.can_be_undone())
            && observed.generation == self.generation
            && observed.is_instead_of(&self.target, &self.digest)
    }

    /// The state after what the agent told; `None` when it is about something else.
    ///
    /// Events come in order, and those of an earlier order of the same revision may come after this
    /// order was made. While it is not known that the agent has this order, events say nothing about
    /// it. Afterwards such an outcome is put right by the events of this order that follow, which
    /// begin with `Begun`.
    fn after(&self, told: &Told<'_>) -> Option<OrderState> {
        use OrderState::{Acknowledged, Begun, Done, Failed, Sent, TakenBack};

        let is_target =
            |revision: &str| matches!(&self.target, Target::Revision(target) if target == revision);
        match told {
            Told::Acknowledged => (self.state == Sent).then_some(Acknowledged),
            Told::Refused(reason) => (self.state == Sent)
                .then(|| Failed { reason: format!("the agent refused the order: {reason}") }),
            Told::Listed(observed) => self.after_list(observed),
            Told::Begun(_) | Told::Installed(_) | Told::NotInstalled(..) | Told::Removed
                if self.state == Sent =>
            {
                None
            }
            // Nothing was sent of it, so they are of earlier orders.
            Told::Begun(_) | Told::Installed(_) | Told::Removed
                if self.state == Done { adopted: true } =>
            {
                None
            }
            Told::Begun(revision) if is_target(revision) => Some(Begun),
            Told::Installed(revision) if is_target(revision) => Some(Done { adopted: false }),
            Told::NotInstalled(revision, reason) if is_target(revision) => {
                let reason = (*reason).to_owned();
                Some(match self.state {
                    Done { .. } => TakenBack { reason },
                    // Several events may tell of one failure; the first says most.
                    Failed { .. } | TakenBack { .. } => return None,
                    Sent | Acknowledged | Begun => Failed { reason },
                })
            }
            Told::Removed => (self.target == Target::Absent).then_some(Done { adopted: false }),
            Told::Begun(_) | Told::Installed(_) | Told::NotInstalled(..) => None,
        }
    }

    /// The state after a report or a list: an agent that keeps generations says by this one that it
    /// has the order, and what is there says that it is done. Both replace an acknowledgement or an
    /// event that came when nobody knew what it belonged to.
    fn after_list(&self, observed: &Observed) -> Option<OrderState> {
        if observed.is_listed {
            // What such an agent calls a failure may be a repetition of what it has.
            let is_done = matches!(self.state, OrderState::Done { .. });
            let has = !is_done && observed.has(&self.target, &self.digest);
            return has.then_some(OrderState::Done { adopted: false });
        }
        let is_known = observed.generation >= self.generation;
        let state = if self.state == OrderState::Sent && is_known {
            OrderState::Acknowledged
        } else {
            self.state.clone()
        };
        let is_under_way = matches!(state, OrderState::Acknowledged | OrderState::Begun);
        // A report from before the order says nothing.
        let is_recent = observed.generation == 0 || is_known;
        if is_under_way && is_recent && observed.has(&self.target, &self.digest) {
            return Some(OrderState::Done { adopted: false });
        }
        (state != self.state).then_some(state)
    }
}

// === impl OrderState ===

impl OrderState {
    /// Whether the agent said what became of the order.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        matches!(self, Self::Done { .. } | Self::Failed { .. } | Self::TakenBack { .. })
    }
}

impl fmt::Display for OrderState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sent => f.write_str("ordered"),
            Self::Acknowledged => f.write_str("acknowledged"),
            Self::Begun => f.write_str("installing"),
            Self::Done { adopted: true } => f.write_str("done (it was there)"),
            Self::Done { adopted: false } => f.write_str("done"),
            Self::Failed { reason } => write!(f, "failed: {reason}"),
            Self::TakenBack { reason } => write!(f, "taken back: {reason}"),
        }
    }
}
