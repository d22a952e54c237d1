//! What docs/getting-started.md tells people to do works, as it stands there.

use crate::pages;
use crate::walkthrough::Reader;

#[test]
#[ignore = "takes minutes: `tests/run soak pages`"]
fn everything_on_the_page_works_as_it_is_written() {
    let ran = Reader::new("start", &[]).follow(&pages::text("docs/getting-started.md"));
    assert!(ran > 10, "only {ran} blocks were run");
}
