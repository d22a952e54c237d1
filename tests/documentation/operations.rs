//! docs/operations.md leaves out no event and no check, and knows none that is not there.

use crate::pages;

/// The headings of one chapter of the page.
fn below(chapter: &str) -> Vec<String> {
    let page = pages::text("docs/operations.md");
    let chapter = page.split(&format!("\n## {chapter}\n")).nth(1).expect("the chapter");
    let chapter = chapter.split("\n## ").next().unwrap_or(chapter);
    pages::headings(chapter).into_iter().map(str::to_owned).collect()
}

#[test]
fn every_event_has_its_words() {
    let list = |page: &str, of: &str| {
        let proto = pages::text(page);
        let list = proto.split(&format!("enum {of} {{")).nth(1).expect("the enum");
        list.split('}').next().expect("its end").to_owned()
    };
    let public = list("proto/proto/agent_controlplane.proto", "PluginEventType");
    let own = list("proto/proto/fleet.proto", "PluginHealthEvent");
    let events: Vec<_> = public
        .lines()
        .chain(own.lines())
        .filter_map(|line| line.trim().split_once(" = "))
        .map(|(name, _)| name.to_owned())
        .filter(|name| !name.ends_with("_UNSPECIFIED"))
        .collect();
    assert!(events.len() >= 17);
    assert_eq!(below("Events"), events);
}

#[test]
fn every_check_of_the_doctor_has_its_words() {
    let source = pages::text("src/doctor.rs");
    let list = source.split("pub const CHECKS").nth(1).expect("the list");
    let list = list.split("];").next().expect("its end");
    let checks: Vec<_> =
        list.split("about: \"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(checks.len() >= 11);
    assert_eq!(below("What doctor checks"), checks);
}
