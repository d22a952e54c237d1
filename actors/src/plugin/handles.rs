//! The other actors that a plugin's actor talks to.

use actix::Recipient;

use crate::admission::Ask;
use crate::messages::{Changed, Measure, Retired, Save, Taken, Unmeasure, Unwatch, Watch};

/// The other actors that a plugin's actor talks to: the same ones for all plugins.
pub struct PluginHandles {
    /// Makes states durable.
    pub store: Recipient<Save>,
    /// Learns what the plugin looks like.
    pub changed: Recipient<Changed>,
    /// Learns that an order is durable.
    pub taken: Recipient<Taken>,
    /// Learns that nothing of the plugin is left.
    pub retired: Recipient<Retired>,
    /// Watches a process.
    pub watch: Recipient<Watch>,
    /// Stops watching it.
    pub unwatch: Recipient<Unwatch>,
    /// Measures a process.
    pub measure: Recipient<Measure>,
    /// Stops measuring it.
    pub unmeasure: Recipient<Unmeasure>,
    /// Answers whether something may be deployed.
    pub admission: Recipient<Ask>,
}
