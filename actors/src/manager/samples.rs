//! What plugins were measured to use, as the manager keeps it for lists and reports.

use actix::prelude::*;

use super::ManagerActor;
use crate::messages::{MetricsDelivered, Sampled};

impl Handler<Sampled> for ManagerActor {
    type Result = ();

    fn handle(&mut self, Sampled { readings, points }: Sampled, _: &mut Self::Context) {
        for (name, reading) in readings {
            if let Some(entry) = self.roster.get_mut(&name) {
                entry.newest = Some(reading);
            }
        }
        for (name, point) in points {
            let Some(entry) = self.roster.get_mut(&name) else { continue };
            let kept = entry.view.metrics.points.max(1);
            while entry.points.len() >= kept {
                entry.points.pop_front();
            }
            entry.points.push_back(point);
            entry.sampled = entry.sampled.saturating_add(1);
            self.history.add(&name, point);
        }
    }
}

impl Handler<MetricsDelivered> for ManagerActor {
    type Result = ();

    fn handle(&mut self, MetricsDelivered(until): MetricsDelivered, _: &mut Self::Context) {
        for (name, delivered) in until {
            let Some(entry) = self.roster.get_mut(&name) else { continue };
            // Fewer are another plugin of this name, which was ordered after the report.
            let Some(newer) = entry.sampled.checked_sub(delivered) else { continue };
            while u64::try_from(entry.points.len()).is_ok_and(|left| left > newer) {
                entry.points.pop_front();
            }
        }
    }
}
