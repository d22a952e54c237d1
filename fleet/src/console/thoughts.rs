//! What people think of before they do it: a rollout, declarations, a hold. The page shows what it would do,
//! and has the button that does it.

use axum::Form;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use guest_agent_proto::fleet_api::{
    CreateRolloutRequest, DeclarationFile, DiffDeclarationsRequest, ListAgentsRequest,
    ListAssignmentsRequest, ListReleasesRequest, Role, SetHoldRequest,
};
use jiff::{Timestamp, ToSpan};
use maud::{Markup, html};
use serde::Deserialize;
use tonic::{Code, Status};
use uuid::Uuid;

use super::assignments::{self, Thought};
use super::entry::forged;
use super::frame::{Page, failed, finished, too_little};
use super::holds::{self, REASON_MAX, Selected};
use super::pieces::{one_line, query};
use super::site::{Site, Visitor};
use super::told::reason;

/// Agents that are counted at once, and how often, before it is more.
const COUNTED: (u32, usize) = (500, 20);

/// A rollout that somebody thinks of, as a form.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct RolloutForm {
    csrf: String,
    key: String,
    assignment: String,
    to: String,
    name: String,
    waves: String,
    reason: String,
}

/// A hold that somebody thinks of, as a form.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct HoldForm {
    csrf: String,
    key: String,
    name: String,
    select: String,
    plugins: String,
    hours: String,
    reason: String,
}

/// Declarations that somebody compares.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct TextForm {
    csrf: String,
    text: String,
}

/// Makes a form one of the session, and one that does one thing however often it is sent.
fn signed(visitor: &Visitor) -> Markup {
    html! {
        (visitor.session.field())
        input type="hidden" name="key" value=(Uuid::new_v4());
    }
}

fn page(visitor: &Visitor, title: &str, at: &str, body: Markup) -> Response {
    Page { title, at, visitor: Some(visitor), live: None, body }.respond(StatusCode::OK)
}

/// A mistake of the person is shown beside the form; everything else fails.
fn or_mistake<T>(answer: Result<T, Status>) -> Result<Result<T, String>, Status> {
    match answer {
        Err(status)
            if matches!(
                status.code(),
                Code::InvalidArgument
                    | Code::NotFound
                    | Code::FailedPrecondition
                    | Code::AlreadyExists
            ) =>
        {
            Ok(Err(reason(&status)))
        }
        answer => answer.map(Ok),
    }
}

/// Shows what a rollout would do.
pub(super) async fn preview(
    State(site): State<Site>,
    visitor: Visitor,
    Query(form): Query<RolloutForm>,
) -> Response {
    match previewed(&site, &visitor, &form).await {
        Ok(body) => page(&visitor, "Preview of a rollout", "/console/assignments", body),
        Err(status) => failed(&visitor, &status),
    }
}

async fn previewed(site: &Site, visitor: &Visitor, form: &RolloutForm) -> Result<Markup, Status> {
    let (calls, who) = (&site.source.calls, &visitor.who);
    let assignments = calls.list_assignments(who, ListAssignmentsRequest {}).await?.assignments;
    let assignment = assignments.into_iter().find(|one| one.name == form.assignment);
    let plugin = assignment.map(|one| one.plugin).unwrap_or_default();
    let mut releases = calls.list_releases(who, ListReleasesRequest {}).await?.releases;
    releases.retain(|release| release.plugin == plugin);
    let revisions: Vec<String> = releases.into_iter().map(|release| release.revision).collect();
    let thought = form.thought();
    let is_whole = ![&form.assignment, &form.to, &form.name].iter().any(|it| it.is_empty());
    let preview = match is_whole {
        true => Some(or_mistake(calls.preview_rollout(who, form.request()).await)?),
        false => None,
    };
    let tools = (&visitor.may(), &signed(visitor));
    Ok(assignments::preview(&thought, &revisions, preview.as_ref(), tools))
}

/// Begins a rollout.
pub(super) async fn begin(
    State(site): State<Site>,
    visitor: Visitor,
    Form(form): Form<RolloutForm>,
) -> Response {
    if !visitor.session.has_sent(&form.csrf) {
        return forged();
    }
    if !visitor.may().act_as(Role::Operator) {
        return too_little(&visitor, Role::Operator);
    }
    let done = site.source.calls.create_rollout(&visitor.who, form.request()).await;
    let to = format!("/console/rollout{}", query(&[("of", &form.name), ("done", "start")]));
    finished(&visitor, done, &to)
}

