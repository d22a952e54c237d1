//! Text from outside is shown as text, on every page, wherever it stands.

use guest_agent_proto::fleet_api::*;
use jiff::Timestamp;
use prost::Message;

use super::super::pieces::Ages;
use super::super::role::May;
use super::super::{
    agent, agents, assignments, audit, enrolment, holds, now, releases, rollout, rollouts, system,
};
use super::made_up::*;

/// What would do harm if it were taken for markup, in an attribute or between tags.
const HOSTILE: &str = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>";

/// Every text field of a message replaced by hostile text: strings are found in its bytes, whatever the
/// message. What is a number or a time stays.
fn hostile<M: Message + Default>(message: &M) -> M {
    let bytes = replaced(&message.encode_to_vec()).expect("a message");
    M::decode(bytes.as_slice()).expect("the same message with other texts")
}

/// The bytes of a message with other texts; `None` where they are no message.
fn replaced(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut rest = bytes;
    let mut out = Vec::new();
    while !rest.is_empty() {
        let key = prost::encoding::decode_varint(&mut rest).ok()?;
        prost::encoding::encode_varint(key, &mut out);
        let fixed = match key & 7 {
            0 => {
                prost::encoding::encode_varint(
                    prost::encoding::decode_varint(&mut rest).ok()?,
                    &mut out,
                );
                0
            }
            1 => 8,
            5 => 4,
            2 => {
                let length =
                    usize::try_from(prost::encoding::decode_varint(&mut rest).ok()?).ok()?;
                let (part, after) = rest.split_at_checked(length)?;
                rest = after;
                let is_text = std::str::from_utf8(part)
                    .is_ok_and(|text| text.chars().all(|c| !c.is_control()) && !text.is_empty());
                let part = match is_text {
                    true => HOSTILE.as_bytes().to_vec(),
                    false => replaced(part).unwrap_or_else(|| part.to_vec()),
                };
                prost::encoding::encode_varint(u64::try_from(part.len()).ok()?, &mut out);
                out.extend(part);
                0
            }
            _ => return None,
        };
        let (part, after) = rest.split_at_checked(fixed)?;
        out.extend_from_slice(part);
        rest = after;
    }
    Some(out)
}

#[track_caller]
fn is_text(what: &str, page: &str) {
    assert!(page.contains("&lt;script&gt;"), "{what} shows the text: {page}");
    for markup in ["<script", "<img", "\"'>"] {
        assert!(!page.contains(markup), "{what} has {markup}: {page}");
    }
}

#[test]
fn hostile_text_is_text_on_every_page() {
    let ages = Ages::At(NOW.parse::<Timestamp>().expect("a time"));
    let admin = May { best: Some(Role::Admin) };
    let text = || HOSTILE.to_owned();
    let now = now::Now {
        status: hostile(&status()),
        rollouts: vec![Rollout { state: "halted".to_owned(), ..hostile(&rollout()) }],
        gateways: Some(vec![
            hostile(&gateway(GatewayState::Serving)),
            hostile(&gateway(GatewayState::Silent)),
        ]),
        audit: Some(vec![hostile(&entry())]),
        at: NOW.parse().expect("a time"),
    };
    let verbs = rollout().verbs;
    let whole_rollout = rollout::Whole {
        rollout: Rollout { verbs, ..hostile(&rollout()) },
        history: Some(vec![hostile(&entry())]),
    };
    let found = ListAgentsResponse {
        next: Some(text()),
        ..hostile(&ListAgentsResponse {
            agents: vec![agent()],
            index: index(),
            more: 0,
            next: None,
        })
    };
    let wanted = agents::Wanted {
        select: text(),
        plugin: text(),
        state: text(),
        archived: true,
        after: text(),
    };
    let listed = agents::Agents { wanted, found: Ok(found), counts: AgentCounts::default() };
    let whole_agent = agent::Whole {
        agent: hostile(&whole_agent()),
        events: events().iter().map(hostile).collect(),
    };
    let aside = enrolment::Enrolment {
        tokens: Ok(vec![hostile(&token())]),
        quarantined: vec![hostile(&agent())],
        archived: vec![hostile(&agent())],
    };
    let audited =
        audit::Audit { entries: vec![hostile(&entry())], verdict: Some(hostile(&verdict())) };
    let itself = system::System {
        caller: Caller { name: text(), grants: vec![Grant { role: 1, scope: text() }] },
        gateways: Ok(vec![hostile(&gateway(GatewayState::Serving))]),
        index: index(),
    };
    let pages = [
        ("now", now::page(&now, ages)),
        ("rollouts", rollouts::page(&[hostile(&rollout())])),
        ("rollout", rollout::page(&whole_rollout, &admin, ages)),
        ("agents", agents::page(&listed, ages)),
        ("agent", agent::page(&whole_agent, &admin, ages)),
        ("releases", releases::page(&hostile(&releases()), ages)),
        ("assignments", assignments::page(&hostile(&assignments()), &admin, ages)),
        ("holds", holds::page(&[hostile(&hold())], &[hostile(&window())], &admin)),
        ("enrolment", enrolment::page(&aside, &admin, ages)),
        ("audit", audit::page(&audited, ages)),
        ("system", system::page(&itself, ages)),
    ];
    for (name, page) in &pages {
        is_text(name, &page.body().0);
    }
    let thought =
        assignments::Thought { assignment: text(), to: text(), name: text(), waves: text() };
    let (csrf, found) = (maud::html! {}, Ok(hostile(&preview())));
    let preview = assignments::preview(&thought, &[text()], Some(&found), (&admin, &csrf));
    is_text("preview", &preview.0);
    is_text("diff", &assignments::diff(HOSTILE, Some(&Ok(hostile(&change()))), &csrf).0);
    let thought = holds::Thought {
        name: text(),
        select: text(),
        plugins: text(),
        hours: text(),
        reason: text(),
    };
    let selected = Ok(holds::Selected { agents: 1, and_more: false });
    is_text("hold", &holds::ask(&thought, Some(&selected), &csrf).0);
}
