//! Every page of a made-up fleet, as it is sent.

use guest_agent_proto::fleet_api::*;
use jiff::Timestamp;
use maud::Markup;

use super::super::now::{Now, Rank, items};
use super::super::pieces::Ages;
use super::super::role::May;
use super::super::shown::Shown;
use super::super::{
    agent, agents, assignments, audit, enrolment, holds, now, releases, rollout, rollouts, system,
};
use super::made_up::*;

fn ages() -> Ages {
    Ages::At(NOW.parse::<Timestamp>().expect("a time"))
}

fn admin() -> May {
    May { best: Some(Role::Admin) }
}

fn viewer() -> May {
    May { best: Some(Role::Viewer) }
}

/// A page with an element on each line.
fn lines(shown: &Shown) -> String {
    apart(&shown.body())
}

fn apart(markup: &Markup) -> String {
    markup.0.replace("><", ">\n<")
}

#[track_caller]
fn has(page: &str, parts: &[&str]) {
    for part in parts {
        assert!(page.contains(part), "{part} is not in {page}");
    }
}

fn now_page() -> Now {
    Now {
        status: status(),
        rollouts: vec![rollout()],
        gateways: Some(vec![gateway(GatewayState::Serving), gateway(GatewayState::Silent)]),
        audit: Some(vec![entry()]),
        at: NOW.parse().expect("a time"),
    }
}

#[test]
fn the_first_page() {
    has(
        &lines(&now::page(&now_page(), ages())),
        &[
            "6 things need",
            "2 of 5 failed in wave 2",
            "2 of 53 machines could not do what was ordered",
            "1 of 53 machines have not said in time",
            "1 gateway silent: gw-1",
            "3 machines not seen",
            "TICKET-4",
            "guest-fleet status",
        ],
    );
}

#[test]
fn the_worst_comes_first() {
    let mut now = now_page();
    let ranks = |now: &Now| items(now).iter().map(|item| item.rank).collect::<Vec<_>>();
    let usual =
        [Rank::Halted, Rank::Failed, Rank::GatewaySilent, Rank::Silent, Rank::Away, Rank::Away];
    assert_eq!(ranks(&now), usual);
    now.gateways = Some(vec![gateway(GatewayState::Silent)]);
    assert_eq!(ranks(&now)[0], Rank::NoGateway);
    let mut spreading = rollout();
    spreading.state = "running".to_owned();
    now.rollouts = vec![spreading, rollout()];
    assert_eq!(ranks(&now)[1..3], [Rank::Halted, Rank::Spreading]);
    now.status.index.as_mut().expect("an index").old = true;
    assert!(ranks(&now).contains(&Rank::OldCounts));
}

#[test]
fn nothing_to_do_is_said() {
    let now = Now {
        status: Status { index: index(), ..Status::default() },
        rollouts: Vec::new(),
        gateways: None,
        audit: Some(vec![AuditEntry { at: at("2026-01-01T10:59:59Z"), ..entry() }]),
        at: NOW.parse().expect("a time"),
    };
    let page = lines(&now::page(&now, ages()));
    assert!(page.contains("Nothing needs anybody now."), "{page}");
    assert!(page.contains("The last change was ") && !page.contains("TICKET-4"), "{page}");
}

#[test]
fn all_rollouts() {
    let mut done = rollout();
    (done.name, done.state, done.cause) = ("autumn".to_owned(), "done".to_owned(), None);
    let uncounted = Rollout { progress: None, state: "draft".to_owned(), cause: None, ..rollout() };
    let page = rollouts::page(&[done, uncounted, rollout()]);
    assert_eq!(page.said, "1 rollout halted");
    has(
        &lines(&page),
        &[
            "href=\"/console/rollout?of=autumn\"",
            "to come",
            "1.0 → 1.1",
            "2 of 4",
            "guest-fleet rollout list",
        ],
    );
}

