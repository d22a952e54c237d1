//! The page of the book.

use std::fmt::Write;

use crate::table::{AREAS, Bound};

const HEAD: &str = "\
# Bounds of a fleet

<!-- Generated from fleet/tests/bounds/table.rs. Change it there. -->

What comes from outside has a bound: a size, a number or a time. Beyond it the sender gets an error, or less is kept, as the row says; what is
there already stays. Each row names the test that goes beyond the bound.
";

/// The whole page. `value` finds what a bound is in the sources.
pub(crate) fn page(value: impl Fn(&Bound) -> Result<String, String>) -> String {
    let mut page = HEAD.to_owned();
    for (area, bounds) in AREAS {
        write!(page, "\n## {area}\n\n| what | at most | beyond it | test |\n|---|---|---|---|\n")
            .expect("a string has room");
        for bound in *bounds {
            let value = value(bound).unwrap_or_else(|error| panic!("{}: {error}", bound.file));
            let Bound { what, beyond, test: (_, test), .. } = bound;
            writeln!(page, "| {what} | {value} | {beyond} | `{test}` |")
                .expect("a string has room");
        }
    }
    page
}
