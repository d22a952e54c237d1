//! Carries out what people do: first a page that says what will happen to how many machines, then a form of
//! that page.

use axum::Form;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use guest_agent_proto::fleet_api::{
    ActOnAgentRequest, EndHoldRequest, GetRolloutRequest, Hold, ListAssignmentsRequest,
    ListHoldsRequest, RetryAssignmentRequest, RevokeTokenRequest, Rollout, Standing,
    SteerRolloutRequest,
};
use maud::{Markup, html};
use serde::Deserialize;
use tonic::Status;
use uuid::Uuid;

use super::deed::Deed;
use super::entry::forged;
use super::frame::{Page, failed, finished, notice, too_little};
use super::pieces::{by_hand, one_line, page_of, query, shell};
use super::site::{Site, Visitor};
use super::steer::Steer;
use super::thoughts::selected;
use super::topic::Asked;
use super::waves::Reach;

/// Longest reason that is taken, in characters.
const REASON_MAX: usize = 200;

/// The form of a page that asks.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Answer {
    csrf: String,
    /// Names the request, so that a form that is sent twice does one thing.
    key: String,
    reason: String,
    /// What the page said how it was.
    seen: String,
}

/// What a page asks.
struct Question<'a> {
    /// The title.
    title: String,
    /// How many machines it touches, as a sentence.
    touches: String,
    /// What will happen.
    means: Vec<String>,
    /// What is wrong with the answer before, if there was one.
    remark: Option<&'a str>,
    /// Where the form goes.
    action: String,
    /// What the button says.
    button: String,
    is_dangerous: bool,
    needs_reason: bool,
    /// What the page shows, to be compared when it is answered.
    seen: String,
    /// The page before.
    back: String,
    /// The command that does the same.
    command: String,
}

/// Asks whether a rollout is to be steered so.
pub(super) async fn ask_to_steer(
    State(site): State<Site>,
    visitor: Visitor,
    Path(verb): Path<String>,
    Query(asked): Query<Asked>,
) -> Response {
    let Some(steer) = Steer::named(&verb) else { return unknown(&visitor) };
    if !visitor.may().act_as(steer.role()) {
        return too_little(&visitor, steer.role());
    }
    let request = GetRolloutRequest { name: asked.of.clone() };
    match site.source.calls.get_rollout(&visitor.who, request).await {
        Ok(rollout) => steering(steer, &rollout, None).shown(&visitor, StatusCode::OK),
        Err(status) => failed(&visitor, &status),
    }
}

/// Steers a rollout.
pub(super) async fn steer(
    State(site): State<Site>,
    visitor: Visitor,
    Path(verb): Path<String>,
    Query(asked): Query<Asked>,
    Form(answer): Form<Answer>,
) -> Response {
    if !visitor.session.has_sent(&answer.csrf) {
        return forged();
    }
    let Some(steer) = Steer::named(&verb) else { return unknown(&visitor) };
    if !visitor.may().act_as(steer.role()) {
        return too_little(&visitor, steer.role());
    }
    let (calls, who) = (&site.source.calls, &visitor.who);
    let rollout = match calls.get_rollout(who, GetRolloutRequest { name: asked.of.clone() }).await {
        Ok(rollout) => rollout,
        Err(status) => return failed(&visitor, &status),
    };
    // What was agreed to may be another wave by now.
    if answer.seen != seen(&rollout) {
        let remark = "The rollout has moved since this page was made. This is how it is now.";
        let question = steering(steer, &rollout, Some(remark));
        return question.shown(&visitor, StatusCode::CONFLICT);
    }
    let request = SteerRolloutRequest {
        name: rollout.name.clone(),
        reason: reason(&answer),
        idempotency_key: answer.key,
    };
    let done = match steer {
        Steer::Start => calls.start_rollout(who, request).await,
        Steer::Approve => calls.approve_rollout(who, request).await,
        Steer::Pause => calls.pause_rollout(who, request).await,
        Steer::Resume => calls.resume_rollout(who, request).await,
        Steer::Halt => calls.halt_rollout(who, request).await,
        Steer::RollBack => calls.roll_back_rollout(who, request).await,
        Steer::Abort => calls.abort_rollout(who, request).await,
    };
    let back = query(&[("of", &rollout.name), ("done", steer.word())]);
    finished(&visitor, done, &format!("/console/rollout{back}"))
}

/// What of a rollout has to be the same when an answer comes.
fn seen(rollout: &Rollout) -> String {
    format!("{} {} {}", rollout.name, rollout.state, rollout.wave)
}

fn steering<'a>(steer: Steer, rollout: &Rollout, remark: Option<&'a str>) -> Question<'a> {
    let name = one_line(&rollout.name);
    Question {
        title: format!("{}: {name}?", steer.name()),
        touches: steer.reach(rollout).sentence(),
        means: steer.means(rollout),
        remark,
        action: format!("/console/rollout/{}{}", steer.word(), query(&[("of", &rollout.name)])),
        button: steer.name().to_owned(),
        is_dangerous: steer.is_dangerous(),
        needs_reason: steer.needs_reason(rollout),
        seen: seen(rollout),
        back: page_of("rollout", &rollout.name),
        command: format!("guest-fleet rollout {} {}", steer.word(), shell(&rollout.name)),
    }
}

