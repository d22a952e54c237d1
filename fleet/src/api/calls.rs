//! The table of calls: what each is named, where it is over HTTP, the least role that may make it, and how a scope
//! narrows it.
//!
//! A new call is a row here and a function in `answers`; the compiler and the tests ask for the rest.

use std::fmt;

use crate::identity::Role;

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Which.
    pub rpc: Rpc,
    /// Its name, as the service has it.
    pub name: &'static str,
    /// Over HTTP: the method.
    pub method: Method,
    /// Over HTTP: the path; `{id}` stands for the field `id` of the request.
    pub path: &'static str,
    /// The least role that may make it.
    pub role: Role,
    /// How a scope narrows it.
    pub reach: Reach,
    /// What it does.
    pub kind: Kind,
    /// Name of the message that asks.
    pub request: &'static str,
    /// Name of the message that answers.
    pub answer: &'static str,
}

/// A method of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Looks.
    Get,
    /// Changes, or asks with a body.
    Post,
}

/// How a scope narrows a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It is about the caller itself: everybody may make it.
    Caller,
    /// The role has to hold somewhere. The answer is of what the caller sees, and what is not within its scope is
    /// answered as what does not exist.
    Scope,
    /// The role has to hold for the whole fleet.
    Fleet,
}

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It changes nothing.
    Look,
    /// It changes records together with their audit entry.
    Change,
    /// It writes the audit entry, then what is elsewhere.
    Intent,
}

macro_rules! table {
    ($($name:ident $method:ident($request:ident) -> $answer:ident:
        $http:ident $path:literal, $role:ident $reach:ident $kind:ident;)*) => {
        /// Which call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Rpc {
            $(#[doc = concat!("`", stringify!($name), "`")] $name,)*
        }

        /// All calls that have one answer.
        pub const CALLS: &[Call] = &[$(Call {
            rpc: Rpc::$name,
            name: stringify!($name),
            method: Method::$http,
            path: $path,
            role: Role::$role,
            reach: Reach::$reach,
            kind: Kind::$kind,
            request: stringify!($request),
            answer: stringify!($answer),
        },)*];
    };
}

