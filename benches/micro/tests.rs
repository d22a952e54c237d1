//! How micro-benchmarks are judged. A test target of its own: they have no harness for tests
//! themselves.

#![expect(clippy::unwrap_used, reason = "a test that unwraps a failure has failed")]

mod verdict;

use std::path::Path;

use verdict::{Stored, table};

fn stored(text: &str) -> Result<Stored, String> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("reference.toml");
    std::fs::write(&file, text).unwrap();
    Stored::read(&file)
}

const ONE: &str = "limit = 1.5\n[ratio.here]\nhash = { median = 2.0, least = 1.0, most = 9.0 }\n";

#[test]
fn what_is_stored_is_the_median_and_half_as_much_again_is_the_most() {
    let mut made = Stored::default();
    made.renew("here", vec![("hash", vec![9.0, 2.0, 1.0]), ("plan", vec![4.0, 4.0, 4.0])]);
    let stored = stored(&made.render()).unwrap();
    assert_eq!(stored.names().into_iter().collect::<Vec<_>>(), ["hash", "plan"]);
    assert!(stored.judge("here", "hash", 2.9).is_good());
    assert!(!stored.judge("here", "hash", 3.1).is_good());
    assert!(stored.judge("here", "plan", 0.1).is_good());
}

#[test]
fn each_processor_has_its_own_and_an_unknown_one_the_most_of_all() {
    let mut known = stored(ONE).unwrap();
    known.renew("A \"new\" one", vec![("hash", vec![4.0])]);
    known.renew("A \"new\" one", vec![("hash", vec![3.0]), ("plan", vec![1.0])]);
    let known = stored(&known.render()).unwrap();
    let is_good = |processor: &str, ratio| known.judge(processor, "hash", ratio).is_good();
    assert!(is_good("here", 2.9) && !is_good("here", 3.1));
    assert!(is_good("A \"new\" one", 4.4) && !is_good("A \"new\" one", 4.6));
    assert!(is_good("another", 4.4) && !is_good("another", 4.6));
    assert!(known.judge("another", "plan", 1.4).is_good());
    // Of a processor that is known, what is missing is missing.
    assert!(!known.judge("here", "plan", 0.1).is_good());
    assert_eq!(["here", "another"].map(|processor| known.knows(processor)), [true, false]);
}

#[test]
fn the_best_of_several_looks_counts() {
    let stored = stored(ONE).unwrap();
    let judge = |ratio| stored.judge("here", "hash", ratio);
    let (good, bad) = (judge(2.0), judge(8.0));
    assert!(bad.clone().or(good.clone()).is_good());
    assert!(good.or(bad.clone()).is_good());
    assert!(!bad.clone().or(bad).is_good());
}

#[test]
fn a_failure_says_which_cost_and_what_to_do() {
    let stored = stored(ONE).unwrap();
    let judged = [("hash", 3.5), ("hash", 1.5), ("new", 1.0)];
    let judged = judged.map(|(name, ratio)| stored.judge("here", name, ratio));
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
    for odd in
        ["", "limit = 0.5\n", "limit = 1.5\n[ratio]\nhash = 2.0\n", &ONE.replace("1.0", "0.0")]
    {
        assert!(stored(odd).is_err(), "{odd}");
    }
}

#[test]
fn the_file_of_this_project_is_one() {
    let text = include_str!("reference.toml");
    assert_eq!(stored(text).unwrap().render(), text);
}
