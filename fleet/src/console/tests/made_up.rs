//! An API that answers what a test puts into it, and remembers what it was asked; and a made-up fleet.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use guest_agent_proto::fleet_api::*;
use jiff::Timestamp;
use prost::Message;
use tonic::{Code, Status as Refused};

use super::super::calls::{Calls, table};
use crate::identity::{Authenticate, Grant as Own, Principal, Refusal, Role as OwnRole};

/// The time of every test.
pub(super) const NOW: &str = "2026-01-01T12:00:00Z";

/// What was asked: the call, who asked, and the request as text.
pub(super) type Asked = (&'static str, String, String);

/// An API.
#[derive(Default)]
pub(super) struct MadeUp {
    answers: Mutex<HashMap<&'static str, Vec<u8>>>,
    refusals: Mutex<HashMap<&'static str, Code>>,
    asked: Mutex<Vec<Asked>>,
}

// === impl MadeUp ===

impl MadeUp {
    pub(super) fn answers(&self, call: &'static str, answer: &impl Message) {
        self.answers.lock().unwrap().insert(call, answer.encode_to_vec());
    }

    pub(super) fn refuses(&self, call: &'static str, code: Code) {
        self.refusals.lock().unwrap().insert(call, code);
    }

    /// What was asked that changes something.
    pub(super) fn changes(&self) -> Vec<Asked> {
        let asked = self.asked.lock().unwrap();
        let reads = ["get_", "list_", "preview_", "diff_", "verify_"];
        let changes = |it: &&Asked| !reads.iter().any(|read| it.0.starts_with(read));
        asked.iter().filter(changes).cloned().collect()
    }

    fn answer<A: Message + Default>(
        &self,
        call: &'static str,
        who: &Principal,
        request: &impl std::fmt::Debug,
    ) -> Result<A, Refused> {
        self.asked.lock().unwrap().push((call, who.name.clone(), format!("{request:?}")));
        if let Some(code) = self.refusals.lock().unwrap().get(call) {
            return Err(Refused::new(*code, format!("{call} is refused")));
        }
        let answers = self.answers.lock().unwrap();
        let answer = answers.get(call).map(Vec::as_slice).unwrap_or_default();
        Ok(A::decode(answer).expect("the answer of this call"))
    }
}

macro_rules! made_up {
    ($($name:ident: $rpc:ident($request:ty) => $answer:ty;)*) => {
        #[async_trait]
        impl Calls for MadeUp {
            $(
                async fn $name(&self, who: &Principal, request: $request) -> Result<$answer, Refused> {
                    self.answer(stringify!($name), who, &request)
                }
            )*
        }
    };
}

use guest_agent_proto::fleet_api::Status as Counts;
table!(made_up);

/// Tokens by their text.
#[derive(Default)]
pub(super) struct Tokens(pub(super) Mutex<BTreeMap<&'static str, OwnRole>>);

#[async_trait]
impl Authenticate for Tokens {
    async fn authenticate(&self, bearer: &str) -> Result<Principal, Refusal> {
        let tokens = self.0.lock().unwrap();
        if bearer == "ended" {
            return Err(Refusal::Ended("old".to_owned()));
        }
        let role = tokens.get(bearer).copied().ok_or(Refusal::Unknown)?;
        Ok(Principal {
            name: format!("token/{role}"),
            from: format!("API token {role}"),
            grants: vec![Own::everywhere(role)],
        })
    }
}

/// A token of each role, which has its name.
pub(super) fn tokens() -> Arc<Tokens> {
    let all = OwnRole::ALL.map(|role| (role.name(), role));
    Arc::new(Tokens(Mutex::new(BTreeMap::from(all))))
}

pub(super) fn at(text: &str) -> Option<prost_types::Timestamp> {
    let at: Timestamp = text.parse().expect("a time");
    Some(prost_types::Timestamp { seconds: at.as_second(), nanos: 0 })
}

pub(super) fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub(super) fn index() -> Option<Index> {
    Some(Index { age_seconds: 4, as_of: at("2026-01-01T11:59:56Z"), old: false })
}

pub(super) fn counts(states: &[(Standing, u64)]) -> Option<Standings> {
    let agents = states.iter().map(|(_, agents)| agents).sum();
    let states =
        states.iter().map(|(state, agents)| StateCount { agents: *agents, state: (*state).into() });
    Some(Standings { agents, states: states.collect() })
}

pub(super) fn status() -> Counts {
    let plugin = |revision: &str, states: &[(Standing, u64)]| PluginCounts {
        having: Some(40),
        plugin: "monitor".to_owned(),
        revision: Some(revision.to_owned()),
        wanted: counts(states),
    };
    Counts {
        agents: Some(AgentCounts {
            archived: 2,
            away: 3,
            never_seen: 1,
            present: 95,
            quarantined: 1,
        }),
        index: index(),
        left_out: 0,
        plugins: vec![
            plugin("1.0", &[(Standing::Done, 40)]),
            plugin("1.1", &[(Standing::Done, 50), (Standing::Failed, 2), (Standing::Silent, 1)]),
        ],
    }
}

/// A rollout that halted in its second wave.
pub(super) fn rollout() -> Rollout {
    Rollout {
        assignment: "monitor-prod".to_owned(),
        budget: 10,
        cause: Some("2 of 5 failed in wave 2: exit code 7".to_owned()),
        from: Some("1.0".to_owned()),
        history: Some(RolloutHistory { failed: 1, rollouts: 2, succeeded: 199 }),
        name: "spring".to_owned(),
        plugin: "monitor".to_owned(),
        progress: Some(RolloutProgress {
            age_seconds: 4,
            as_of: at("2026-01-01T11:59:56Z"),
            facets: vec![Facet {
                failed: 2,
                key: "zone".to_owned(),
                passed: 0,
                value: "eu-west".to_owned(),
            }],
            failed: vec![FailedAgent {
                agent: "a-7".to_owned(),
                at: at("2026-01-01T11:50:00Z"),
                fingerprint: "exit code 7".to_owned(),
                reason: "the plugin ended with exit code 7".to_owned(),
                wave: 2,
            }],
            failures: 2,
            fingerprints: vec![Fingerprint { agents: 2, fingerprint: "exit code 7".to_owned() }],
            given: 5,
            in_flight: 1,
            kept: vec![KeptAgent {
                agent: "a-9".to_owned(),
                why: "held by ops: end of the year (hold freeze)".to_owned(),
            }],
            may_arrive: vec!["a-8".to_owned()],
            may_arrive_count: 1,
            meters: vec![Meter {
                evidence: 4.1,
                expected: 0.1,
                failed: 2,
                limit: 4.6,
                of: "installations".to_owned(),
            }],
            stands: vec![
                Stand { agents: 95, stand: "waits for its wave".to_owned() },
                Stand { agents: 1, stand: "under way".to_owned() },
                Stand { agents: 2, stand: "done".to_owned() },
                Stand { agents: 2, stand: "failed".to_owned() },
            ],
            targets: 100,
            waiting: Some("a person has to say how it goes on".to_owned()),
        }),
        state: "halted".to_owned(),
        to: Some("1.1".to_owned()),
        tolerated: 0.02,
        verbs: ["resume", "rollback", "abort"].map(str::to_owned).to_vec(),
        wave: 2,
        waves: ["1", "4", "ring=wide", "100%"].map(str::to_owned).to_vec(),
    }
}

pub(super) fn entry() -> AuditEntry {
    AuditEntry {
        at: at("2026-01-01T11:40:00Z"),
        changes: vec![AuditChange {
            after: Some("spring: monitor 1.0 to 1.1, running".to_owned()),
            before: None,
            kind: "rollout".to_owned(),
            name: "monitor-prod".to_owned(),
        }],
        from: "guest-fleet on ops-1".to_owned(),
        number: 17,
        what: "rollout create".to_owned(),
        who: "alice".to_owned(),
        why: "TICKET-4".to_owned(),
    }
}

pub(super) fn gateway(state: GatewayState) -> Gateway {
    Gateway {
        agents: 95,
        beat: at("2026-01-01T11:59:58Z"),
        beat_age_seconds: Some(2),
        host: "gw-1".to_owned(),
        id: "0f3a".to_owned(),
        moves_rollouts: state == GatewayState::Serving,
        pid: 812,
        since: at("2026-01-01T08:00:00Z"),
        state: state.into(),
        version: "0.2.0".to_owned(),
    }
}

pub(super) fn agent() -> Agent {
    Agent {
        agent_version: Some("0.2.0".to_owned()),
        architecture: Some("amd64".to_owned()),
        hostname: Some("web-7".to_owned()),
        id: "a-7".to_owned(),
        labels: map(&[("env", "prod"), ("zone", "eu-west")]),
        os: Some("Debian 13".to_owned()),
        own_labels: map(&[("rack", "r7")]),
        seen: at("2026-01-01T11:59:50Z"),
        since: at("2025-12-01T00:00:00Z"),
        plugins: vec![AgentPlugin {
            has: Some("1.0".to_owned()),
            plugin: "monitor".to_owned(),
            reason: Some("exit code 7".to_owned()),
            revision: Some("1.1".to_owned()),
            state: Standing::Failed.into(),
        }],
        ..Agent::default()
    }
}

pub(super) fn whole_agent() -> WholeAgent {
    WholeAgent {
        agent: Some(Agent { quarantine: Some("two boot ids alternate".to_owned()), ..agent() }),
        capabilities: vec!["generations".to_owned()],
        certificates: vec![Certificate {
            ends: at("2026-01-30T00:00:00Z"),
            issued: at("2025-12-31T00:00:00Z"),
            revoked: None,
            serial: "0a1b2c".to_owned(),
        }],
        kernel: Some("6.12.9".to_owned()),
        plugins: vec![Explanation {
            agent: "a-7".to_owned(),
            assignments: vec![
                SelectingAssignment {
                    decides: true,
                    name: "monitor-prod".to_owned(),
                    priority: 10,
                    revision: Some("1.1".to_owned()),
                    select: "env = prod".to_owned(),
                },
                SelectingAssignment {
                    decides: false,
                    name: "monitor-all".to_owned(),
                    priority: 0,
                    revision: Some("1.0".to_owned()),
                    select: "all".to_owned(),
                },
            ],
            desired: Some(Desired {
                assignment: "monitor-prod".to_owned(),
                attempt: 1,
                revision: Some("1.1".to_owned()),
            }),
            missing_secrets: vec![MissingSecret {
                gateway: "gw-1".to_owned(),
                name: "api-key".to_owned(),
                problem: "there is no such file".to_owned(),
            }],
            next: Some("`guest-fleet retry monitor-prod`".to_owned()),
            order: Some(Order {
                assignment: "monitor-prod".to_owned(),
                attempt: 1,
                generation: 8,
                made: at("2026-01-01T11:48:00Z"),
                revision: Some("1.1".to_owned()),
                since: at("2026-01-01T11:50:00Z"),
                state: "failed: exit code 7".to_owned(),
            }),
            plugin: "monitor".to_owned(),
            reported: Some(Reported {
                at: at("2026-01-01T11:59:00Z"),
                generation: 8,
                local: false,
                pending: None,
                revision: Some("1.0".to_owned()),
                status: "RUNNING".to_owned(),
                stopped_by_owner: false,
            }),
            seen: at("2026-01-01T11:59:50Z"),
            sentence: "monitor 1.1 failed: exit code 7".to_owned(),
            state: Standing::Failed.into(),
        }],
        token: Some("web".to_owned()),
    }
}

pub(super) fn events() -> Vec<Event> {
    let event = |kind: &str, details: &str| Event {
        at: at("2026-01-01T11:49:00Z"),
        details: details.to_owned(),
        plugin: "monitor".to_owned(),
        received: at("2026-01-01T11:49:01Z"),
        revision: "1.1".to_owned(),
        r#type: kind.to_owned(),
    };
    vec![event("PLUGIN_CRASHED", "exit code 7"), event("PLUGIN_STARTED", "")]
}

pub(super) fn releases() -> ListReleasesResponse {
    let release = |revision: &str, states: &[(Standing, u64)]| Release {
        archives: BTreeMap::from([(
            "amd64".to_owned(),
            Archive { elsewhere: false, sha256: "ab".repeat(32) },
        )]),
        assignments: vec!["monitor-prod".to_owned()],
        counts: counts(states),
        having: Some(40),
        plugin: "monitor".to_owned(),
        revision: revision.to_owned(),
    };
    ListReleasesResponse {
        index: index(),
        releases: vec![
            release("1.0", &[(Standing::Done, 40), (Standing::Held, 1)]),
            release("1.1", &[(Standing::Done, 50), (Standing::Failed, 2), (Standing::Ordered, 1)]),
        ],
    }
}

pub(super) fn assignments() -> ListAssignmentsResponse {
    ListAssignmentsResponse {
        assignments: vec![Assignment {
            absent: false,
            attempt: 1,
            counts: counts(&[(Standing::Done, 50), (Standing::Failed, 2)]),
            name: "monitor-prod".to_owned(),
            own_labels: true,
            plugin: "monitor".to_owned(),
            priority: 10,
            revision: Some("1.1".to_owned()),
            select: "env = prod".to_owned(),
        }],
        index: index(),
    }
}

pub(super) fn preview() -> RolloutPreview {
    RolloutPreview {
        agents: 100,
        assignment: "monitor-prod".to_owned(),
        budget: 10,
        from: Some("1.0".to_owned()),
        kept_back: vec![KeptBack {
            agents: 1,
            first: vec!["a-9".to_owned()],
            reason: "held by freeze: end of the year".to_owned(),
        }],
        name: "spring".to_owned(),
        plugin: "monitor".to_owned(),
        to: Some("1.1".to_owned()),
        waves: vec![WavePreview {
            agents: 5,
            first: vec!["a-1".to_owned(), "a-2".to_owned()],
            needs_approval: true,
            size: "5".to_owned(),
            soak_seconds: 600,
            zones: BTreeMap::from([("eu-west".to_owned(), 5)]),
        }],
    }
}

pub(super) fn change() -> Change {
    let record = |change: ChangeKind, before: Option<&str>, after: Option<&str>| RecordChange {
        after: after.map(str::to_owned),
        before: before.map(str::to_owned),
        change: change.into(),
        kind: "assignment".to_owned(),
        name: "monitor-prod".to_owned(),
    };
    Change {
        changes: vec![record(
            ChangeKind::Replaced,
            Some("monitor 1.0 on env = prod"),
            Some("monitor 1.1 on env = prod"),
        )],
        dry_run: true,
        notes: vec!["`later.toml` was passed over".to_owned()],
        undeclared: vec![record(ChangeKind::Unspecified, Some("monitor 1.0 on all"), None)],
        unchanged: 3,
        ..Change::default()
    }
}

pub(super) fn hold() -> Hold {
    Hold {
        by: "alice".to_owned(),
        by_hand: true,
        ended: false,
        name: "freeze".to_owned(),
        own_labels: false,
        plugins: vec!["monitor".to_owned()],
        reason: "end of the year".to_owned(),
        select: "env = prod".to_owned(),
        until: at("2026-01-02T00:00:00Z"),
    }
}

pub(super) fn window() -> Window {
    Window {
        days: vec!["mon".to_owned(), "tue".to_owned()],
        from: "22:00".to_owned(),
        name: "nights".to_owned(),
        next: at("2026-01-05T22:00:00Z"),
        open: false,
        own_labels: false,
        plugins: Vec::new(),
        select: "all".to_owned(),
        to: "04:00".to_owned(),
        until: None,
        zone: "Europe/Zurich".to_owned(),
    }
}

pub(super) fn token() -> Token {
    Token {
        agent: None,
        by: "alice".to_owned(),
        ends: at("2026-01-08T00:00:00Z"),
        ephemeral: true,
        labels: map(&[("env", "prod")]),
        made: at("2026-01-01T00:00:00Z"),
        name: "web".to_owned(),
        state: TokenState::InForce.into(),
        uses: 20,
        uses_left: 13,
    }
}

pub(super) fn verdict() -> AuditVerdict {
    AuditVerdict {
        checked: 17,
        head: "17:abcdef".to_owned(),
        problems: vec!["entry 9 was changed".to_owned()],
    }
}
