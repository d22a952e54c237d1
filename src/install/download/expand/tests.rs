//! Deltas and compressed archives that are right, wrong, cut, damaged and hostile.

use std::io::Write;
use std::sync::Arc;

use proptest::prelude::*;
use zstd::zstd_safe::CParameter;

use super::*;
use crate::install::window_budget::WindowBudget;

/// Bytes that do not compress.
fn noise(seed: u32, length: usize) -> Vec<u8> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..length).map(next).collect()
}

/// A dictionary on disk, and the folder that holds it.
fn dictionary(content: &[u8]) -> (tempfile::TempDir, OfferedDictionary) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("dictionary");
    std::fs::write(&path, content).expect("written");
    let (sha256, bytes) = (Sha256Digest::of(content), content.len() as u64);
    (folder, OfferedDictionary { sha256, path, bytes, id: String::new() })
}

fn frame(content: &[u8], dictionary: &[u8], window: u32) -> Vec<u8> {
    let encoder = zstd::stream::raw::Encoder::with_ref_prefix(3, dictionary).expect("an encoder");
    let mut encoder = zstd::stream::zio::Writer::new(Vec::new(), encoder);
    let parameters = [CParameter::WindowLog(window), CParameter::ChecksumFlag(true)];
    for parameter in parameters {
        encoder.operation_mut().set_parameter(parameter).expect("a parameter");
    }
    let size = Some(content.len() as u64);
    encoder.operation_mut().set_pledged_src_size(size).expect("a parameter");
    encoder.write_all(content).expect("memory");
    encoder.finish().expect("memory");
    encoder.into_inner().0
}

fn delta(content: &[u8], dictionary: &[u8]) -> Vec<u8> {
    let header = [&DELTA_MAGIC[..], Sha256Digest::of(dictionary).as_bytes()].concat();
    [header, frame(content, dictionary, 24)].concat()
}

/// What comes out of these bytes, in pieces of this size.
fn expanded(
    coded: &[u8],
    size: usize,
    dictionary: Option<&OfferedDictionary>,
) -> Result<Vec<u8>, CodingError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let hold = runtime.block_on(Arc::<WindowBudget>::default().take(0, || {}));
    let mut pieces = coded.chunks(size.max(1)).map(Bytes::copy_from_slice);
    let mut out = Vec::new();
    let mut give = |bytes: Bytes| {
        out.extend_from_slice(&bytes);
        true
    };
    expand(dictionary, &hold, &mut || pieces.next(), &mut give)?;
    Ok(out)
}

#[test]
fn a_delta_and_a_compressed_archive_are_expanded_wherever_they_are_cut() {
    let old = noise(1, 300_000);
    let new = [&old[..100_000], &noise(2, 5_000), &old[100_000..]].concat();
    let (_folder, offered) = dictionary(&old);
    let coded = delta(&new, &old);
    assert!(coded.len() < 10_000, "it has {} bytes", coded.len());
    for size in [1, 7, 40, 41, 4096, coded.len()] {
        assert_eq!(expanded(&coded, size, Some(&offered)).expect("right"), new, "{size}");
    }
    let plain = frame(&new, &[], 20);
    for size in [1, 4096, plain.len()] {
        assert_eq!(expanded(&plain, size, None).expect("right"), new);
    }
    let two = [frame(b"one", &[], 20), frame(b"two", &[], 20)].concat();
    assert_eq!(expanded(&two, 5, None).expect("right"), b"onetwo");
    assert_eq!(expanded(&delta(b"", &old), 9, Some(&offered)).expect("right"), b"");
    // A long run of one byte: many full buffers come of one piece.
    let run = vec![7; 3 * BUFFER_BYTES];
    assert_eq!(expanded(&frame(&run, &[], 20), 1 << 20, None).expect("right"), run);
}

#[test]
fn a_delta_that_is_cut_anywhere_is_not_taken_for_whole() {
    let old = noise(1, 5_000);
    let (_folder, offered) = dictionary(&old);
    let coded = delta(&[&old[..], b"more"].concat(), &old);
    for length in 0..coded.len() {
        let error = expanded(&coded[..length], 64, Some(&offered)).expect_err("cut");
        assert!(matches!(error, CodingError::Unfinished), "{length}: {error}");
    }
    let error = expanded(b"", 1, None).expect_err("nothing is no frame");
    assert!(matches!(error, CodingError::Unfinished), "{error}");
}

#[test]
fn a_delta_for_another_archive_is_refused_before_its_dictionary_is_read() {
    let (_folder, mut offered) = dictionary(b"what the agent has");
    offered.path = "/nowhere".into();
    let other = delta(b"new", b"what another agent has");
    let error = expanded(&other, 100, Some(&offered)).expect_err("another");
    assert!(matches!(error, CodingError::OtherDictionary { .. }), "{error}");
    let bare = frame(b"new", b"what the agent has", 20);
    for wrong in [&bare[..], b"\x5e\x2a\x4d\x18\x21", b"<html>"] {
        let error = expanded(wrong, 100, Some(&offered)).expect_err("no header");
        assert!(matches!(error, CodingError::Header), "{error}");
    }
}

#[test]
fn a_dictionary_that_is_gone_or_damaged_is_not_used() {
    let old = noise(1, 5_000);
    let (folder, offered) = dictionary(&old);
    let coded = delta(&old, &old);
    let check = || {
        let error = expanded(&coded, 100, Some(&offered)).expect_err("no dictionary");
        assert!(matches!(error, CodingError::Dictionary { .. }), "{error}");
    };
    std::fs::write(&offered.path, noise(2, 5_000)).expect("written");
    check();
    std::fs::write(&offered.path, [&old[..], b"x"].concat()).expect("written");
    check();
    std::fs::write(&offered.path, &old[..4_000]).expect("written");
    check();
    std::fs::remove_file(&offered.path).expect("removed");
    check();
    std::os::unix::fs::symlink(folder.path(), &offered.path).expect("a link");
    check();
}

