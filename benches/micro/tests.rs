//! How micro-benchmarks are judged. A test target of its own: they have no harness for tests themselves.

#![expect(clippy::unwrap_used, reason = "a test that unwraps a failure has failed")]

mod verdict;

use std::path::Path;

use verdict::{Stored, render, table};

fn stored(text: &str) -> Result<Stored, String> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("reference.toml");
    std::fs::write(&file, text).unwrap();
    Stored::read(&file)
}

#[test]
fn what_is_stored_is_the_median_and_half_as_much_again_is_the_most() {
    let seen = vec![("hash", vec![9.0, 2.0, 1.0]), ("plan", vec![4.0, 4.0, 4.0])];
    let stored = stored(&render(3, seen)).unwrap();
    assert_eq!(stored.names().collect::<Vec<_>>(), ["hash", "plan"]);
    assert!(stored.judge("hash", 2.9).is_good());
    assert!(!stored.judge("hash", 3.1).is_good());
    assert!(stored.judge("plan", 0.1).is_good());
}

#[test]
fn the_best_of_several_looks_counts() {
    let stored = stored("limit = 1.5\n[ratio]\nhash = 2.0\n").unwrap();
    let (good, bad) = (stored.judge("hash", 2.0), stored.judge("hash", 8.0));
    assert!(bad.clone().or(good.clone()).is_good());
    assert!(good.or(bad.clone()).is_good());
    assert!(!bad.clone().or(bad).is_good());
}

#[test]
fn a_failure_says_which_cost_and_what_to_do() {
    let stored = stored("limit = 1.5\n[ratio]\nhash = 2.0\n").unwrap();
    let judged = [("hash", 3.5), ("hash", 1.5), ("new", 1.0)];
    let judged = judged.map(|(name, ratio)| stored.judge(name, ratio));
    assert!(!judged[2].is_good(), "a cost without a stored one is not judged good");
    let text = table(&judged, stored.limit());
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].ends_with("75 % above its reference  FAILED: beyond the limit"), "{text}");
    assert!(lines[2].ends_with("25 % below its reference"), "{text}");
    assert!(lines[3].ends_with("FAILED: renew benches/micro/reference.toml"), "{text}");
}

#[test]
fn a_file_that_is_absent_or_odd_is_refused_with_a_reason() {
    let absent = Stored::read(Path::new("/no/such/file")).err().unwrap();
    assert!(absent.contains("just bench-micro-renew"), "{absent}");
    for odd in ["", "limit = 0.5\n[ratio]\n", "limit = 1.5\n[ratio]\nhash = 0.0\n"] {
        assert!(stored(odd).is_err(), "{odd}");
    }
}
