//! The faults of plugins as reports tell them: not more often than the fleet can bear.
//!
//! ```text
//!   each look ─► fault_of(plugin) ─► another level or cause? ─► told at once, or after a pause that grows with
//!                                                              each change within some minutes
//! ```
//!
//! A plugin says itself how it is, and may say something else every second; each report is a write of the fleet's
//! ledger. The words about a fault that goes on stay for some minutes. A fault may also end by itself, when its crashes
//! are long ago; then nothing moves, and somebody has to look.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_agent_proto::fleet::PluginFault;
use tokio::time::Instant;

use crate::model::id::{PluginName, RevisionId};
use crate::model::view::PluginView;
use crate::wire::fault_of;

/// How long another level or cause waits after the first change. It doubles with each further one.
const PAUSE: Duration = Duration::from_secs(10);

/// The longest such pause, and how long the words about a fault stay that goes on.
const LONGEST: Duration = Duration::from_secs(300);

/// After so long without a change all is forgotten.
const CALM: Duration = Duration::from_secs(600);

/// How often plugins are looked at while there are faults.
const AGAIN: Duration = Duration::from_secs(60);

/// The faults of plugins, as the last report tells them.
#[derive(Debug, Default)]
pub(super) struct Faults {
    plugins: BTreeMap<PluginName, Told>,
    looked_at: Option<Instant>,
}

/// The last word about a plugin.
#[derive(Debug)]
struct Told {
    /// The revision that it is about.
    revision: RevisionId,
    fault: Option<PluginFault>,
    /// When level or cause changed last.
    changed: Instant,
    /// How often they did, without a calm time between.
    changes: u32,
    /// When the words were chosen.
    worded: Instant,
    /// Another level or cause waits to be told.
    waits: bool,
}

// === impl Faults ===

impl Faults {
    /// The faults of these plugins.
    pub(super) fn look(
        &mut self,
        plugins: &[Arc<PluginView>],
        (wall, now): (SystemTime, Instant),
    ) -> BTreeMap<PluginName, PluginFault> {
        let mut before = std::mem::take(&mut self.plugins);
        for view in plugins {
            let found = fault_of(view, wall);
            // A fault ends with its revision, whenever that is.
            let known = before.remove(&view.name).filter(|told| told.revision == view.revision);
            let told = match (known, found) {
                (Some(told), found) => told.next(found, now),
                (None, Some(found)) => Some(Told::new(view.revision.clone(), found, now)),
                (None, None) => None,
            };
            if let Some(told) = told {
                self.plugins.insert(view.name.clone(), told);
            }
        }
        self.looked_at = Some(now);
        let faults = self.plugins.iter();
        faults.filter_map(|(name, told)| Some((name.clone(), told.fault.clone()?))).collect()
    }

    /// When the plugins are to be looked at again, although none of them moves.
    pub(super) fn due(&self) -> Option<Instant> {
        let waiting = self.plugins.values().filter(|told| told.waits).map(Told::due);
        let has_faults = self.plugins.values().any(|told| told.fault.is_some());
        let again = self.looked_at.filter(|_| has_faults).map(|at| at + AGAIN);
        waiting.chain(again).min()
    }
}

// === impl Told ===

impl Told {
    fn new(revision: RevisionId, fault: PluginFault, now: Instant) -> Self {
        let fault = Some(fault);
        Self { revision, fault, changed: now, changes: 1, worded: now, waits: false }
    }

    /// When another level or cause may be told.
    fn due(&self) -> Instant {
        let factor = 1 << self.changes.saturating_sub(1).min(16);
        self.changed + PAUSE.saturating_mul(factor).min(LONGEST)
    }

    /// The word after a look; `None` once there is nothing left to remember.
    fn next(mut self, found: Option<PluginFault>, now: Instant) -> Option<Self> {
        let kind = |fault: &Option<PluginFault>| fault.as_ref().map(|it| (it.level, it.cause));
        if kind(&self.fault) == kind(&found) {
            self.waits = false;
            if now >= self.worded + LONGEST {
                self.say(found, now);
            }
            let is_over = self.fault.is_none() && now >= self.changed + CALM;
            return (!is_over).then_some(self);
        }
        self.waits = now < self.due();
        if !self.waits {
            let is_calm = now >= self.changed + CALM;
            self.changes = if is_calm { 1 } else { self.changes.saturating_add(1) };
            self.changed = now;
            self.say(found, now);
        }
        Some(self)
    }

