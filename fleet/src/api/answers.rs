//! What each call answers: its request as what a verb of the command line takes, and the document of that verb.

use std::time::Duration;

use guest_agent_proto::fleet_api as pb;
use guest_fleet_core::rollout::Verb as Asked;
use guest_fleet_core::selector::Selector;
use jiff::Timestamp;

use super::caller::CallerJson;
use super::error::ApiError;
use super::events::{self, EventsJson};
use crate::cli::agents::{AgentsJson, WholeAgentJson};
use crate::cli::apply;
use crate::cli::audit::{EntriesJson, Head, ListOptions, VerdictJson};
use crate::cli::context::Context;
use crate::cli::document::ChangeJson;
use crate::cli::explain::ExplanationJson;
use crate::cli::failure::{Failure, Field};
use crate::cli::gateways::GatewaysJson;
use crate::cli::lists::{AssignmentsJson, HoldsJson, ReleasesJson, WindowsJson};
use crate::cli::rollout::create::CreateOptions;
use crate::cli::rollout::steer::SteerOptions;
use crate::cli::rollout::{
    HistoryOptions, PreviewJson, RolloutJson, RolloutsJson, create, preview, show, steer,
};
use crate::cli::sees::unknown;
use crate::cli::standing::State;
use crate::cli::status::StatusJson;
use crate::cli::token::{TokenJson, TokensJson};
use crate::cli::{
    agents, archive, audit, explain, gateways, hold, identity, label, lists, retry, status, token,
};
use crate::configuration::Configuration;
use crate::configuration::change::ChangeError;
use crate::declarations::difference::{Undeclared, difference};
use crate::declarations::files::Sources;
use crate::declarations::problem::Problems;
use crate::declarations::set::Declarations;
use crate::enroll::AgentId;
use crate::identity::Principal;
use crate::ledger::bounds;

/// Agents of a page, and events of a list, where the request says nothing.
const PAGE: u32 = 50;
/// Most of them.
const PAGE_MAX: u32 = 500;
/// Entries of the audit record where the request says nothing.
const ENTRIES: u32 = 20;
/// Longest text of a request that is no file, in bytes.
const TEXT_BYTES: usize = 8 << 10;

type Answer<T> = Result<T, ApiError>;
type Look<'a, 'b> = &'a mut Context<'b>;

