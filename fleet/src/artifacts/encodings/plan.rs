//! Which forms of artifacts are to be there, the most urgent first. Pure.
//!
//! Of each plugin and each kind of machine, the newest artifacts are the ones that agents fetch,
//! and those before them are what they have.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use super::files::Form;
use crate::artifacts::digest::Digest;

/// An artifact is offered as a dictionary if it is smaller, in bytes.
pub(in crate::artifacts) const DICTIONARY_MAX: u64 = 64 << 20;

/// So many artifacts of a line get forms: the newest one, and the one that a rollout goes back to.
const TARGETS: usize = 2;

/// Deltas are made since so many artifacts before.
const BEFORE: usize = 3;

/// Largest artifact that is compressed, in bytes.
const ZSTD_MAX: u64 = 1 << 30;

/// Largest artifact that is made a delta of, whatever its dictionary, in bytes.
const DELTA_MAX: u64 = 128 << 20;

/// The window that a delta may have where its dictionary is small, in bytes.
const WINDOW_MIN: u64 = 8 << 20;

/// An artifact that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Present {
    pub(super) length: u64,
    pub(super) modified: SystemTime,
    /// Whether it is compressed already, so that no form of it would be smaller.
    pub(super) is_compressed: bool,
}

/// A form to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Work {
    pub(super) digest: Digest,
    pub(super) form: Form,
}

/// The forms that are to be there. `lines` are the artifacts of each plugin for each kind of
/// machine.
pub(super) fn plan<'a>(
    lines: impl IntoIterator<Item = &'a BTreeSet<Digest>>,
    present: &BTreeMap<Digest, Present>,
) -> Vec<Work> {
    let mut ranked: BTreeMap<Work, usize> = BTreeMap::new();
    for line in lines {
        let mut line: Vec<(Digest, Present)> = line
            .iter()
            .filter_map(|digest| present.get(digest).map(|found| (*digest, *found)))
            .filter(|(_, found)| !found.is_compressed && found.length > 0)
            .collect();
        line.sort_by_key(|(digest, found)| std::cmp::Reverse((found.modified, *digest)));
        for (age, (digest, target)) in line.iter().enumerate().take(TARGETS) {
            let mut add = |form, rank: usize| {
                let work = Work { digest: *digest, form };
                let rank = rank + age * (BEFORE + 1);
                ranked.entry(work).and_modify(|it| *it = rank.min(*it)).or_insert(rank);
            };
            if target.length <= ZSTD_MAX {
                add(Form::Zstd, 1);
            }
            for (distance, (before, dictionary)) in line[age + 1..].iter().enumerate().take(BEFORE)
            {
                // Most agents have the one before: it comes first, then who has none of them.
                let rank = if distance == 0 { 0 } else { distance + 1 };
                if is_delta(target.length, dictionary.length) {
                    add(Form::Delta(*before), rank);
                }
            }
        }
    }
    let mut work: Vec<_> = ranked.into_iter().collect();
    work.sort_by_key(|(work, rank)| (*rank, *work));
    work.into_iter().map(|(work, _)| work).collect()
}

/// Whether an artifact may be made a delta of: its window, which is as long as it is, has to be one
/// that clients take (RFC 9842, section 5).
fn is_delta(target: u64, dictionary: u64) -> bool {
    let window = WINDOW_MIN.max(dictionary + dictionary / 4).min(DELTA_MAX);
    dictionary < DICTIONARY_MAX && target <= window && target + dictionary <= DELTA_MAX
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn digest(number: u8) -> Digest {
        Digest::of(&[number])
    }

    /// Artifacts with these numbers, lengths in MiB and times.
    fn present(of: &[(u8, u64, u64)]) -> BTreeMap<Digest, Present> {
        let one = |(number, length, at): &(u8, u64, u64)| {
            let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(*at);
            (digest(*number), Present { length: length * MIB, modified, is_compressed: false })
        };
        of.iter().map(one).collect()
    }

    fn line(numbers: &[u8]) -> BTreeSet<Digest> {
        numbers.iter().copied().map(digest).collect()
    }

    fn zstd(number: u8) -> Work {
        Work { digest: digest(number), form: Form::Zstd }
    }

    fn delta(number: u8, before: u8) -> Work {
        Work { digest: digest(number), form: Form::Delta(digest(before)) }
    }

    #[test]
    fn the_newest_artifacts_are_made_of_those_before_them() {
        let present =
            present(&[(1, 20, 1), (2, 20, 2), (3, 20, 3), (4, 20, 4), (5, 20, 5), (6, 20, 6)]);
        let planned = plan([&line(&[1, 2, 3, 4, 5, 6])], &present);
        let expected = [
            delta(6, 5),
            zstd(6),
            delta(6, 4),
            delta(6, 3),
            delta(5, 4),
            zstd(5),
            delta(5, 3),
            delta(5, 2),
        ];
        assert_eq!(planned, expected);
    }

    #[test]
    fn kinds_of_machines_have_nothing_to_do_with_each_other() {
        let present = present(&[(1, 1, 1), (2, 1, 2)]);
        let planned = plan([&line(&[1]), &line(&[2])], &present);
        assert_eq!(BTreeSet::from_iter(planned), BTreeSet::from([zstd(1), zstd(2)]));
        assert_eq!(plan([&line(&[1]), &line(&[1])], &present), [zstd(1)]);
    }

    #[test]
    fn what_is_missing_compressed_or_too_large_gets_no_form() {
        let mut present = present(&[(1, 1, 1), (2, 1, 2), (3, 2000, 3), (4, 0, 4)]);
        present.get_mut(&digest(1)).expect("it is there").is_compressed = true;
        assert_eq!(plan([&line(&[1, 2, 3, 4, 9])], &present), [zstd(2)]);
        assert_eq!(plan([], &present), []);
    }

    #[test]
    fn a_delta_needs_a_window_that_clients_take() {
        for (target, dictionary, is_so) in [
            (8 * MIB, 1, true),
            (8 * MIB + 1, 1, false),
            (20 * MIB, 20 * MIB, true),
            (25 * MIB, 20 * MIB, true),
            (25 * MIB + 1, 20 * MIB, false),
            (63 * MIB, 63 * MIB, true),
            (70 * MIB, 63 * MIB, false),
            (MIB, 64 * MIB, false),
        ] {
            assert_eq!(is_delta(target, dictionary), is_so, "{target} {dictionary}");
        }
    }
}
