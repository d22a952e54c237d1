//! Every link leads somewhere, in the repository and in the book that is made of `docs/`.

use std::path::{Component, Path, PathBuf};

use crate::pages;

/// A path without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                assert!(normal.pop(), "{} leaves the repository", path.display())
            }
            other => normal.push(other),
        }
    }
    normal
}

fn is_elsewhere(link: &str) -> bool {
    link.contains("://") || link.starts_with("mailto:")
}

/// What is wrong with a link of a page.
fn fault(page: &Path, link: &str) -> Option<String> {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let folder = page.parent().unwrap_or(Path::new(""));
    let target = if path.is_empty() { page.to_owned() } else { normal(&folder.join(path)) };
    if !pages::root().join(&target).exists() {
        return Some("leads nowhere".to_owned());
    }
    if page.starts_with("docs") && !target.starts_with("docs") {
        return Some("leads out of the book: name the file, without a link".to_owned());
    }
    let known = || pages::anchors(&pages::text(&target));
    if !anchor.is_empty() && !known().iter().any(|known| known == anchor) {
        return Some(format!("has no such heading; there are {:?}", known()));
    }
    None
}

#[test]
fn every_link_leads_somewhere() {
    let pages_of_all = pages::all();
    assert!(pages_of_all.len() > 20, "pages are found");
    let mut faults = Vec::new();
    for page in &pages_of_all {
        for link in pages::links(&pages::text(page)).iter().filter(|link| !is_elsewhere(link)) {
            let fault = fault(page, link);
            faults.extend(fault.map(|fault| format!("{}: {link} {fault}", page.display())));
        }
    }
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn every_page_is_a_chapter_of_the_book() {
    let chapters = pages::links(&pages::text("docs/SUMMARY.md"));
    let in_docs = pages::all()
        .into_iter()
        .filter_map(|page| page.strip_prefix("docs").ok().map(|page| page.display().to_string()));
    let missing: Vec<_> = in_docs
        .filter(|page| page != "SUMMARY.md" && !chapters.iter().any(|chapter| chapter == page))
        .map(|page| format!("- [{}]({page})", first_heading(&page)))
        .collect();
    assert!(missing.is_empty(), "add to docs/SUMMARY.md:\n{}\n", missing.join("\n"));
}

fn first_heading(page: &str) -> String {
    let text = pages::text(Path::new("docs").join(page));
    pages::headings(&text).first().map(|&heading| heading.to_owned()).unwrap_or_default()
}