/// A size of a page within its bounds.
fn size(asked: u32, usual: u32, most: u32) -> u32 {
    if asked == 0 { usual } else { asked.min(most) }
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// A text that is no longer than texts may be.
fn short(name: &str, text: String) -> Answer<String> {
    if text.len() > TEXT_BYTES {
        let problem = format!("it has more than {TEXT_BYTES} bytes");
        return Err(ApiError::field(name, problem, "write less"));
    }
    Ok(text)
}

/// The id of an agent that may have come without an enrolment. What cannot be an id is the id of nobody.
fn known_as(id: &str) -> Answer<&str> {
    let is_key = !id.is_empty() && id.len() <= bounds::KEY_BYTES;
    if is_key { Ok(id) } else { Err(unknown(&id.chars().take(64).collect::<String>()).into()) }
}

/// The id of an agent that has an identity of the fleet.
fn enrolled_as(id: &str) -> Answer<AgentId> {
    known_as(id)?.parse().map_err(|_| ApiError::from(unknown(id)))
}

macro_rules! documents {
    ($($name:ident($request:ident) -> $document:ty = |$context:ident| $answer:expr;)*) => {
        $(pub(super) async fn $name(
            _: &Principal,
            $context: Look<'_, '_>,
            _: pb::$request,
        ) -> Answer<$document> {
            Ok($answer.await?)
        })*
    };
}

documents! {
    get_status(GetStatusRequest) -> StatusJson = |context| status::answer(context);
    list_releases(ListReleasesRequest) -> ReleasesJson = |context| lists::all_releases(context);
    list_assignments(ListAssignmentsRequest) -> AssignmentsJson = |context| lists::all_assignments(context);
    list_holds(ListHoldsRequest) -> HoldsJson = |context| lists::all_holds(context);
    list_windows(ListWindowsRequest) -> WindowsJson = |context| lists::all_windows(context);
    list_gateways(ListGatewaysRequest) -> GatewaysJson = |context| gateways::answer(context);
    list_rollouts(ListRolloutsRequest) -> RolloutsJson = |context| show::all(context);
    list_tokens(ListTokensRequest) -> TokensJson = |context| token::all(context);
}

pub(super) async fn get_caller(
    principal: &Principal,
    _: Look<'_, '_>,
    _: pb::GetCallerRequest,
) -> Answer<CallerJson> {
    Ok(principal.into())
}

pub(super) async fn list_agents(
    _: &Principal,
    context: Look<'_, '_>,
    request: pb::ListAgentsRequest,
) -> Answer<AgentsJson> {
    let state = match request.state() {
        pb::Standing::Unspecified if request.state != 0 => {
            return Err(ApiError::field(
                "state",
                "there is no such state",
                "use a value of Standing",
            ));
        }
        pb::Standing::Unspecified => None,
        standing => Some(state(standing)),
    };
    let selector = some(request.selector).map(|text| Selector::parse(&text)).transpose();
    let selector = selector.map_err(|error| {
        let fix = "write one such as `env = prod and zone in (eu-1, eu-2)`, or `all`";
        ApiError::field("selector", error.to_string(), fix)
    })?;
    let options = agents::Options {
        selector,
        select: None,
        archived: request.archived,
        plugin: some(request.plugin),
        state,
        after: some(short("cursor", request.cursor)?),
        scan: false,
        limit: size(request.page_size, PAGE, PAGE_MAX),
    };
    Ok(agents::answer(&options, context).await?)
}

fn state(standing: pb::Standing) -> State {
    match standing {
        pb::Standing::Unspecified | pb::Standing::NotAssigned => State::NotAssigned,
        pb::Standing::Archived => State::Archived,
        pb::Standing::Quarantined => State::Quarantined,
        pb::Standing::Conflict => State::Conflict,
        pb::Standing::NoRelease => State::NoRelease,
        pb::Standing::NoArchive => State::NoArchive,
        pb::Standing::Held => State::Held,
        pb::Standing::HeldByOwner => State::HeldByOwner,
        pb::Standing::OutsideWindow => State::OutsideWindow,
        pb::Standing::WaitsForWave => State::WaitsForWave,
        pb::Standing::Waits => State::Waits,
        pb::Standing::Ordered => State::Ordered,
        pb::Standing::Acknowledged => State::Acknowledged,
        pb::Standing::Installing => State::Installing,
        pb::Standing::OnProbation => State::OnProbation,
        pb::Standing::Done => State::Done,
        pb::Standing::Failed => State::Failed,
        pb::Standing::TakenBack => State::TakenBack,
        pb::Standing::Silent => State::Silent,
    }
}

pub(super) async fn get_agent(
    _: &Principal,
    context: Look<'_, '_>,
    request: pb::GetAgentRequest,
) -> Answer<WholeAgentJson> {
    Ok(agents::whole(known_as(&request.id)?, context).await?)
}

pub(super) async fn list_events(
    _: &Principal,
    context: Look<'_, '_>,
    request: pb::ListEventsRequest,
) -> Answer<EventsJson> {
    let limit = size(request.limit, PAGE, PAGE_MAX);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let plugin = short("plugin", request.plugin)?;
    Ok(events::newest(context, known_as(&request.id)?, &plugin, limit).await?)
}

pub(super) async fn explain(
    _: &Principal,
    context: Look<'_, '_>,
    request: pb::ExplainRequest,
) -> Answer<ExplanationJson> {
    let agent = known_as(&request.agent)?.to_owned();
    let options = explain::Options { agent, plugin: short("plugin", request.plugin)? };
    Ok(explain::answer(&options, context).await?)
}

/// What should become of a label, as the command line writes it.
fn wish(field: &str, key: &str, written: String) -> Answer<label::Wish> {
    let fix = "use letters, digits and `._/:-`";
    // It would end the key where it is written.
    if key.contains('=') {
        return Err(ApiError::field(field, "a key has no `=`", fix));
    }
    written.parse().map_err(|problem: String| ApiError::field(field, problem, fix))
}

pub(super) async fn label_agent(
    _: &Principal,
    context: Look<'_, '_>,
    request: pb::LabelAgentRequest,
) -> Answer<ChangeJson> {
    let set = request.set.iter().map(|(key, value)| wish("set", key, format!("{key}={value}")));
    let remove = request.remove.iter().map(|key| wish("remove", key, format!("{key}-")));
    let options = label::Options {
        id: known_as(&request.id)?.to_owned(),
        labels: set.chain(remove).collect::<Result<_, _>>()?,
        reason: short("reason", request.reason)?,
    };
    Ok(label::set(&options, context).await?)
}

macro_rules! about_agents {
    ($($name:ident = $verb:path;)*) => {
        $(pub(super) async fn $name(
            _: &Principal,
            context: Look<'_, '_>,
            request: pb::ActOnAgentRequest,
        ) -> Answer<ChangeJson> {
            let id = enrolled_as(&request.id)?;
            let options = identity::Options { id, reason: short("reason", request.reason)? };
            Ok($verb(&options, context).await?)
        })*
    };
}

about_agents! {
    archive_agent = archive::archived;
    unarchive_agent = archive::unarchived;
    revoke_agent = identity::revoked;
    release_agent = identity::released;
}

pub(super) async fn retry_assignment(
    _: &Principal,
    context: Look<'_, '_>,
    request: pb::RetryAssignmentRequest,
) -> Answer<ChangeJson> {
    let reason = short("reason", request.reason)?;
    let options = retry::Options { assignment: short("name", request.name)?, reason };
    Ok(retry::raise(&options, context).await?)
}

pub(super) async fn set_hold(
    _: &Principal,
    context: Look<'_, '_>,
    request: pb::SetHoldRequest,
) -> Answer<ChangeJson> {
    let until = request.until.map(|until| Timestamp::new(until.seconds, until.nanos));
    let until = until.transpose().map_err(|error| {
        ApiError::field("until", error.to_string(), "give a time such as 2030-01-31T12:00:00Z")
    })?;
    let options = hold::HoldOptions {
        name: request.name,
        select: request.select,
        own_labels: request.own_labels,
        plugins: request.plugins,
        reason: request.reason,
        until,
        r#for: None,
    };
    Ok(hold::set(&options, context).await?)
}

pub(super) async fn end_hold(
    _: &Principal,
    context: Look<'_, '_>,
    request: pb::EndHoldRequest,
) -> Answer<ChangeJson> {
    let reason = short("reason", request.reason)?;
    let options = hold::ReleaseOptions { name: short("name", request.name)?, reason };
    let (mut changed, is_by_hand) = hold::end(&options, context).await?;
    if !is_by_hand {
        changed.notes.push(hold::set_again(&options.name));
    }
    Ok(changed)
}

pub(super) async fn get_rollout(
    _: &Principal,
    context: Look<'_, '_>,
    request: pb::GetRolloutRequest,
) -> Answer<RolloutJson> {
    Ok(show::one(&short("name", request.name)?, context).await?)
}

pub(super) async fn list_rollout_history(
    _: &Principal,
    context: Look<'_, '_>,
    request: pb::ListRolloutHistoryRequest,
) -> Answer<EntriesJson> {
    let limit = size(request.limit, 1000, 10_000);
    let options = HistoryOptions { name: short("name", request.name)?, limit };
    Ok(show::moves(&options, context).await?)
}

fn create_options(request: pb::CreateRolloutRequest) -> Answer<CreateOptions> {
    /// The usual time for which a wave is watched.
    const SOAK: Duration = Duration::from_secs(600);
    let waves = request.waves.iter().map(|wave| {
        let fix = "write 5, 10% or ring=canary, with `,soak=30m` and `,approve`";
        wave.parse().map_err(|problem: String| ApiError::field("waves", problem, fix))
    });
    let soak = Duration::from_secs(request.soak_seconds);
    if request.budget > create::BUDGET_MAX {
        let problem = format!("it is above {}", create::BUDGET_MAX);
        return Err(ApiError::field("budget", problem, "give a smaller number"));
    }
    Ok(CreateOptions {
        waves: waves.collect::<Result<_, _>>()?,
        name: request.name,
        assignment: short("assignment", request.assignment)?,
        to: short("to", request.to)?,
        soak: if soak.is_zero() { SOAK } else { soak },
        budget: (request.budget > 0).then_some(request.budget),
        four_eyes: false,
        draft: request.draft,
        replace: request.replace,
        reason: short("reason", request.reason)?,
    })
}

pub(super) async fn preview_rollout(
    _: &Principal,
    context: Look<'_, '_>,
    request: pb::CreateRolloutRequest,
) -> Answer<PreviewJson> {
    Ok(preview::answer(&create_options(request)?, context).await?)
}

pub(super) async fn create_rollout(
    _: &Principal,
    context: Look<'_, '_>,
    request: pb::CreateRolloutRequest,
) -> Answer<ChangeJson> {
    let options = create_options(request)?;
    let mut changed = create::create(&options, context).await?;
    changed.notes.push(create::what_now(&options));
    Ok(changed)
}

macro_rules! steering {
    ($($name:ident = |$reason:ident| $asked:expr;)*) => {
        $(pub(super) async fn $name(
            _: &Principal,
            context: Look<'_, '_>,
            request: pb::SteerRolloutRequest,
        ) -> Answer<ChangeJson> {
            let $reason = short("reason", request.reason)?;
            let options =
                SteerOptions { name: short("name", request.name)?, reason: $reason.clone() };
            Ok(steer::steer(&options, $asked, context).await?)
        })*
    };
}

steering! {
    start_rollout = |reason| Asked::Start;
    pause_rollout = |reason| Asked::Pause;
    resume_rollout = |reason| Asked::Resume { reason };
    halt_rollout = |reason| Asked::Halt { reason };
    roll_back_rollout = |reason| Asked::RollBack;
    approve_rollout = |reason| Asked::Approve;
    abort_rollout = |reason| Asked::Abort;
}

pub(super) async fn create_token(
    _: &Principal,
    context: Look<'_, '_>,
    request: pb::CreateTokenRequest,
) -> Answer<TokenJson> {
    /// The usual life of a token.
    const LIFE: Duration = Duration::from_secs(24 * 3600);
    let labels =
        request.labels.iter().map(|(key, value)| wish("labels", key, format!("{key}={value}")));
    let life = Duration::from_secs(request.expires_seconds);
    let agent = some(request.agent).map(|id| {
        id.parse()
            .map_err(|_| ApiError::field("agent", "it is no id of an agent", "see ListAgents"))
    });
    let options = token::Create {
        labels: labels.collect::<Result<_, _>>()?,
        name: request.name,
        uses: request.uses.max(1),
        expires: if life.is_zero() { LIFE } else { life },
        ephemeral: request.ephemeral,
        agent: agent.transpose()?,
        reason: short("reason", request.reason)?,
    };
    Ok(token::make(&options, context).await?)
}

pub(super) async fn revoke_token(
    _: &Principal,
    context: Look<'_, '_>,
    request: pb::RevokeTokenRequest,
) -> Answer<ChangeJson> {
    let reason = short("reason", request.reason)?;
    let options = token::Revoke { name: short("name", request.name)?, reason };
    Ok(token::end(&options, context).await?)
}

/// The declarations of files, and what was passed over.
fn declared(files: Vec<pb::DeclarationFile>) -> Answer<(Declarations, Vec<String>)> {
    let files = files.into_iter().map(|file| (file.name, file.content.into_bytes()));
    let sources = Sources::of_texts(files).map_err(|error| {
        ApiError::field("files", error.to_string(), "send files of declarations")
    })?;
    let read = Declarations::parse(&sources).map_err(refused)?;
    Ok((read, sources.notes))
}

/// The problems of declarations, each as that of a file.
fn refused(problems: Problems) -> ApiError {
    let mut error = ApiError::unread(problems.to_string());
    error.fields = problems
        .0
        .iter()
        .map(|problem| Field {
            name: "files".to_owned(),
            problem: problem.to_string(),
            fix: problem.fix.clone(),
        })
        .collect();
    error.fix = "correct the files".to_owned();
    error
}

pub(super) async fn diff_declarations(
    _: &Principal,
    context: Look<'_, '_>,
    request: pb::DiffDeclarationsRequest,
) -> Answer<ChangeJson> {
    let (declared, notes) = declared(request.files)?;
    would(&declared, notes, Undeclared::Keep, context).await
}

/// What applying would change.
async fn would(
    declared: &Declarations,
    notes: Vec<String>,
    mode: Undeclared,
    context: Look<'_, '_>,
) -> Answer<ChangeJson> {
    let ledger = Configuration::load(context.ledger).await.map_err(Failure::from)?;
    let found = difference(declared, &ledger, &context.caller.who, mode).map_err(refused)?;
    Ok(apply::document(&found, mode, notes, None, true))
}

pub(super) async fn apply_declarations(
    _: &Principal,
    context: Look<'_, '_>,
    request: pb::ApplyDeclarationsRequest,
) -> Answer<ChangeJson> {
    let (declared, notes) = declared(request.files)?;
    if request.prune && declared.is_empty() {
        let problem = "they declare nothing, so `prune` would delete everything";
        return Err(ApiError::field("files", problem, "delete everything in several steps"));
    }
    let mode = if request.prune { Undeclared::Delete } else { Undeclared::Keep };
    if request.dry_run {
        return would(&declared, notes, mode, context).await;
    }
    let reason = short("reason", request.reason)?;
    match apply::write(context, &declared, mode, &reason).await {
        Ok(changed) => Ok(apply::document(&changed.answer, mode, notes, changed.entry, false)),
        Err(ChangeError::Refused(problems)) => Err(refused(problems)),
        Err(error) => Err(Failure::from(error).into()),
    }
}

pub(super) async fn list_audit(
    _: &Principal,
    context: Look<'_, '_>,
    request: pb::ListAuditRequest,
) -> Answer<EntriesJson> {
    let limit = size(request.limit, ENTRIES, PAGE_MAX);
    let before = (request.before > 0).then_some(request.before);
    Ok(audit::page(&ListOptions { limit }, before, context).await?)
}

pub(super) async fn verify_audit(
    _: &Principal,
    context: Look<'_, '_>,
    request: pb::VerifyAuditRequest,
) -> Answer<VerdictJson> {
    let against = some(request.against).map(|head| {
        head.parse().map_err(|problem: String| {
            ApiError::field("against", problem, "give the `head` of an earlier check")
        })
    });
    let against: Vec<Head> = against.transpose()?.into_iter().collect();
    Ok(audit::check(&against, context).await?)
}
