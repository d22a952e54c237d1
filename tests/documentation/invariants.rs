//! What the documentation says of the tests is true: every test it names exists.

use std::path::Path;

use crate::pages;

/// Pages that name tests, and how many at least.
const NAMING: [(&str, usize); 3] =
    [("docs/recovery.md", 20), ("docs/compatibility.md", 40), ("docs/security.md", 10)];

/// Tests are named `path/from/the/root.rs::name_of_the_function`.
fn tests_named_in(page: &str) -> Vec<(String, String)> {
    let named = page.split('`').skip(1).step_by(2);
    named
        .filter_map(|quoted| quoted.split_once("::"))
        .filter(|(file, _)| Path::new(file).extension().is_some_and(|end| end == "rs"))
        .map(|(file, name)| (file.to_owned(), name.to_owned()))
        .collect()
}

#[test]
fn every_test_that_a_page_names_exists() {
    for (page, least) in NAMING {
        let named = tests_named_in(&pages::text(page));
        assert!(named.len() >= least, "{page} names only {} tests", named.len());
        let missing: Vec<_> = named
            .iter()
            .filter(|(file, name)| {
                let source = std::fs::read_to_string(pages::root().join(file)).unwrap_or_default();
                !source.contains(&format!("fn {name}("))
            })
            .collect();
        assert!(missing.is_empty(), "{page} names tests that are not there: {missing:?}");
    }
}

#[test]
fn each_of_the_ten_invariants_names_a_test() {
    let page = pages::text("docs/recovery.md");
    for number in 1..=10 {
        let row = page.lines().find(|line| line.starts_with(&format!("| {number} |")));
        let row = row.unwrap_or_else(|| panic!("invariant {number} is missing"));
        assert!(!tests_named_in(row).is_empty(), "invariant {number} names no test");
    }
}
