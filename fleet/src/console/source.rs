//! Makes pages from what the API answers, for a browser that asks and for those that follow a page.

use std::future::pending;
use std::sync::Arc;

use guest_agent_console_kit::live::{Changes, Pages, Parts};
use guest_agent_proto::fleet_api::{
    Agent, AuditEntry, GetAgentRequest, GetCallerRequest, GetRolloutRequest, GetStatusRequest,
    ListAgentsRequest, ListAssignmentsRequest, ListAuditRequest, ListEventsRequest,
    ListGatewaysRequest, ListHoldsRequest, ListReleasesRequest, ListRolloutHistoryRequest,
    ListRolloutsRequest, ListTokensRequest, ListWindowsRequest, Standing, VerifyAuditRequest,
};
use jiff::Timestamp;
use tonic::{Code, Status};

use super::agents::{Agents, PAGE, Wanted};
use super::audit::{self, Audit};
use super::calls::Calls;
use super::enrolment::{self, Enrolment};
use super::login::Login;
use super::now::{self, Now};
use super::pieces::Ages;
use super::role::May;
use super::shown::Shown;
use super::system::{self, System};
use super::told::reason;
use super::topic::Topic;
use super::{agent, agents, assignments, holds, releases, rollout, rollouts};
use crate::identity::sessions::{SessionEnd, Sessions};
use crate::identity::{Authenticate, Principal, Refusal};

/// Entries of the audit record that the first page reads.
const LATELY: u32 = 100;

/// Events on the page of an agent.
const EVENTS: u32 = 50;

/// Entries of the audit record that are looked through for the time line of a rollout.
const HISTORY: u32 = 1000;

/// What pages are made from. Cheap to clone.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) calls: Arc<dyn Calls>,
    pub(super) authenticate: Arc<dyn Authenticate>,
    /// The sessions of people, where there is an identity provider.
    pub(super) people: Option<Arc<Sessions>>,
}

/// Why a login is nobody's.
#[derive(Debug)]
pub(super) enum Nobody {
    /// Its token is not taken, or whose it is cannot be found out.
    Refused(Refusal),
    /// Its session is over.
    Over,
    /// The person has no role any more.
    NoRole(String),
}

/// What would have changed wakes nobody: pages are looked at every few seconds, and only while a browser
/// follows them.
pub(super) struct Beat;

// === impl Source ===

impl Source {
    /// Whose a login is now.
    pub(super) async fn who(&self, login: &Login) -> Result<Principal, Nobody> {
        let mut who = match (login, &self.people) {
            (Login::Token(token), _) => {
                self.authenticate.authenticate(token).await.map_err(Nobody::Refused)?
            }
            (Login::Person(secret), Some(people)) => people.principal(secret).await?,
            (Login::Person(_), None) => return Err(Nobody::Over),
        };
        who.from = format!("the console, {}", who.from);
        Ok(who)
    }

    /// A page.
    pub(super) async fn show(
        &self,
        who: &Principal,
        topic: &Topic,
        ages: Ages,
    ) -> Result<Shown, Status> {
        let (calls, may) = (&self.calls, May::of_principal(who));
        Ok(match topic {
            Topic::Now => now::page(&self.now(who).await?, ages),
            Topic::Rollouts => {
                rollouts::page(&calls.list_rollouts(who, ListRolloutsRequest {}).await?.rollouts)
            }
            Topic::Rollout(name) => {
                let request = GetRolloutRequest { name: name.clone() };
                let rollout = calls.get_rollout(who, request).await?;
                let request = ListRolloutHistoryRequest { name: name.clone(), limit: HISTORY };
                let history = allowed(calls.list_rollout_history(who, request).await)?;
                let history = history.map(|history| history.entries);
                rollout::page(&rollout::Whole { rollout, history }, &may, ages)
            }
            Topic::Agents(wanted) => agents::page(&self.agents(who, wanted).await?, ages),
            Topic::Agent(id) => {
                let request = GetAgentRequest { id: id.clone() };
                let found = calls.get_agent(who, request).await?;
                let request =
                    ListEventsRequest { id: id.clone(), plugin: String::new(), limit: EVENTS };
                let events = calls.list_events(who, request).await?.events;
                agent::page(&agent::Whole { agent: found, events }, &may, ages)
            }
            Topic::Releases => {
                releases::page(&calls.list_releases(who, ListReleasesRequest {}).await?, ages)
            }
            Topic::Assignments => {
                let found = calls.list_assignments(who, ListAssignmentsRequest {}).await?;
                assignments::page(&found, &may, ages)
            }
            Topic::Holds => {
                let holds = calls.list_holds(who, ListHoldsRequest {}).await?.holds;
                let windows = calls.list_windows(who, ListWindowsRequest {}).await?.windows;
                holds::page(&holds, &windows, &may)
            }
            Topic::Enrolment => enrolment::page(&self.enrolment(who).await?, &may, ages),
            Topic::Audit { before, check } => {
                let entries = self.entries(who, audit::PAGE, *before).await?;
                let verdict = match check {
                    true => Some(calls.verify_audit(who, VerifyAuditRequest::default()).await?),
                    false => None,
                };
                audit::page(&Audit { entries, verdict }, ages)
            }
            Topic::System => {
                let gateways = calls.list_gateways(who, ListGatewaysRequest {}).await;
                let system = System {
                    caller: calls.get_caller(who, GetCallerRequest {}).await?,
                    gateways: or_reason(gateways.map(|found| found.gateways))?,
                    index: calls.get_status(who, GetStatusRequest {}).await?.index,
                };
                system::page(&system, ages)
            }
        })
    }

