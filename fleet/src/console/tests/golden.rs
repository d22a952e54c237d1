//! What people read on every page of a made-up fleet, as text. A change of a page is seen here as a reader sees it:
//! `INSTA_UPDATE=always` writes the files below `snapshots/` anew.

use std::fmt::Write as _;

use guest_agent_proto::fleet_api::*;
use jiff::Timestamp;
use maud::{Markup, html};

use super::super::pieces::Ages;
use super::super::role::May;
use super::super::shown::Shown;
use super::super::{
    agent, agents, assignments, audit, enrolment, holds, now, releases, rollout, rollouts, system,
};
use super::made_up::*;

/// Elements of which the text goes on in the same line.
const INLINE: [&str; 13] = [
    "a", "b", "button", "code", "em", "i", "label", "option", "small", "span", "strong", "time",
    "abbr",
];
/// Cells of a table, which stand beside each other.
const CELLS: [&str; 2] = ["td", "th"];

/// The text of a page, a line for each block; forms show what their fields are called and where they lead.
fn words(markup: &Markup) -> String {
    let mut text = String::new();
    let mut rest = markup.0.as_str();
    while let Some((before, after)) = rest.split_once('<') {
        text.push_str(before);
        let (tag, after) = after.split_once('>').expect("a tag ends");
        rest = after;
        let name: String =
            tag.trim_start_matches('/').chars().take_while(char::is_ascii_alphanumeric).collect();
        let value = |of: &str| tag.split(&format!(" {of}=\"")).nth(1)?.split('"').next();
        match name.as_str() {
            "form" if tag.starts_with("form") => {
                writeln!(text, "\n[form {}]", value("action").unwrap_or("of this page"))
                    .expect("text takes text");
            }
            "input" | "textarea" | "select" if !tag.starts_with('/') => {
                let field = value("name").unwrap_or("?");
                write!(text, " [{field}: {}]", value("value").unwrap_or_default())
                    .expect("text takes text");
            }
            name if CELLS.contains(&name) => {
                text.push_str(if tag.starts_with('/') { "" } else { " | " })
            }
            name if INLINE.contains(&name) => {}
            _ => text.push('\n'),
        }
    }
    text.push_str(rest);
    for (entity, sign) in [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&amp;", "&")] {
        text = text.replace(entity, sign);
    }
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

fn page(shown: &Shown) -> String {
    words(&shown.body())
}

#[test]
fn every_page_reads_as_before() {
    let ages = Ages::At(NOW.parse::<Timestamp>().expect("a time"));
    let admin = May { best: Some(Role::Admin) };
    let viewer = May { best: Some(Role::Viewer) };
    let first = now::Now {
        status: status(),
        rollouts: vec![rollout()],
        gateways: Some(vec![gateway(GatewayState::Serving), gateway(GatewayState::Silent)]),
        audit: Some(vec![entry()]),
        at: NOW.parse().expect("a time"),
    };
    insta::assert_snapshot!("now", page(&now::page(&first, ages)));
    insta::assert_snapshot!("rollouts", page(&rollouts::page(&[rollout()])));
    let whole = rollout::Whole { rollout: rollout(), history: Some(vec![entry()]) };
    insta::assert_snapshot!("rollout", page(&rollout::page(&whole, &admin, ages)));
    insta::assert_snapshot!("rollout_of_a_viewer", page(&rollout::page(&whole, &viewer, ages)));
    let wanted = agents::Wanted {
        select: "env = prod".to_owned(),
        plugin: String::new(),
        state: String::new(),
        archived: false,
        after: String::new(),
    };
    let found = ListAgentsResponse {
        agents: vec![agent()],
        index: index(),
        more: 0,
        next: Some("vm-50".to_owned()),
    };
    let counts = AgentCounts { present: 3, away: 1, ..AgentCounts::default() };
    let listed = agents::Agents { wanted, found: Ok(found), counts };
    insta::assert_snapshot!("agents", page(&agents::page(&listed, ages)));
    let one = agent::Whole { agent: whole_agent(), events: events() };
    insta::assert_snapshot!("agent", page(&agent::page(&one, &admin, ages)));
    insta::assert_snapshot!("releases", page(&releases::page(&releases(), ages)));
    insta::assert_snapshot!("assignments", page(&assignments::page(&assignments(), &admin, ages)));
    insta::assert_snapshot!("holds", page(&holds::page(&[hold()], &[window()], &admin)));
    let aside = enrolment::Enrolment {
        tokens: Ok(vec![token()]),
        quarantined: vec![agent()],
        archived: vec![agent()],
    };
    insta::assert_snapshot!("enrolment", page(&enrolment::page(&aside, &admin, ages)));
    let audited = audit::Audit { entries: vec![entry()], verdict: Some(verdict()) };
    insta::assert_snapshot!("audit", page(&audit::page(&audited, ages)));
    let itself = system::System {
        caller: Caller {
            name: "token/alice".to_owned(),
            grants: vec![Grant { role: Role::Admin.into(), scope: "all".to_owned() }],
        },
        gateways: Ok(vec![gateway(GatewayState::Serving)]),
        index: index(),
    };
    insta::assert_snapshot!("system", page(&system::page(&itself, ages)));
}

#[test]
fn what_is_thought_of_reads_as_before() {
    let admin = May { best: Some(Role::Admin) };
    let csrf = html! {};
    let thought = assignments::Thought {
        assignment: "web-prod".to_owned(),
        to: "2.0".to_owned(),
        name: "spring".to_owned(),
        waves: "ring=canary\n100%".to_owned(),
    };
    let found = Ok(preview());
    let shown = assignments::preview(&thought, &["2.0".to_owned()], Some(&found), (&admin, &csrf));
    insta::assert_snapshot!("preview", words(&shown));
    let shown = assignments::diff("[[hold]]", Some(&Ok(change())), &csrf);
    insta::assert_snapshot!("diff", words(&shown));
    let thought = holds::Thought {
        name: "freeze".to_owned(),
        select: "env = prod".to_owned(),
        plugins: String::new(),
        hours: "8".to_owned(),
        reason: "the quarter closes".to_owned(),
    };
    let selected = Ok(holds::Selected { agents: 12, and_more: false });
    insta::assert_snapshot!("hold", words(&holds::ask(&thought, Some(&selected), &csrf)));
}
