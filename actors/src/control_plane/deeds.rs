//! The deeds of people: changes of plugins for which a fleet gave orders. The report shows them to the
//! fleet, which need not undo them. Pure.
//!
//! A deed is recorded in the commit that makes its order durable, and an order of a control plane
//! that replaces it deletes it in its own commit. A deed of an order that came to
//! nothing does no harm: the report compares it with the plugin (`wire/report.rs`).

use std::sync::Arc;
use std::time::SystemTime;

use super::generations::Asks;
use crate::model::act::{Act, BY_MAX};
use crate::model::audit::Asker;
use crate::model::deed::{Change, Deed, Deeds};
use crate::model::spec::Config;
use crate::plugin::event::Order;
use crate::text::shortened;

/// Who gives orders.
#[derive(Clone, Debug)]
pub enum Giver {
    /// A control plane.
    ControlPlane,
    /// A person on this machine.
    Person {
        /// Who, and why.
        by: Arc<str>,
        /// When.
        at: SystemTime,
    },
}

/// A plugin as it is known when an order for it is taken.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The revision and the configuration of the newest numbered order, where that is known.
    pub asks: Option<Asks>,
    /// Whether the plugin is there, as far as anybody knows.
    pub is_there: bool,
}

// === impl Giver ===

impl Giver {
    /// A person, as the audit record has it.
    #[must_use]
    pub fn person(asker: Option<&Asker>, at: SystemTime) -> Self {
        let by = match asker {
            None => String::new(),
            Some(Asker { who, detail, .. }) if detail.is_empty() => who.to_string(),
            Some(Asker { who, detail, .. }) => format!("{who}: {detail}"),
        };
        Self::Person { by: shortened(&by, BY_MAX).into(), at }
    }
}

/// The deeds that the agent remembers once it took an order.
#[must_use]
pub fn after(mut deeds: Deeds, giver: &Giver, order: &Order, target: Target) -> Deeds {
    match giver {
        Giver::ControlPlane => replace(&mut deeds, order),
        Giver::Person { by, at } => {
            deeds_of(order, by, target).into_iter().for_each(|(change, by)| {
                deeds.add(Deed { change, by, at: Some(*at) });
            });
        }
    }
    deeds
}

/// An order of a control plane takes the place of the deeds of people. A revision of a person that it
/// is to replace may run on, where the order fails or waits; so that deed stays, and the digest of
/// the order that a revision came by tells the two apart.
fn replace(deeds: &mut Deeds, order: &Order) {
    match order {
        Order::Install(spec) => {
            let config = digest(spec.config.as_ref());
            deeds.retain(|change| match change {
                Change::Removed => false,
                Change::Installed(_) => spec.order_digest.is_some(),
                Change::Configured(configured) => *configured != config,
                Change::RolledBack | Change::Stopped => true,
            });
        }
        Order::Apply(config) => {
            let config = digest(config.as_ref());
            deeds.retain(|change| *change != Change::Configured(config));
        }
        Order::Remove => *deeds = Deeds::default(),
        // No control plane asks for these.
        Order::Restart | Order::Asked(_) => {}
    }
}

/// The change that a person makes by an order, and the person; `None` where the plugin is then as a control
/// plane wants it.
fn deeds_of(order: &Order, by: &Arc<str>, target: Target) -> Option<(Change, Arc<str>)> {
    let change = match order {
        Order::Install(spec) => Change::Installed(spec.revision.clone()),
        Order::Remove => Change::Removed,
        Order::Apply(config) => Change::Configured(digest(config.as_ref())),
        // The plugin keeps these texts, and the report compares them.
        Order::Asked(Act::Stop(by)) => return Some((Change::Stopped, by.clone())),
        Order::Asked(Act::Rollback(by)) => return Some((Change::RolledBack, by.clone())),
        // Limits are in the report beside the deeds: a control plane cannot take them back.
        Order::Asked(
            Act::Start | Act::Hold(_) | Act::Release | Act::Dismiss { .. } | Act::Limit(_),
        )
        | Order::Restart => return None,
    };
    let is_wanted = match &change {
        Change::Removed => target.asks == Some(Asks::Removal) || !target.is_there,
        Change::Configured(config) => target.asks == Some(Asks::Config(*config)),
        Change::Installed(_) | Change::RolledBack | Change::Stopped => false,
    };
    (!is_wanted).then(|| (change, by.clone()))
}

fn digest(config: Option<&Config>) -> Option<crate::model::id::Sha256Digest> {
    config.map(Config::digest)
}

#[cfg(test)]
mod tests;
