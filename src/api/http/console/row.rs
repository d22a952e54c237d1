//! A plugin, and what it used lately.

use guest_agent_actors::messages::Point;
use guest_agent_console_kit::chart::{Series, Unit};
use guest_agent_proto::local::PluginStatus;

/// One plugin.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// What it looks like.
    pub(super) plugin: PluginStatus,
    /// What it used lately, oldest first.
    pub(super) points: Vec<Point>,
}

// === impl Row ===

impl Row {
    /// What its processes took of the processor.
    pub(super) fn cpu(&self) -> Series {
        let points = self.points.iter().map(|point| (point.at, f64::from(point.cpu_percent)));
        Series { name: "CPU", unit: Unit::Percent, points: points.collect(), limit: None }
    }

    /// What its processes had of the memory.
    pub(super) fn memory(&self) -> Series {
        let points = self.points.iter().map(|point| (point.at, point.memory_bytes as f64));
        Series { name: "Memory", unit: Unit::Bytes, points: points.collect(), limit: None }
    }
}
