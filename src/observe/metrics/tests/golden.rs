//! The whole page of one snapshot is in a file for each format: the text that Prometheus scrapes is
//! compared byte for byte.

use std::path::Path;

use super::*;

/// Compares a text with a file, or writes the file where `UPDATE_GENERATED` is set.
#[track_caller]
pub(crate) fn check(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER).join(file);
    // The file stays the same over versions of the agent.
    let version = format!("\"{}\"", env!("CARGO_PKG_VERSION"));
    let text = text.replace(&version, "\"VERSION\"");
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(&path, text).expect("it can be written");
        return;
    }
    let expected = std::fs::read_to_string(&path).expect("the expected text");
    assert_eq!(text, expected, "{} differs", path.display());
}

const FOLDER: &str = "src/observe/metrics/tests/golden";

/// A snapshot with a sample of every metric.
fn whole() -> Snapshot {
    let plugins = vec![plugin("web", "r1"), plugin("db", "r2")];
    Snapshot { refused: vec!["od\\u{1b}d".to_owned()], ..snapshot(plugins, counted("web")) }
}

/// A snapshot in which every value that may be unknown is unknown.
fn unknown() -> Snapshot {
    let mut empty = snapshot(Vec::new(), Counted::default());
    (empty.plugins, empty.backlog, empty.inbox, empty.link_is_up) = (None, None, None, None);
    empty.own = Own::default();
    empty
}

#[test]
fn the_page_is_written_as_it_always_was() {
    for (name, snapshot) in [("whole", whole as fn() -> Snapshot), ("unknown", unknown)] {
        let page = |format| page::render(snapshot(), format).expect("a page");
        check(&format!("{name}.openmetrics"), &page(Format::OpenMetrics));
        check(&format!("{name}.prometheus"), &page(Format::Prometheus));
    }
}