#[test]
fn one_rollout() {
    let whole = rollout::Whole { rollout: rollout(), history: Some(vec![entry()]) };
    has(
        &lines(&rollout::page(&whole, &admin(), ages())),
        &[
            "2 of 5 failed in wave 2",
            "Roll back (≤ 5 machines)…",
            "Resume (≤ 95 machines)…",
            "Abort (no machine)…",
            "Wave 3: ring=wide",
            "≤ 95 machines",
            "2 failed",
            "evidence 4.1 of 4.6",
            "exit code 7",
            "eu-west",
            "href=\"/console/agent?of=a-9\"",
            "an order may still arrive",
            "1 of 200 installations failed in 2 rollouts",
            "TICKET-4",
            "guest-fleet rollout show spring",
        ],
    );
}

#[test]
fn who_may_only_look_sees_no_button() {
    let whole = rollout::Whole { rollout: rollout(), history: None };
    let page = lines(&rollout::page(&whole, &viewer(), ages()));
    assert!(!page.contains("class=\"button"), "{page}");
    let operator = May { best: Some(Role::Operator) };
    let page = lines(&rollout::page(&whole, &operator, ages()));
    assert!(page.contains("Roll back (≤ 5 machines)…"), "{page}");
    let mut waits = rollout();
    waits.verbs = vec!["approve".to_owned(), "pause".to_owned()];
    let whole = rollout::Whole { rollout: waits, history: None };
    let page = lines(&rollout::page(&whole, &operator, ages()));
    assert!(page.contains("Pause (no machine)…") && !page.contains("Approve"), "{page}");
}

#[test]
fn a_page_of_agents() {
    let found = ListAgentsResponse {
        agents: vec![agent()],
        index: index(),
        more: 0,
        next: Some("a-7".to_owned()),
    };
    let wanted = agents::Wanted {
        select: "env = prod".to_owned(),
        state: "failed".to_owned(),
        after: "a-1".to_owned(),
        ..agents::Wanted::default()
    };
    let counts = status().agents.expect("counts");
    let page = agents::page(&agents::Agents { wanted, found: Ok(found), counts }, ages());
    has(
        &lines(&page),
        &[
            "href=\"/console/agent?of=a-7\"",
            "env=prod",
            "From the beginning",
            "Next 50",
            "after=a-7",
            "95",
            "selected",
        ],
    );
}

#[test]
fn a_selector_with_a_mistake_is_shown_beside_the_form() {
    let wanted = agents::Wanted { select: "env ==".to_owned(), ..agents::Wanted::default() };
    let found = Err("the selector does not parse".to_owned());
    let counts = AgentCounts::default();
    let page = lines(&agents::page(&agents::Agents { wanted, found, counts }, ages()));
    assert!(page.contains("does not parse") && page.contains("value=\"env ==\""), "{page}");
}

#[test]
fn one_agent() {
    let whole = agent::Whole { agent: whole_agent(), events: events() };
    has(
        &lines(&agent::page(&whole, &admin(), ages())),
        &[
            "two boot ids alternate",
            "monitor 1.1 failed: exit code 7",
            "by monitor-prod, attempt 1",
            "generation 8",
            "priority 0",
            "api-key",
            "Release from quarantine…",
            "crashed",
            "0a1b2c",
            "guest-fleet explain a-7 monitor",
        ],
    );
}

#[test]
fn all_releases() {
    has(
        &lines(&releases::page(&releases(), ages())),
        &["wanted by monitor-prod", "state=done", "amd64", "guest-fleet releases"],
    );
}

#[test]
fn all_assignments() {
    has(
        &lines(&assignments::page(&assignments(), &admin(), ages())),
        &[
            "priority 10",
            "own labels",
            "Preview a rollout…",
            "Try again…",
            "select=env%20%3D%20prod",
        ],
    );
}

