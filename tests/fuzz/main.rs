//! Hostile bytes for everything that is parsed, on any toolchain: `cargo test --test fuzz`.
//!
//! What is checked is in `targets.rs`, which `fuzz/` hands to libFuzzer for as long as one likes.
//! Here each target gets a fixed number of inputs (`FUZZ_CASES`, default 4,000): well-formed ones
//! that were cut, flipped, stretched and spliced, because random bytes alone do not get past the
//! first length field. A failing input is shrunk and printed, and belongs into
//! `tests/fuzz/regressions/<target>/`, whose files every run tries first.

#![expect(clippy::unwrap_used, reason = "a test that unwraps a failure has failed")]

mod seeds;
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

/// One way to spoil an input.
#[derive(Clone, Debug)]
enum Edit {
    Flip(Index, u8),
    Set(Index, u8),
    Cut(Index),
    Drop(Index, u8),
    Insert(Index, Vec<u8>),
    Stretch(Index, u8, u8),
    Splice(Index, Index, Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = any::<Index>;
    prop_oneof![
        3 => (at(), 0..8u8).prop_map(|(at, bit)| Edit::Flip(at, bit)),
        3 => (at(), prop_oneof![Just(0), Just(0x7f), Just(0x80), Just(0xff), any::<u8>()])
            .prop_map(|(at, byte)| Edit::Set(at, byte)),
        1 => at().prop_map(Edit::Cut),
        1 => (at(), 1..32u8).prop_map(|(at, bytes)| Edit::Drop(at, bytes)),
        1 => (at(), prop::collection::vec(any::<u8>(), 1..16))
            .prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        1 => (at(), 1..32u8, 1..64u8).prop_map(|(at, bytes, n)| Edit::Stretch(at, bytes, n)),
        1 => (at(), at(), at()).prop_map(|(at, seed, from)| Edit::Splice(at, seed, from)),
    ]
}

fn spoilt(seeds: &[Vec<u8>], seed: &Index, edits: Vec<Edit>) -> Vec<u8> {
    let mut bytes = seed.get(seeds).clone();
    for edit in edits {
        let place = |at: &Index| if bytes.is_empty() { 0 } else { at.index(bytes.len()) };
        match edit {
            Edit::Flip(at, bit) => {
                let at = place(&at);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            }
            Edit::Set(at, value) => {
                let at = place(&at);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            Edit::Cut(at) => bytes.truncate(place(&at)),
            Edit::Drop(at, count) => {
                let from = place(&at);
                bytes.drain(from..(from + usize::from(count)).min(bytes.len()));
            }
            Edit::Insert(at, more) => {
                let at = place(&at);
                bytes.splice(at..at, more);
            }
            Edit::Stretch(at, count, times) => {
                let from = place(&at);
                let part = bytes[from..(from + usize::from(count)).min(bytes.len())].to_vec();
                bytes.splice(from..from, part.repeat(times.into()));
            }
            Edit::Splice(at, other, from) => {
                let at = place(&at);
                let other = other.get(seeds);
                let from = if other.is_empty() { 0 } else { from.index(other.len()) };
                bytes.splice(at.., other[from..].iter().copied());
            }
        }
    }
    bytes
}

/// How many inputs a target gets unless `FUZZ_CASES` says so.
const CASES: u32 = 4000;

/// Tries the regressions, then every seed as it is, then spoilt ones.
fn check(name: &str, seeds: Vec<Vec<u8>>, target: fn(&[u8])) {
    check_some(CASES, name, seeds, target);
}

/// The same with another number of inputs, for a target that takes longer.
fn check_some(usual: u32, name: &str, seeds: Vec<Vec<u8>>, target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/regressions").join(name);
    for file in std::fs::read_dir(folder).into_iter().flatten() {
        target(&std::fs::read(file.unwrap().path()).unwrap());
    }
    assert!(!seeds.is_empty(), "nothing to begin with");
    seeds.iter().for_each(|seed| target(seed));

    let cases = std::env::var("FUZZ_CASES").ok().and_then(|text| text.parse().ok());
    let config =
        Config { cases: cases.unwrap_or(usual), failure_persistence: None, ..Config::default() };
    let inputs = (any::<Index>(), prop::collection::vec(edit(), 1..12));
    let ran = TestRunner::new(config).run(&inputs, |(seed, edits)| {
        let bytes = spoilt(&seeds, &seed, edits);
        catch_unwind(AssertUnwindSafe(|| target(&bytes))).map_err(|_| {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            TestCaseError::fail(format!("{name} fails with these bytes: {hex}"))
        })
    });
    if let Err(failure) = ran {
        panic!("{failure}");
    }
}

#[test]
fn frames_of_a_server_never_panic_and_what_is_understood_can_be_kept() {
    check("frames", seeds::frames(), targets::frames);
}

#[test]
fn orders_never_panic_and_what_is_accepted_can_be_kept() {
    check("orders", seeds::orders(), targets::orders);
}

#[test]
fn stored_records_never_panic_and_what_is_read_is_written_the_same() {
    check("records", seeds::records(), targets::records);
}

#[test]
fn manifests_never_panic_and_what_is_accepted_can_be_kept() {
    check("manifests", seeds::manifests(), targets::manifests);
}

#[test]
fn commands_never_panic_and_a_refusal_is_one_reply() {
    check("commands", seeds::commands(), targets::commands);
}

#[test]
fn metadata_never_panics() {
    check("metadata", seeds::metadata(), targets::metadata);
}

#[test]
fn signatures_never_panic() {
    check("signatures", seeds::signatures(), targets::signatures);
}

#[test]
fn bundles_never_panic_and_are_no_larger_than_they_are() {
    check("bundles", seeds::bundles(), targets::bundles);
}

#[test]
fn archives_never_panic_and_change_nothing_but_their_own_folder() {
    check_some(CASES / 4, "archives", seeds::archives(), targets::archives);
}

#[test]
fn codings_never_keep_an_archive_from_being_installed() {
    check_some(CASES / 20, "codings", seeds::codings(), targets::codings);
}

#[test]
fn a_target_that_fails_is_noticed() {
    let fails: fn(&[u8]) = |bytes| assert!(bytes.len() < 4, "told to fail");
    let seeds = vec![b"abc".to_vec()];
    assert!(catch_unwind(AssertUnwindSafe(|| check("none", seeds, fails))).is_err());
}