#[test]
fn windows_are_those_of_the_standards() {
    const MIB: u64 = 1 << 20;
    /// A frame of one byte that asks for this window.
    fn asking(exponent: u8, mantissa: u8) -> Vec<u8> {
        let mut frame = 0xfd2f_b528u32.to_le_bytes().to_vec();
        frame.extend([0, (exponent - 10) << 3 | mantissa, 1 | 1 << 3, 0, 0, b'x']);
        frame
    }
    let old = noise(1, 5_000);
    let (_folder, small) = dictionary(&old);
    let header = [&DELTA_MAGIC[..], small.sha256.as_bytes()].concat();
    assert_eq!(expanded(&asking(23, 0), 3, None).expect("8 MiB"), b"x");
    for (exponent, mantissa) in [(23, 1), (27, 0), (41, 7)] {
        for (coded, dictionary) in [
            (asking(exponent, mantissa), None),
            ([&header[..], &asking(exponent, mantissa)].concat(), Some(&small)),
        ] {
            let error = expanded(&coded, 3, dictionary).expect_err("too large");
            assert!(matches!(error, CodingError::Window { limit, .. } if limit == 8 * MIB));
        }
    }
    // With a dictionary of 16 MiB, 20 MiB are allowed and nothing beyond.
    let large = vec![7; 16 << 20];
    let (_folder, offered) = dictionary(&large);
    let header = [&DELTA_MAGIC[..], offered.sha256.as_bytes()].concat();
    let allowed = [&header[..], &asking(24, 2)].concat();
    assert_eq!(expanded(&allowed, 50, Some(&offered)).expect("20 MiB"), b"x");
    let beyond = [&header[..], &asking(24, 3)].concat();
    let error = expanded(&beyond, 50, Some(&offered)).expect_err("22 MiB");
    assert!(matches!(error, CodingError::Window { wanted, .. } if wanted == 22 * MIB));
}

#[test]
fn a_dictionary_of_128_mib_leaves_no_memory_for_a_window() {
    // Its file is never read: the memory is taken first.
    let offered = OfferedDictionary {
        sha256: Sha256Digest::of(b""),
        path: "/nowhere".into(),
        bytes: (128 << 20) + 1,
        id: String::new(),
    };
    let coded = [&DELTA_MAGIC[..], offered.sha256.as_bytes()].concat();
    let error = expanded(&coded, 100, Some(&offered)).expect_err("too large");
    assert!(matches!(error, CodingError::Window { .. }), "{error}");
}

#[test]
fn what_follows_the_frames_is_not_taken_for_a_part() {
    let coded = [frame(b"one", &[], 20), b"rest".to_vec()].concat();
    for size in [1, 100] {
        let error = expanded(&coded, size, None).expect_err("a rest");
        assert!(matches!(error, CodingError::Damaged { .. }), "{error}");
    }
}

#[test]
fn a_reader_that_goes_away_ends_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let hold = runtime.block_on(Arc::<WindowBudget>::default().take(0, || {}));
    let coded = Bytes::from(frame(&vec![0; 1 << 20], &[], 20));
    let mut pieces = std::iter::repeat(coded);
    let (mut given, mut taken) = (0, 0);
    let mut give = |_: Bytes| {
        given += 1;
        given < 3
    };
    let mut next = || {
        taken += 1;
        pieces.next()
    };
    expand(None, &hold, &mut next, &mut give).expect("it just ends");
    assert!(given == 3 && taken < 5, "{given} {taken}");
}

proptest! {
    #[test]
    fn law_what_was_coded_comes_out_again(
        old in proptest::collection::vec(0u8..4, 0..2_000),
        new in proptest::collection::vec(0u8..4, 0..2_000),
        size in 1usize..500,
    ) {
        let (_folder, offered) = dictionary(&old);
        let coded = delta(&new, &old);
        prop_assert_eq!(expanded(&coded, size, Some(&offered)).expect("right"), new);
    }

    #[test]
    fn law_a_flipped_bit_is_an_error_or_changes_nothing(
        place in any::<prop::sample::Index>(), bit in 0u8..8, size in 1usize..500,
    ) {
        let old = noise(1, 2_000);
        let new = [&old[500..], b"and more"].concat();
        let (_folder, offered) = dictionary(&old);
        let mut coded = delta(&new, &old);
        let place = place.index(coded.len());
        coded[place] ^= 1 << bit;
        // A frame has bits that mean nothing; the checksum of the frame covers all that come out.
        if let Ok(out) = expanded(&coded, size, Some(&offered)) {
            prop_assert_eq!(out, new);
        }
    }

    #[test]
    fn law_any_bytes_come_to_the_same_wherever_they_are_cut(
        bytes in proptest::collection::vec(any::<u8>(), 0..300), size in 1usize..50,
    ) {
        let old = noise(1, 100);
        let (_folder, offered) = dictionary(&old);
        let header = [&DELTA_MAGIC[..], offered.sha256.as_bytes()].concat();
        let magic = 0xfd2f_b528u32.to_le_bytes();
        for start in [&[][..], &header[..], &magic[..], &[&header[..], &magic].concat()] {
            let coded = [start, &bytes[..]].concat();
            for dictionary in [None, Some(&offered)] {
                let whole = expanded(&coded, coded.len(), dictionary).ok();
                prop_assert_eq!(expanded(&coded, size, dictionary).ok(), whole);
            }
        }
    }
}
