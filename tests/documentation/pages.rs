//! Markdown, as far as the other files here look into it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Folders that hold no pages of ours.
const PASSED_OVER: [&str; 3] = ["target", ".git", "node_modules"];

/// Where the repository is.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The text of a file, by its path from the root.
#[track_caller]
pub(crate) fn text(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All pages of the repository, by their paths from the root, sorted.
pub(crate) fn all() -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect(Path::new(""), &mut found);
    found.sort();
    found
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(root().join(folder)).expect("a folder that can be listed");
    for entry in entries {
        let entry = entry.expect("an entry");
        let path = folder.join(entry.file_name());
        let kind = entry.file_type().expect("a type");
        if kind.is_dir() && !PASSED_OVER.iter().any(|name| path.ends_with(name)) {
            collect(&path, found);
        } else if kind.is_file() && path.extension().is_some_and(|end| end == "md") {
            found.push(path);
        }
    }
}

/// Lines outside of fenced code.
pub(crate) fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut fence = None;
    page.lines().filter(move |line| {
        let start = line.trim_start();
        let ticks = start.bytes().take_while(|&byte| byte == b'`').count();
        match fence {
            None if ticks >= 3 => fence = Some(ticks),
            None => return true,
            Some(open) if ticks >= open => fence = None,
            Some(_) => {}
        }
        false
    })
}

/// Targets of the links of a page: `[text](target)`, outside of code.
pub(crate) fn links(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(page) {
        // Every second part between backticks is code.
        let plain: String = line.split('`').step_by(2).collect::<Vec<_>>().join("x");
        let targets = plain.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        found.extend(targets.map(str::to_owned));
    }
    found
}

/// The headings of a page, without their marks.
pub(crate) fn headings(page: &str) -> Vec<&str> {
    let marked = |line: &&str| line.starts_with('#');
    prose(page).filter(marked).map(|line| line.trim_start_matches('#').trim()).collect()
}

/// What a link to a heading of the page may say after `#`: as GitHub and mdBook make it.
pub(crate) fn anchors(page: &str) -> Vec<String> {
    let mut seen = BTreeMap::<String, usize>::new();
    let anchor = |heading: &str| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String =
            kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect();
        let times = seen.entry(anchor.clone()).or_default();
        *times += 1;
        if *times == 1 { anchor } else { format!("{anchor}-{}", *times - 1) }
    };
    headings(page).into_iter().map(anchor).collect()
}

#[test]
fn links_and_anchors_are_found_and_code_is_passed_over() {
    let page = "# A `b`: c, d\n[one](x.md) and [two](y.md#z)`[no](w.md)`\n```sh\n# no [no](v)\n```\n## A b c d\n";
    assert_eq!(links(page), ["x.md", "y.md#z"]);
    assert_eq!(anchors(page), ["a-b-c-d", "a-b-c-d-1"]);
}