/// Asks whether something is to be done.
pub(super) async fn ask(
    State(site): State<Site>,
    visitor: Visitor,
    Path(deed): Path<String>,
    Query(asked): Query<Asked>,
) -> Response {
    let Some(deed) = Deed::named(&deed) else { return unknown(&visitor) };
    if !visitor.may().act_as(deed.role()) {
        return too_little(&visitor, deed.role());
    }
    match touched(&site, &visitor, deed, &asked.of).await {
        Ok(reach) => {
            let question = Question {
                title: format!("{}: {}?", deed.name(), one_line(&asked.of)),
                touches: reach.sentence(),
                means: deed.means(&asked.of),
                remark: None,
                action: deed.address(&asked.of),
                button: deed.name().to_owned(),
                is_dangerous: deed.is_dangerous(),
                needs_reason: false,
                seen: String::new(),
                back: deed.back(&asked.of),
                command: deed.command(&asked.of),
            };
            question.shown(&visitor, StatusCode::OK)
        }
        Err(status) => failed(&visitor, &status),
    }
}

/// Does it.
pub(super) async fn act(
    State(site): State<Site>,
    visitor: Visitor,
    Path(deed): Path<String>,
    Query(asked): Query<Asked>,
    Form(answer): Form<Answer>,
) -> Response {
    if !visitor.session.has_sent(&answer.csrf) {
        return forged();
    }
    let Some(deed) = Deed::named(&deed) else { return unknown(&visitor) };
    if !visitor.may().act_as(deed.role()) {
        return too_little(&visitor, deed.role());
    }
    let (calls, who) = (&site.source.calls, &visitor.who);
    let (of, reason, idempotency_key) = (asked.of.clone(), reason(&answer), answer.key);
    let agent = |id| ActOnAgentRequest {
        id,
        reason: reason.clone(),
        idempotency_key: idempotency_key.clone(),
    };
    let done = match deed {
        Deed::Archive => calls.archive_agent(who, agent(of)).await,
        Deed::Unarchive => calls.unarchive_agent(who, agent(of)).await,
        Deed::ReleaseAgent => calls.release_agent(who, agent(of)).await,
        Deed::RevokeAgent => calls.revoke_agent(who, agent(of)).await,
        Deed::EndHold => {
            let request = EndHoldRequest { name: of, reason, idempotency_key };
            calls.end_hold(who, request).await
        }
        Deed::Retry => {
            let request = RetryAssignmentRequest { name: of, reason, idempotency_key };
            calls.retry_assignment(who, request).await
        }
        Deed::RevokeToken => {
            let request = RevokeTokenRequest { name: of, reason, idempotency_key };
            calls.revoke_token(who, request).await
        }
    };
    let back = deed.back(&asked.of);
    let sign = if back.contains('?') { '&' } else { '?' };
    finished(&visitor, done, &format!("{back}{sign}done={}", deed.word()))
}

/// How many machines something touches.
async fn touched(site: &Site, visitor: &Visitor, deed: Deed, of: &str) -> Result<Reach, Status> {
    let (calls, who) = (&site.source.calls, &visitor.who);
    Ok(match deed {
        Deed::Archive | Deed::Unarchive | Deed::ReleaseAgent | Deed::RevokeAgent => {
            Reach::Exactly(1)
        }
        Deed::RevokeToken => Reach::Exactly(0),
        Deed::EndHold => {
            let holds = calls.list_holds(who, ListHoldsRequest {}).await?.holds;
            let hold = holds.into_iter().find(|hold| hold.name == of);
            let Hold { select, .. } =
                hold.ok_or_else(|| Status::not_found("there is no hold of this name"))?;
            let selected = selected(site, visitor, &select).await?;
            if selected.and_more { Reach::Unknown } else { Reach::AtMost(selected.agents) }
        }
        Deed::Retry => {
            let found = calls.list_assignments(who, ListAssignmentsRequest {}).await?.assignments;
            let found = found.into_iter().find(|one| one.name == of);
            let found =
                found.ok_or_else(|| Status::not_found("there is no assignment of this name"))?;
            match &found.counts {
                None => Reach::Unknown,
                Some(counts) => {
                    let failed = counts.states.iter().filter(|one| {
                        matches!(one.state(), Standing::Failed | Standing::TakenBack)
                    });
                    Reach::Exactly(failed.map(|one| one.agents).fold(0, u64::saturating_add))
                }
            }
        }
    })
}

// === impl Question ===

impl Question<'_> {
    fn shown(&self, visitor: &Visitor, status: StatusCode) -> Response {
        let body = self.body(&visitor.session.field());
        Page { title: &self.title, at: "", visitor: Some(visitor), live: None, body }
            .respond(status)
    }

    fn body(&self, csrf: &Markup) -> Markup {
        html! {
            section class="notice" {
                h1 { (self.title) }
                @if let Some(remark) = self.remark { p class="error" role="alert" { (remark) } }
                p class="touches" { (self.touches) }
                @for sentence in &self.means { p { (sentence) } }
                form method="post" action=(self.action) {
                    (csrf)
                    input type="hidden" name="key" value=(Uuid::new_v4());
                    input type="hidden" name="seen" value=(self.seen);
                    label for="reason" {
                        "Reason, for those who look later" @if !self.needs_reason { " (not needed)" }
                    }
                    input id="reason" name="reason" type="text" maxlength=(REASON_MAX) required[self.needs_reason];
                    div class="actions" {
                        button type="submit" class=[self.is_dangerous.then_some("danger")] { (self.button) }
                        a class="button" href=(self.back) { "Back" }
                    }
                }
                (by_hand(&self.command))
            }
        }
    }
}

fn reason(answer: &Answer) -> String {
    one_line(&answer.reason).chars().take(REASON_MAX).collect()
}

fn unknown(visitor: &Visitor) -> Response {
    let text = "There is no such action.";
    notice(visitor, StatusCode::NOT_FOUND, ("That is not possible", text))
}
