//! What the audit record says of orders that people gave.

use std::sync::Arc;
use std::time::SystemTime;

use super::fleet::Outdated;
use super::kinds::{kind_of, kind_of_act, kind_of_refused};
use crate::model::act::Act;
use crate::model::audit::{Asker, AuditAct, AuditEntry, AuditVerdict, Target, Via};
use crate::model::event::PluginEventKind;
use crate::model::id::Generation;
use crate::plugin::event::Order;
use crate::ports::OrderKind;
use crate::wire::{DecodedOrder, NamedOrder, Refusal};

/// Most orders of one message that have an entry each. The others share one: no message may push
/// everything else out of the record.
const EACH_MAX: usize = 64;

/// Orders of a person, and who gave them.
pub(super) struct Audited {
    /// Who gave them.
    pub(super) asker: Asker,
    /// When.
    pub(super) at: SystemTime,
    /// What it is called, where it is more than its order says.
    pub(super) what: Option<AuditAct>,
}

// === impl Audited ===

impl Audited {
    /// The entries about orders that have these numbers.
    pub(super) fn of_orders(&self, decoded: &[DecodedOrder], first: Generation) -> Vec<AuditEntry> {
        let each = decoded.iter().take(EACH_MAX).zip(first.0..);
        let mut entries: Vec<_> =
            each.map(|(order, number)| self.of_order(order, Generation(number))).collect();
        if let Some(rest) = decoded.get(EACH_MAX..)
            && !rest.is_empty()
        {
            let refused = rest.iter().filter(|order| order.is_err()).count();
            let detail = format!("{} more orders, {refused} of them refused", rest.len());
            let verdict = AuditVerdict::Accepted(None);
            entries.push(self.entry(&detail, AuditAct::Orders, Target::AllPlugins, verdict));
        }
        entries
    }

    fn of_order(&self, order: &DecodedOrder, number: Generation) -> AuditEntry {
        match order {
            Ok(NamedOrder { name, revision, order }) => {
                let what = self.what.unwrap_or_else(|| act_of(order));
                let target = Target::Plugin(name.as_str().into());
                self.entry(revision, what, target, AuditVerdict::Accepted(Some(number)))
            }
            Err(Refusal { name, revision, notice, reason }) => {
                let target = Target::Plugin(name.as_str().into());
                let verdict = AuditVerdict::Refused(reason.as_str().into());
                self.entry(revision, act_of_refused(*notice), target, verdict)
            }
        }
    }

    /// The entry about what is asked of all plugins.
    pub(super) fn of_all(&self, act: &Act, number: Generation) -> AuditEntry {
        let what = act_of_kind(kind_of_act(act));
        self.entry("", what, Target::AllPlugins, AuditVerdict::Accepted(Some(number)))
    }

    /// The entry about a message with orders that none can be taken from.
    pub(super) fn of_none(&self, why: &str) -> AuditEntry {
        let verdict = AuditVerdict::Refused(why.into());
        self.entry("", AuditAct::Orders, Target::AllPlugins, verdict)
    }

    /// The asker's own words come before those of the order.
    fn entry(
        &self,
        detail: &str,
        what: AuditAct,
        target: Target,
        verdict: AuditVerdict,
    ) -> AuditEntry {
        let mut asker = self.asker.clone();
        if asker.detail.is_empty() {
            asker.detail = detail.into();
        }
        AuditEntry::new(self.at, &asker, what, target, verdict)
    }
}

/// The entry about an order of a fleet that came after a newer one.
pub(super) fn outdated(order: &Outdated, decoded: &[DecodedOrder], at: SystemTime) -> AuditEntry {
    let (what, revision) = match decoded.first() {
        Some(Ok(NamedOrder { revision, order, .. })) => (act_of(order), revision.clone()),
        Some(Err(Refusal { revision, notice, .. })) => {
            (act_of_refused(*notice), revision.as_str().into())
        }
        None => (AuditAct::Orders, "".into()),
    };
    let asker = Asker { who: "the control plane".into(), via: Via::ControlPlane, detail: revision };
    let target = Target::Plugin(order.name.as_str().into());
    AuditEntry::new(at, &asker, what, target, AuditVerdict::Refused(order.why.clone()))
}

/// The same entries about orders that could not be made durable, and so were refused after all.
pub(super) fn not_saved(entries: Vec<AuditEntry>, why: &str) -> Vec<AuditEntry> {
    let why: Arc<str> = why.into();
    let refused = |entry: AuditEntry| match entry.verdict {
        AuditVerdict::Accepted(_) => {
            AuditEntry { verdict: AuditVerdict::Refused(why.clone()), ..entry }
        }
        AuditVerdict::Refused(_) => entry,
    };
    entries.into_iter().map(refused).collect()
}

fn act_of(order: &Order) -> AuditAct {
    act_of_kind(kind_of(order))
}

fn act_of_refused(notice: PluginEventKind) -> AuditAct {
    act_of_kind(kind_of_refused(notice))
}

const fn act_of_kind(kind: OrderKind) -> AuditAct {
    match kind {
        OrderKind::Install => AuditAct::Install,
        OrderKind::Remove => AuditAct::Remove,
        OrderKind::Apply => AuditAct::Apply,
        OrderKind::Restart => AuditAct::Restart,
        OrderKind::Stop => AuditAct::Stop,
        OrderKind::Start => AuditAct::Start,
        OrderKind::Rollback => AuditAct::Rollback,
        OrderKind::Hold => AuditAct::Hold,
        OrderKind::Release => AuditAct::Release,
        OrderKind::Dismiss => AuditAct::Dismiss,
        OrderKind::Limit => AuditAct::Limit,
    }
}