    /// Takes over a fault. It is as old as the one before of the same level.
    fn say(&mut self, mut found: Option<PluginFault>, now: Instant) {
        if let (Some(known), Some(found)) = (&self.fault, &mut found)
            && known.level == found.level
        {
            found.since = known.since;
        }
        (self.fault, self.worded) = (found, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fakes::sample_view;
    use crate::model::history::{Condition, Crash};
    use crate::ports::Health;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn said(text: &str) -> Arc<PluginView> {
        let health = Health { code: 1, results: vec![text.to_owned()] };
        let mut view = PluginView { health: Some((health, NOW)), ..sample_view("web", "1") };
        view.history.condition = Some(Condition::Unwell(NOW));
        Arc::new(view)
    }

    fn well() -> Arc<PluginView> {
        Arc::new(sample_view("web", "1"))
    }

    /// The reason in the report when the plugin looks like this.
    fn told(faults: &mut Faults, view: Arc<PluginView>, now: Instant) -> Option<String> {
        let found = faults.look(&[view], (NOW, now));
        found.values().next().map(|fault| fault.reason.clone())
    }

    #[test]
    fn a_plugin_that_changes_its_mind_every_second_is_believed_less_and_less_often() {
        let (mut faults, start) = (Faults::default(), Instant::now());
        assert_eq!(faults.due(), None);
        let (mut reports, mut last) = (Vec::new(), None);
        for second in 0..1200 {
            let view = if second % 2 == 0 { said("x") } else { well() };
            let now = told(&mut faults, view, start + Duration::from_secs(second));
            if now != last {
                reports.push(second);
            }
            last = now;
        }
        assert_eq!(reports[..6], [0, 11, 32, 73, 154, 315]);
        assert!(reports.len() <= 9, "{reports:?}");
    }

    #[test]
    fn a_fault_is_told_at_once_and_so_is_its_end() {
        let (mut faults, start) = (Faults::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(told(&mut faults, well(), at(0)), None);
        assert_eq!(told(&mut faults, said("x"), at(1)), Some("code 1: x".to_owned()));
        assert_eq!(faults.due(), Some(at(61)), "it may end by itself");
        assert_eq!(told(&mut faults, well(), at(5)), Some("code 1: x".to_owned()));
        assert_eq!(faults.due(), Some(at(11)));
        assert_eq!(told(&mut faults, well(), at(11)), None);
        assert_eq!(faults.due(), None);
        // Another plugin waits for nobody.
        let other =
            Arc::new(PluginView { name: "db".parse().expect("a name"), ..(*said("y")).clone() });
        assert_eq!(faults.look(&[well(), other], (NOW, at(12))).len(), 1);
    }

    #[test]
    fn after_a_calm_time_all_is_forgotten() {
        let (mut faults, start) = (Faults::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        for (second, view) in [(0, said("x")), (20, well()), (60, said("x")), (120, well())] {
            told(&mut faults, view, at(second));
        }
        assert_eq!(faults.plugins.len(), 1);
        told(&mut faults, well(), at(720));
        assert_eq!(faults.plugins.len(), 0);
    }

    #[test]
    fn a_fault_ends_with_its_revision() {
        let (mut faults, start) = (Faults::default(), Instant::now());
        assert_eq!(told(&mut faults, said("x"), start), Some("code 1: x".to_owned()));
        let next = Arc::new(sample_view("web", "2"));
        assert_eq!(told(&mut faults, next, start + Duration::from_secs(1)), None);
    }

    #[test]
    fn the_words_about_a_fault_that_goes_on_stay_for_minutes() {
        let (mut faults, start) = (Faults::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(told(&mut faults, said("1"), at(0)), Some("code 1: 1".to_owned()));
        assert_eq!(told(&mut faults, said("2"), at(60)), Some("code 1: 1".to_owned()));
        assert_eq!(told(&mut faults, said("3"), at(299)), Some("code 1: 1".to_owned()));
        assert_eq!(told(&mut faults, said("4"), at(310)), Some("code 1: 4".to_owned()));
        assert_eq!(told(&mut faults, said("5"), at(320)), Some("code 1: 4".to_owned()));
    }

    #[test]
    fn a_plugin_fails_since_it_began_to_although_the_cause_changes() {
        let (mut faults, start) = (Faults::default(), Instant::now());
        faults.look(&[said("x")], (NOW, start));
        let mut crashes = sample_view("web", "1");
        let crash = |ago: u64| NOW + Duration::from_secs(100 - ago);
        let crashed = |ago| Crash { at: crash(ago), ran: Duration::ZERO };
        crashes.history.crashes = [3, 2, 1].map(crashed).into();
        let later = (crash(0), start + Duration::from_secs(60));
        let found = faults.look(&[Arc::new(crashes)], later);
        let fault = found.values().next().expect("a fault");
        assert_eq!(fault.cause(), guest_agent_proto::fleet::plugin_fault::Cause::CrashLoop);
        assert_eq!(fault.since, Some(NOW.into()));
    }
}