/// Gives the rows of the table to a macro.
macro_rules! with_calls {
    ($then:ident) => {
        $then! {
            GetCaller get_caller(GetCallerRequest) -> Caller: Get "/v1/me", Viewer Caller Look;
            GetStatus get_status(GetStatusRequest) -> Status: Get "/v1/status", Viewer Scope Look;
            ListAgents list_agents(ListAgentsRequest) -> ListAgentsResponse: Get "/v1/agents", Viewer Scope Look;
            GetAgent get_agent(GetAgentRequest) -> WholeAgent: Get "/v1/agents/{id}", Viewer Scope Look;
            ListEvents list_events(ListEventsRequest) -> ListEventsResponse: Get "/v1/agents/{id}/events", Viewer Scope Look;
            Explain explain(ExplainRequest) -> Explanation: Get "/v1/agents/{agent}/plugins/{plugin}", Viewer Scope Look;
            LabelAgent label_agent(LabelAgentRequest) -> Change: Post "/v1/agents/{id}/label", Operator Scope Intent;
            ArchiveAgent archive_agent(ActOnAgentRequest) -> Change: Post "/v1/agents/{id}/archive", Operator Scope Intent;
            UnarchiveAgent unarchive_agent(ActOnAgentRequest) -> Change: Post "/v1/agents/{id}/unarchive", Operator Scope Intent;
            RevokeAgent revoke_agent(ActOnAgentRequest) -> Change: Post "/v1/agents/{id}/revoke", Admin Scope Intent;
            ReleaseAgent release_agent(ActOnAgentRequest) -> Change: Post "/v1/agents/{id}/release", Admin Scope Intent;
            ListReleases list_releases(ListReleasesRequest) -> ListReleasesResponse: Get "/v1/releases", Viewer Scope Look;
            ListAssignments list_assignments(ListAssignmentsRequest) -> ListAssignmentsResponse: Get "/v1/assignments", Viewer Scope Look;
            RetryAssignment retry_assignment(RetryAssignmentRequest) -> Change: Post "/v1/assignments/{name}/retry", Operator Scope Change;
            ListHolds list_holds(ListHoldsRequest) -> ListHoldsResponse: Get "/v1/holds", Viewer Scope Look;
            SetHold set_hold(SetHoldRequest) -> Change: Post "/v1/holds", Operator Fleet Change;
            EndHold end_hold(EndHoldRequest) -> Change: Post "/v1/holds/{name}/end", Operator Scope Change;
            ListWindows list_windows(ListWindowsRequest) -> ListWindowsResponse: Get "/v1/windows", Viewer Scope Look;
            ListGateways list_gateways(ListGatewaysRequest) -> ListGatewaysResponse: Get "/v1/gateways", Viewer Fleet Look;
            ListRollouts list_rollouts(ListRolloutsRequest) -> ListRolloutsResponse: Get "/v1/rollouts", Viewer Scope Look;
            GetRollout get_rollout(GetRolloutRequest) -> Rollout: Get "/v1/rollouts/{name}", Viewer Scope Look;
            ListRolloutHistory list_rollout_history(ListRolloutHistoryRequest) -> ListRolloutHistoryResponse: Get "/v1/rollouts/{name}/history", Viewer Scope Look;
            PreviewRollout preview_rollout(CreateRolloutRequest) -> RolloutPreview: Post "/v1/rollouts/{name}/preview", Viewer Fleet Look;
            CreateRollout create_rollout(CreateRolloutRequest) -> Change: Post "/v1/rollouts", Operator Fleet Change;
            StartRollout start_rollout(SteerRolloutRequest) -> Change: Post "/v1/rollouts/{name}/start", Operator Scope Change;
            PauseRollout pause_rollout(SteerRolloutRequest) -> Change: Post "/v1/rollouts/{name}/pause", Operator Scope Change;
            ResumeRollout resume_rollout(SteerRolloutRequest) -> Change: Post "/v1/rollouts/{name}/resume", Operator Scope Change;
            HaltRollout halt_rollout(SteerRolloutRequest) -> Change: Post "/v1/rollouts/{name}/halt", Operator Scope Change;
            RollBackRollout roll_back_rollout(SteerRolloutRequest) -> Change: Post "/v1/rollouts/{name}/rollback", Operator Scope Change;
            ApproveRollout approve_rollout(SteerRolloutRequest) -> Change: Post "/v1/rollouts/{name}/approve", Approver Scope Change;
            AbortRollout abort_rollout(SteerRolloutRequest) -> Change: Post "/v1/rollouts/{name}/abort", Operator Scope Change;
            ListTokens list_tokens(ListTokensRequest) -> ListTokensResponse: Get "/v1/tokens", Admin Fleet Look;
            CreateToken create_token(CreateTokenRequest) -> NewToken: Post "/v1/tokens", Admin Fleet Intent;
            RevokeToken revoke_token(RevokeTokenRequest) -> Change: Post "/v1/tokens/{name}/revoke", Admin Fleet Intent;
            DiffDeclarations diff_declarations(DiffDeclarationsRequest) -> Change: Post "/v1/declarations/diff", Viewer Fleet Look;
            ApplyDeclarations apply_declarations(ApplyDeclarationsRequest) -> Change: Post "/v1/declarations/apply", Operator Fleet Change;
            ListAudit list_audit(ListAuditRequest) -> ListAuditResponse: Get "/v1/audit", Viewer Fleet Look;
            VerifyAudit verify_audit(VerifyAuditRequest) -> AuditVerdict: Get "/v1/audit/verify", Viewer Fleet Look;
        }
    };
}

with_calls!(table);

pub(super) use with_calls;

// === impl Kind ===

impl Kind {
    /// Its name in metrics: whether it looks or changes something.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Change | Self::Intent => "change",
        }
    }
}

// === impl Rpc ===

impl Rpc {
    /// Its row.
    #[must_use]
    pub fn call(self) -> &'static Call {
        CALLS.iter().find(|call| call.rpc == self).expect("the same macro makes both")
    }
}

impl fmt::Display for Rpc {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.call().name)
    }
}