    async fn now(&self, who: &Principal) -> Result<Now, Status> {
        let calls = &self.calls;
        let gateways = calls.list_gateways(who, ListGatewaysRequest {}).await;
        Ok(Now {
            status: calls.get_status(who, GetStatusRequest {}).await?,
            rollouts: calls.list_rollouts(who, ListRolloutsRequest {}).await?.rollouts,
            gateways: allowed(gateways)?.map(|found| found.gateways),
            audit: allowed(self.entries(who, LATELY, 0).await)?,
            at: Timestamp::now(),
        })
    }

    async fn entries(
        &self,
        who: &Principal,
        limit: u32,
        before: u64,
    ) -> Result<Vec<AuditEntry>, Status> {
        Ok(self.calls.list_audit(who, ListAuditRequest { limit, before }).await?.entries)
    }

    async fn agents(&self, who: &Principal, wanted: &Wanted) -> Result<Agents, Status> {
        let found = self.calls.list_agents(who, wanted.request()).await;
        let status = self.calls.get_status(who, GetStatusRequest {}).await?;
        Ok(Agents {
            wanted: wanted.clone(),
            // A selector with a mistake is nothing that the page fails with.
            found: match found {
                Err(status) if status.code() == Code::InvalidArgument => Err(reason(&status)),
                found => Ok(found?),
            },
            counts: status.agents.unwrap_or_default(),
        })
    }

    async fn enrolment(&self, who: &Principal) -> Result<Enrolment, Status> {
        let tokens = self.calls.list_tokens(who, ListTokensRequest {}).await;
        Ok(Enrolment {
            tokens: or_reason(tokens.map(|found| found.tokens))?,
            quarantined: self
                .aside(who, Standing::Quarantined, |it| it.quarantine.is_some())
                .await?,
            archived: self.aside(who, Standing::Archived, |it| it.archived.is_some()).await?,
        })
    }

    /// A page of agents that are set aside.
    async fn aside(
        &self,
        who: &Principal,
        state: Standing,
        is_aside: fn(&Agent) -> bool,
    ) -> Result<Vec<Agent>, Status> {
        let request = ListAgentsRequest {
            state: state.into(),
            archived: true,
            page_size: PAGE,
            ..ListAgentsRequest::default()
        };
        let mut agents = self.calls.list_agents(who, request).await?.agents;
        agents.retain(is_aside);
        Ok(agents)
    }
}

// === impl Nobody ===

impl From<SessionEnd> for Nobody {
    fn from(end: SessionEnd) -> Self {
        match end {
            SessionEnd::Over => Self::Over,
            SessionEnd::NoRole(name) => Self::NoRole(name),
            SessionEnd::Unavailable(stale) => Self::Refused(Refusal::Unavailable(Box::new(stale))),
        }
    }
}

impl Pages for Source {
    type Topic = (Topic, Login);
    type Changes = Beat;

    async fn parts(&self, (topic, login): &(Topic, Login)) -> Parts {
        let Ok(who) = self.who(login).await else { return Parts::new() };
        self.show(&who, topic, Ages::Left).await.map(Shown::parts).unwrap_or_default()
    }

    fn changes(&self) -> Beat {
        Beat
    }
}

impl Changes for Beat {
    async fn next(&mut self) {
        pending().await
    }
}

/// What the visitor may see; `None` where that is not for them.
fn allowed<T>(answer: Result<T, Status>) -> Result<Option<T>, Status> {
    match answer {
        Err(status) if status.code() == Code::PermissionDenied => Ok(None),
        answer => answer.map(Some),
    }
}

/// The same, with the reason.
fn or_reason<T>(answer: Result<T, Status>) -> Result<Result<T, String>, Status> {
    match answer {
        Err(status) if status.code() == Code::PermissionDenied => Ok(Err(reason(&status))),
        answer => answer.map(Ok),
    }
}