#[test]
fn a_preview_says_how_many_machines_before_it_begins() {
    let thought = assignments::Thought {
        assignment: "monitor-prod".to_owned(),
        to: "1.1".to_owned(),
        name: "spring".to_owned(),
        waves: "5,approve 100%".to_owned(),
    };
    let revisions = ["1.0".to_owned(), "1.1".to_owned()];
    let csrf = maud::html! { input type="hidden" name="csrf" value="x"; };
    let found = Ok(preview());
    let page = |may: May| assignments::preview(&thought, &revisions, Some(&found), (&may, &csrf));
    has(
        &apart(&page(admin())),
        &[
            "Touches 100 machines in all, at most 10 at one time.",
            "held by freeze",
            "Begin spring",
            "--wave 5,approve --wave 100%",
        ],
    );
    assert!(!page(viewer()).0.contains("method=\"post\""));
}

#[test]
fn a_difference_of_declarations() {
    let page = apart(&assignments::diff("[[assignment]]", Some(&Ok(change())), &maud::html! {}));
    has(
        &page,
        &[
            "Would change 1 record",
            "was: monitor 1.0 on env = prod",
            "would be: monitor 1.1 on env = prod",
            "later.toml",
            "3 declarations",
        ],
    );
}

#[test]
fn holds_and_windows() {
    has(
        &lines(&holds::page(&[hold()], &[window()], &admin())),
        &[
            "end of the year",
            "2026-01-02T00:00:00Z",
            "Release…",
            "nights",
            "opens",
            "closed",
            "Europe/Zurich",
        ],
    );
    let page = lines(&holds::page(&[hold()], &[], &viewer()));
    assert!(!page.contains("class=\"button"), "{page}");
}

#[test]
fn a_hold_says_how_many_machines_before_it_is_set() {
    let thought = holds::Thought {
        name: "freeze".to_owned(),
        select: "env = prod".to_owned(),
        hours: "4".to_owned(),
        reason: "it's late".to_owned(),
        ..holds::Thought::default()
    };
    let selected = Ok(holds::Selected { agents: 12, and_more: false });
    let page = apart(&holds::ask(&thought, Some(&selected), &maud::html! {}));
    assert!(page.contains("Touches 12 machines."), "{page}");
    let command = "--select 'env = prod' --reason 'it'\\''s late' --for 4h";
    assert!(page.contains(command), "{page}");
    let selected = Ok(holds::Selected { agents: 10_000, and_more: true });
    let page = apart(&holds::ask(&thought, Some(&selected), &maud::html! {}));
    assert!(page.contains("Touches more than 10000 machines."), "{page}");
}

#[test]
fn how_machines_become_agents() {
    let quarantined = Agent { quarantine: Some("two boot ids".to_owned()), ..agent() };
    let archived = Agent { archived: at("2025-12-30T00:00:00Z"), id: "a-8".to_owned(), ..agent() };
    let whole = enrolment::Enrolment {
        tokens: Ok(vec![token()]),
        quarantined: vec![quarantined],
        archived: vec![archived],
    };
    has(
        &lines(&enrolment::page(&whole, &admin(), ages())),
        &[
            "two boot ids",
            "13 of 20",
            "short-lived",
            "Count again…",
            "Release from quarantine…",
            "guest-fleet token list",
        ],
    );
}

#[test]
fn who_changed_what() {
    let whole = audit::Audit { entries: vec![entry()], verdict: Some(verdict()) };
    has(
        &lines(&audit::page(&whole, ages())),
        &[
            "not whole",
            "entry 9 was changed",
            "17:abcdef",
            "rollout create",
            "TICKET-4",
            "guest-fleet audit verify",
        ],
    );
}

#[test]
fn the_control_plane_itself() {
    let whole = system::System {
        caller: Caller {
            name: "alice".to_owned(),
            grants: vec![Grant { role: Role::Operator.into(), scope: "env = prod".to_owned() }],
        },
        gateways: Ok(vec![gateway(GatewayState::Serving), gateway(GatewayState::Draining)]),
        index: index(),
    };
    has(
        &lines(&system::page(&whole, ages())),
        &["moves rollouts", "draining", "operator on ", "env = prod", "alice"],
    );
}
