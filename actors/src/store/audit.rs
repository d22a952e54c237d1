//! The numbers of the entries of the audit record: a ring, so that it never grows beyond its bound.

use std::collections::VecDeque;

use crate::keys::{key_number, number_key};
use crate::model::audit::{AUDIT_MAX, AuditEntry};
use crate::ports::{Table, Write};

/// Which entries there are.
#[derive(Debug, Default)]
pub struct AuditRing {
    /// Their numbers, ascending.
    kept: VecDeque<u64>,
}

// === impl AuditRing ===

impl AuditRing {
    /// The ring of the entries that an earlier agent process left, by their numbers in ascending
    /// order.
    #[must_use]
    pub fn of(kept: Vec<u64>) -> Self {
        Self { kept: kept.into() }
    }

    /// Gives entries their numbers; returns what records them and deletes those that are too old.
    pub(super) fn record(&mut self, entries: Vec<AuditEntry>) -> Vec<Write> {
        let mut writes = Vec::new();
        for entry in entries {
            let number = self.kept.back().map_or(1, |newest| newest.saturating_add(1));
            self.kept.push_back(number);
            let (table, key) = (Table::Audit, number_key(number));
            writes.push(Write::Put { table, key, value: entry.encode() });
            while self.kept.len() > AUDIT_MAX
                && let Some(oldest) = self.kept.pop_front()
            {
                writes.push(Write::Delete { table, key: number_key(oldest) });
            }
        }
        writes
    }

    /// None of these writes was carried out, and none will be.
    pub(super) fn not_written(&mut self, writes: &[Write]) {
        for write in writes.iter().rev() {
            match write {
                Write::Put { table: Table::Audit, key, .. } => {
                    self.kept.retain(|number| Some(*number) != key_number(key));
                }
                // They are older than all others, the oldest first.
                Write::Delete { table: Table::Audit, key } => {
                    key_number(key).into_iter().for_each(|number| self.kept.push_front(number));
                }
                Write::Put { .. } | Write::Delete { .. } => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::SystemTime;

    use super::*;
    use crate::model::audit::{Asker, AuditAct, AuditVerdict, Target, Via};

    fn entry() -> AuditEntry {
        let asker = Asker { who: "root".into(), via: Via::AgentSocket, detail: "".into() };
        let verdict = AuditVerdict::Accepted(None);
        AuditEntry::new(SystemTime::UNIX_EPOCH, &asker, AuditAct::Sweep, Target::Agent, verdict)
    }

    fn carry_out(disk: &mut BTreeSet<u64>, writes: Vec<Write>) {
        for write in writes {
            match write {
                Write::Put { key, .. } => drop(disk.insert(key_number(&key).expect("a number"))),
                Write::Delete { key, .. } => {
                    assert!(disk.remove(&key_number(&key).expect("a number")), "it is there");
                }
            }
        }
    }

    #[test]
    fn the_newest_entries_stay_and_numbers_go_on_after_a_restart() {
        let (mut ring, mut disk) = (AuditRing::default(), BTreeSet::new());
        for _ in 0..AUDIT_MAX + 7 {
            carry_out(&mut disk, ring.record(vec![entry()]));
        }
        assert_eq!(disk.len(), AUDIT_MAX);
        assert_eq!(disk.first(), Some(&8), "the oldest go");
        let mut ring = AuditRing::of(disk.iter().copied().collect());
        carry_out(&mut disk, ring.record(vec![entry(), entry()]));
        assert_eq!((disk.len(), disk.last()), (AUDIT_MAX, Some(&(AUDIT_MAX as u64 + 9))));
    }

    #[test]
    fn records_beyond_the_bound_are_deleted_with_the_next_entry() {
        let mut disk: BTreeSet<u64> = (1..=AUDIT_MAX as u64 + 5).collect();
        let mut ring = AuditRing::of(disk.iter().copied().collect());
        carry_out(&mut disk, ring.record(vec![entry()]));
        assert_eq!(disk.len(), AUDIT_MAX);
    }

    #[test]
    fn a_commit_that_failed_changes_nothing() {
        let (mut ring, mut disk) = (AuditRing::default(), BTreeSet::new());
        for round in 0..3 * AUDIT_MAX {
            let writes = ring.record(vec![entry(), entry()]);
            if round % 3 == 0 {
                ring.not_written(&writes);
            } else {
                carry_out(&mut disk, writes);
            }
            assert!(disk.iter().eq(&ring.kept), "the ring knows what there is");
            assert!(disk.len() <= AUDIT_MAX);
        }
    }
}
