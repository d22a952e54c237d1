//! Every bound of the fleet: where it is in the sources, what happens beyond it, and the test that
//! goes beyond it. The page of the book is made from this table and from the values in the sources.

mod page;
mod source;
mod table;

use std::path::{Path, PathBuf};

use page::page;
use source::{is_test, value};
use table::AREAS;

/// The folder of the whole project.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in a folder").to_owned()
}

fn read(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_page_of_all_bounds_is_up_to_date() {
    let page = page(|bound| value(&read(bound.file), bound.name));
    let path = root().join("docs/reference/fleet-bounds.md");
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::write(&path, &page).expect("it is written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page,
        "{} differs from the sources: UPDATE_GENERATED=1 cargo test -p guest-fleet-server --test bounds",
        path.display()
    );
}

#[test]
fn every_bound_has_a_test_that_exists() {
    for bound in AREAS.iter().flat_map(|(_, bounds)| bounds.iter()) {
        let (file, name) = bound.test;
        assert!(is_test(&read(file), name), "{} names `{name}` in {file}", bound.what);
    }
}

#[test]
fn values_are_read_as_the_sources_have_them() {
    let source = "const A_BYTES: usize = 4 << 20;\npub(super) const B_C: Duration = Duration::from_secs(7 * 24 * 60 * 60);\n\
        const D: usize = bounds::BATCH - 3;\n    Self { agents: 100_000, send: Duration::from_millis(1500), rate: Rate { per_second: 500.0, burst: 2000.0 } }\n";
    for (name, shown) in [
        ("A_BYTES", "4 MiB"),
        ("B_C", "7 days"),
        ("agents", "100,000"),
        ("send", "1.5 s"),
        ("rate", "500 in a second, 2,000 at once"),
    ] {
        assert_eq!(value(source, name).as_deref(), Ok(shown), "{name}");
    }
    assert!(value(source, "D").is_err() && value(source, "E").is_err());
}
