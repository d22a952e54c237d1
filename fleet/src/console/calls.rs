//! What the console asks: calls of the fleet's API, each in the name of the visitor, and nothing else.

use async_trait::async_trait;
use guest_agent_proto::fleet_api::{
    ActOnAgentRequest, AuditVerdict, Caller, Change, CreateRolloutRequest, DiffDeclarationsRequest,
    EndHoldRequest, GetAgentRequest, GetCallerRequest, GetRolloutRequest, GetStatusRequest,
    ListAgentsRequest, ListAgentsResponse, ListAssignmentsRequest, ListAssignmentsResponse,
    ListAuditRequest, ListAuditResponse, ListEventsRequest, ListEventsResponse,
    ListGatewaysRequest, ListGatewaysResponse, ListHoldsRequest, ListHoldsResponse,
    ListReleasesRequest, ListReleasesResponse, ListRolloutHistoryRequest,
    ListRolloutHistoryResponse, ListRolloutsRequest, ListRolloutsResponse, ListTokensRequest,
    ListTokensResponse, ListWindowsRequest, ListWindowsResponse, RetryAssignmentRequest,
    RevokeTokenRequest, Rollout, RolloutPreview, SetHoldRequest, Status as Counts,
    SteerRolloutRequest, VerifyAuditRequest, WholeAgent,
};
use tonic::Status;

use crate::api::Api;
use crate::api::calls::Rpc;
use crate::identity::Principal;

/// All calls that the console makes: each with its name in the API, what it takes and what it answers.
macro_rules! table {
    ($with:ident) => {
        $with! {
            get_caller: GetCaller(GetCallerRequest) => Caller;
            get_status: GetStatus(GetStatusRequest) => Counts;
            list_agents: ListAgents(ListAgentsRequest) => ListAgentsResponse;
            get_agent: GetAgent(GetAgentRequest) => WholeAgent;
            list_events: ListEvents(ListEventsRequest) => ListEventsResponse;
            archive_agent: ArchiveAgent(ActOnAgentRequest) => Change;
            unarchive_agent: UnarchiveAgent(ActOnAgentRequest) => Change;
            revoke_agent: RevokeAgent(ActOnAgentRequest) => Change;
            release_agent: ReleaseAgent(ActOnAgentRequest) => Change;
            list_releases: ListReleases(ListReleasesRequest) => ListReleasesResponse;
            list_assignments: ListAssignments(ListAssignmentsRequest) => ListAssignmentsResponse;
            retry_assignment: RetryAssignment(RetryAssignmentRequest) => Change;
            list_holds: ListHolds(ListHoldsRequest) => ListHoldsResponse;
            set_hold: SetHold(SetHoldRequest) => Change;
            end_hold: EndHold(EndHoldRequest) => Change;
            list_windows: ListWindows(ListWindowsRequest) => ListWindowsResponse;
            list_gateways: ListGateways(ListGatewaysRequest) => ListGatewaysResponse;
            list_rollouts: ListRollouts(ListRolloutsRequest) => ListRolloutsResponse;
            get_rollout: GetRollout(GetRolloutRequest) => Rollout;
            list_rollout_history: ListRolloutHistory(ListRolloutHistoryRequest) => ListRolloutHistoryResponse;
            preview_rollout: PreviewRollout(CreateRolloutRequest) => RolloutPreview;
            create_rollout: CreateRollout(CreateRolloutRequest) => Change;
            start_rollout: StartRollout(SteerRolloutRequest) => Change;
            pause_rollout: PauseRollout(SteerRolloutRequest) => Change;
            resume_rollout: ResumeRollout(SteerRolloutRequest) => Change;
            halt_rollout: HaltRollout(SteerRolloutRequest) => Change;
            roll_back_rollout: RollBackRollout(SteerRolloutRequest) => Change;
            approve_rollout: ApproveRollout(SteerRolloutRequest) => Change;
            abort_rollout: AbortRollout(SteerRolloutRequest) => Change;
            list_tokens: ListTokens(ListTokensRequest) => ListTokensResponse;
            revoke_token: RevokeToken(RevokeTokenRequest) => Change;
            diff_declarations: DiffDeclarations(DiffDeclarationsRequest) => Change;
            list_audit: ListAudit(ListAuditRequest) => ListAuditResponse;
            verify_audit: VerifyAudit(VerifyAuditRequest) => AuditVerdict;
        }
    };
}

/// Makes the trait of the calls, and has the API make them.
macro_rules! calls {
    ($($name:ident: $rpc:ident($request:ty) => $answer:ty;)*) => {
        /// The calls that the console makes.
        #[async_trait]
        pub trait Calls: Send + Sync + 'static {
            $(
                /// The call of this name, in the name of a person.
                async fn $name(&self, who: &Principal, request: $request) -> Result<$answer, Status>;
            )*
        }

        #[async_trait]
        impl Calls for Api {
            $(
                async fn $name(&self, who: &Principal, request: $request) -> Result<$answer, Status> {
                    Ok(self.ask(who, Rpc::$rpc, &request).await?)
                }
            )*
        }
    };
}

table!(calls);

#[cfg(test)]
pub(super) use table;