/// Asks for declarations.
pub(super) async fn ask_for_text(visitor: Visitor) -> Response {
    let body = assignments::diff("", None, &signed(&visitor));
    page(&visitor, "Compare declarations", "/console/assignments", body)
}

/// Shows what declarations would change.
pub(super) async fn diff(
    State(site): State<Site>,
    visitor: Visitor,
    Form(form): Form<TextForm>,
) -> Response {
    if !visitor.session.has_sent(&form.csrf) {
        return forged();
    }
    let file = DeclarationFile { name: "pasted.toml".to_owned(), content: form.text.clone() };
    let request = DiffDeclarationsRequest { files: vec![file] };
    match or_mistake(site.source.calls.diff_declarations(&visitor.who, request).await) {
        Ok(found) => {
            let body = assignments::diff(&form.text, Some(&found), &signed(&visitor));
            page(&visitor, "Compare declarations", "/console/assignments", body)
        }
        Err(status) => failed(&visitor, &status),
    }
}

/// Asks what is to be held, and says whom that would touch.
pub(super) async fn ask_to_hold(
    State(site): State<Site>,
    visitor: Visitor,
    Query(form): Query<HoldForm>,
) -> Response {
    if !visitor.may().act_as(Role::Operator) {
        return too_little(&visitor, Role::Operator);
    }
    let found = match form.select.trim() {
        "" => None,
        select => match or_mistake(selected(&site, &visitor, select).await) {
            Ok(found) => Some(found),
            Err(status) => return failed(&visitor, &status),
        },
    };
    let body = holds::ask(&form.thought(), found.as_ref(), &signed(&visitor));
    page(&visitor, "Hold", "/console/holds", body)
}

/// Holds.
pub(super) async fn hold(
    State(site): State<Site>,
    visitor: Visitor,
    Form(form): Form<HoldForm>,
) -> Response {
    if !visitor.session.has_sent(&form.csrf) {
        return forged();
    }
    if !visitor.may().act_as(Role::Operator) {
        return too_little(&visitor, Role::Operator);
    }
    let thought = form.thought();
    let until = thought.hours().and_then(|hours| Timestamp::now().checked_add(hours.hours()).ok());
    let request = SetHoldRequest {
        name: thought.name.clone(),
        select: thought.select.clone(),
        own_labels: false,
        plugins: thought.plugins(),
        until: until.map(|at| prost_types::Timestamp { seconds: at.as_second(), nanos: 0 }),
        reason: thought.reason.clone(),
        idempotency_key: form.key,
    };
    let done = site.source.calls.set_hold(&visitor.who, request).await;
    finished(&visitor, done, "/console/holds?done=hold")
}

/// Counts whom a selector selects.
pub(super) async fn selected(
    site: &Site,
    visitor: &Visitor,
    select: &str,
) -> Result<Selected, Status> {
    let (page_size, pages) = COUNTED;
    let mut selected = Selected { agents: 0, and_more: true };
    let mut cursor = String::new();
    for _ in 0..pages {
        let request = ListAgentsRequest {
            selector: select.to_owned(),
            cursor,
            page_size,
            ..ListAgentsRequest::default()
        };
        let found = site.source.calls.list_agents(&visitor.who, request).await?;
        let count = u64::try_from(found.agents.len()).unwrap_or(u64::MAX);
        selected.agents = selected.agents.saturating_add(count);
        match found.next {
            Some(next) => cursor = next,
            None => return Ok(Selected { and_more: false, ..selected }),
        }
    }
    Ok(selected)
}

// === impl RolloutForm ===

impl RolloutForm {
    fn thought(&self) -> Thought {
        Thought {
            assignment: self.assignment.clone(),
            to: self.to.trim().to_owned(),
            name: self.name.trim().to_owned(),
            waves: self.waves.clone(),
        }
    }

    fn request(&self) -> CreateRolloutRequest {
        let thought = self.thought();
        CreateRolloutRequest {
            waves: thought.waves(),
            name: thought.name,
            assignment: thought.assignment,
            to: thought.to,
            reason: short(&self.reason),
            idempotency_key: self.key.clone(),
            ..CreateRolloutRequest::default()
        }
    }
}

// === impl HoldForm ===

impl HoldForm {
    fn thought(&self) -> holds::Thought {
        holds::Thought {
            name: self.name.trim().to_owned(),
            select: self.select.trim().to_owned(),
            plugins: self.plugins.clone(),
            hours: self.hours.clone(),
            reason: short(&self.reason),
        }
    }
}

fn short(reason: &str) -> String {
    one_line(reason).chars().take(REASON_MAX).collect()
}
