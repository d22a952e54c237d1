//! Two machines with one identity: a disk that was cloned, or a key that was copied. Pure.
//!
//! A boot id is random and new with every start of a machine. One machine that starts again and
//! again shows A, B, C; only two machines that use one identity in turn show A, B, A. So the third
//! report is the proof, and an operator decides which of the two is the agent.

use std::time::{Duration, SystemTime};

use guest_fleet_ledger::records::agent::Boot;
use guest_fleet_ledger::records::time;
use prost_types::Timestamp;

/// Boots that are remembered.
const BOOTS: usize = 4;
/// A boot that comes back after a longer time proves nothing: the machine was restored with its
/// memory from a snapshot.
const WITHIN: Duration = Duration::from_secs(24 * 3600);
/// Longest boot id; longer ones are cut.
const ID_BYTES: usize = 64;

/// What a reported boot says about an agent.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The boot that was reported last.
    Same,
    /// The machine started again; these are its boots now.
    Started(Vec<Boot>),
    /// Two machines use the identity; these are the boots now, and this is why in a sentence.
    Cloned(Vec<Boot>, String),
}

/// Judges a boot that an agent reported, by those that it reported before, the newest last.
#[must_use]
pub fn quarantine(boots: &[Boot], new: &str, now: SystemTime) -> Verdict {
    let id: String = new.chars().filter(char::is_ascii_graphic).take(ID_BYTES).collect();
    let last = boots.last();
    if last.is_some_and(|last| last.id == id) || id.is_empty() {
        return Verdict::Same;
    }
    let stamp = Some(Timestamp::from(now));
    let earlier = boots.iter().find(|boot| boot.id == id);
    let mut known: Vec<Boot> = boots.iter().filter(|boot| boot.id != id).cloned().collect();
    known.push(Boot { id: id.clone(), seen: stamp });
    known.drain(..known.len().saturating_sub(BOOTS));
    let lately = |boot: &Boot| {
        let seen = time(boot.seen);
        seen.is_some_and(|seen| now.duration_since(seen).is_ok_and(|age| age <= WITHIN))
    };
    match (earlier, last) {
        (Some(earlier), Some(last)) if lately(earlier) => Verdict::Cloned(
            known,
            format!(
                "two machines use its identity: the boots {id} and {} report in turn; enrol one of \
                 them anew, then `guest-fleet agent release` gives the other its orders",
                last.id
            ),
        ),
        _ => Verdict::Started(known),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Reports boots at hours; returns the last verdict.
    fn report(reports: &[(&str, u32)]) -> Verdict {
        let mut boots = Vec::new();
        let mut verdict = Verdict::Same;
        for (id, hour) in reports {
            verdict = quarantine(&boots, id, SystemTime::UNIX_EPOCH + HOUR * *hour);
            match &verdict {
                Verdict::Same => {}
                Verdict::Started(now) | Verdict::Cloned(now, _) => boots.clone_from(now),
            }
        }
        verdict
    }

    fn is_clone(verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Cloned(..))
    }

    #[test]
    fn a_machine_that_starts_again_is_no_clone() {
        assert_eq!(report(&[("a", 0), ("a", 1), ("a", 2)]), Verdict::Same);
        for starts in [&[("a", 0), ("b", 1)][..], &[("a", 0), ("b", 1), ("b", 2), ("c", 3)]] {
            assert!(!is_clone(&report(starts)), "{starts:?}");
        }
    }

    #[test]
    fn a_boot_that_comes_back_within_a_day_is_a_clone() {
        let verdict = report(&[("a", 0), ("b", 1), ("a", 2)]);
        let Verdict::Cloned(boots, why) = verdict else { panic!("{verdict:?}") };
        assert!(why.contains("boots a and b"), "{why}");
        assert_eq!(boots.len(), 2);
        assert!(is_clone(&report(&[("a", 0), ("b", 1), ("c", 2), ("a", 24)])));
    }

    #[test]
    fn a_boot_that_comes_back_after_a_day_is_a_restored_snapshot() {
        assert!(!is_clone(&report(&[("a", 0), ("b", 1), ("a", 25)])));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let many: Vec<(String, u32)> =
            (0..50).map(|at| (format!("{at}{}", "x".repeat(999)), at)).collect();
        let many: Vec<(&str, u32)> = many.iter().map(|(id, at)| (id.as_str(), *at)).collect();
        let Verdict::Started(boots) = report(&many) else { panic!("no clone") };
        assert_eq!(boots.len(), BOOTS);
        assert!(boots.iter().all(|boot| boot.id.len() <= ID_BYTES));
    }

    #[test]
    fn an_empty_boot_id_and_a_clock_that_went_back_prove_nothing() {
        assert_eq!(report(&[("a", 0), ("", 1), ("\n", 2)]), Verdict::Same);
        assert!(!is_clone(&report(&[("a", 9), ("b", 9), ("a", 1)])));
    }
}
