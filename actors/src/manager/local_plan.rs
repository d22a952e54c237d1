//! What follows from the manifests of local plugins for the roster. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::plan::PLUGINS_MAX;
use crate::model::id::PluginName;
use crate::model::refused_manifest::RefusedManifest;
use crate::model::spec::PluginSpec;
use crate::ports::LocalScan;

pub(super) const TOO_MANY: &str =
    "there are as many plugins on this machine as there may be; remove another one first";

/// What the machine says of its own plugins, as far as it was read.
#[derive(Default)]
pub(super) struct LocalManifests {
    /// The newest scan; `None` before the first.
    pub(super) scan: Option<LocalScan>,
    /// Refusals that were reported, by the name of the folder.
    pub(super) told: BTreeMap<String, RefusedManifest>,
    pub(super) reading: Reading,
}

/// Whether the manifests are being read.
#[derive(Default)]
pub(super) enum Reading {
    #[default]
    No,
    Yes,
    /// Yes, and they may have changed since it began.
    AndAgain,
}

/// The manager's message to one plugin about its local version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalOrder {
    /// A plugin that is not on the roster is created.
    Begin(Arc<PluginSpec>),
    /// A plugin on the roster has another local version now, or none any more.
    Tell(PluginName, Option<Arc<PluginSpec>>),
    /// There are too many plugins for one more.
    Refuse(Arc<PluginSpec>),
}

/// What follows from a scan for the plugins on the roster, of each of which is known which local
/// version it knows. A plugin whose manifest is refused keeps what it has: trouble with a manifest
/// stops nothing that runs.
#[must_use]
pub fn plan(
    known: &BTreeMap<PluginName, Option<Arc<PluginSpec>>>,
    scan: &LocalScan,
) -> Vec<LocalOrder> {
    let mut orders = Vec::new();
    let mut count = known.len();
    for (name, spec) in &scan.plugins {
        match known.get(name) {
            Some(Some(same)) if same == spec => {}
            Some(_) => orders.push(LocalOrder::Tell(name.clone(), Some(spec.clone()))),
            None if count < PLUGINS_MAX => {
                count += 1;
                orders.push(LocalOrder::Begin(spec.clone()));
            }
            None => orders.push(LocalOrder::Refuse(spec.clone())),
        }
    }
    let has_manifest = |name: &PluginName| {
        scan.plugins.contains_key(name) || scan.refused.contains_key(name.as_str())
    };
    let gone = known.iter().filter(|(name, local)| local.is_some() && !has_manifest(name));
    orders.extend(gone.map(|(name, _)| LocalOrder::Tell(name.clone(), None)));
    orders
}

#[cfg(test)]
mod tests;
