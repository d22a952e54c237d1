//! Asks people whether they mean what they want to do with a plugin, and does it.
//!
//! ```text
//!   GET  /console/plugins/NAME/DEED ─► what it will do, and a form of this session
//!   POST /console/plugins/NAME/DEED ─► access, form ─► local API (durable) ─► the plugin's page
//! ```

use std::time::SystemTime;

use axum::Form;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use guest_agent_actors::model::id::PluginName;
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::local::local_agent_server::LocalAgent;
use guest_agent_proto::local::{self, ActRequest, ConfigureRequest, RestartRequest};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use tonic::Status;

use super::act::{Deed, REASON_MAX, question};
use super::login::{forged, redirect};
use super::page::{Page, failed, notice, unknown};
use super::pieces::page_of;
use super::state::Console;
use crate::api::http::access::Access;
use crate::api::http::refusal::Refusal;
use crate::api::http::session::Visitor;
use crate::api::local::remove_order;
use crate::display::one_line;

/// The fields of a form.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Fields {
    #[serde(default)]
    csrf: String,
    #[serde(default)]
    reason: String,
    /// The revision whose failure is dismissed; empty otherwise.
    #[serde(default)]
    revision: String,
    /// The hours after which a hold ends by itself; empty for one that a person ends.
    #[serde(default)]
    hours: String,
}

/// Asks.
pub(super) async fn ask(
    State(console): State<Console>,
    visitor: Visitor,
    Path((name, word)): Path<(String, String)>,
) -> Result<Response, Refusal> {
    visitor.access.require(Access::Act)?;
    let machine = &console.site.api.machine;
    let Some((name, deed)) = name.parse::<PluginName>().ok().zip(Deed::named(&word)) else {
        return Ok(unknown(machine, &visitor));
    };
    let Ok(Some(plugin)) = console.source.status(&name).await else {
        return Ok(unknown(machine, &visitor));
    };
    if !deed.suits(&plugin) {
        let text = "The plugin is not in a state in which that makes sense any more.";
        let told = ("Nothing to do", text);
        return Ok(notice(machine, &visitor, StatusCode::CONFLICT, told));
    }
    let body = question(deed, &plugin, &visitor);
    let title = format!("{} {name}?", deed.name());
    let page = Page { machine, title: &title, at: "", visitor: &visitor, live: None, body };
    Ok(page.respond(StatusCode::OK))
}

/// Does it.
pub(super) async fn act(
    State(console): State<Console>,
    visitor: Visitor,
    Path((name, word)): Path<(String, String)>,
    Form(fields): Form<Fields>,
) -> Result<Response, Refusal> {
    visitor.access.require(Access::Act)?;
    if !visitor.has_sent(&fields.csrf) {
        return Err(forged());
    }
    let no_plugin = || Refusal::new(StatusCode::NOT_FOUND, "no plugin has this name");
    let name: PluginName = name.parse().map_err(|_| no_plugin())?;
    let nothing = || Refusal::new(StatusCode::NOT_FOUND, "nothing of this name can be done");
    let deed = Deed::named(&word).ok_or_else(nothing)?;
    let machine = &console.site.api.machine;
    if !matches!(console.source.find(&name).await, Ok(Some(_))) {
        return Ok(unknown(machine, &visitor));
    }
    Ok(match carry_out(&console, &visitor, deed, (&name, &fields)).await {
        Ok(()) => redirect(&format!("{}?done={}", page_of(name.as_str()), deed.word()), None),
        Err(status) => failed(machine, &visitor, &status),
    })
}

async fn carry_out(
    console: &Console,
    visitor: &Visitor,
    deed: Deed,
    (name, fields): (&PluginName, &Fields),
) -> Result<(), Status> {
    let api = &console.site.api;
    let act = match deed {
        Deed::Restart => {
            let request = RestartRequest { name: name.to_string() };
            api.restart(visitor.request(request)).await?;
            return Ok(());
        }
        Deed::Remove => {
            let orders =
                ConfigurePluginStates { configure_plugins: vec![remove_order(name.as_str())] };
            let request = ConfigureRequest { orders: Some(orders) };
            let results = api.configure(visitor.request(request)).await?.into_inner().results;
            let refused = results.into_iter().find(|result| !result.error.is_empty());
            return refused
                .map_or(Ok(()), |refused| Err(Status::failed_precondition(refused.error)));
        }
        Deed::Run => local::Act::Run,
        Deed::Stop => local::Act::Stop,
        Deed::Start => local::Act::Start,
        Deed::Rollback => local::Act::Rollback,
        Deed::Hold => local::Act::Hold,
        Deed::Release => local::Act::Release,
        Deed::Dismiss => local::Act::Dismiss,
    };
    let until = hours(&fields.hours)?;
    let request = ActRequest {
        name: name.to_string(),
        act: act.into(),
        reason: one_line(&fields.reason).chars().take(REASON_MAX).collect(),
        until: until.filter(|_| deed == Deed::Hold).map(Into::into),
        revision: if deed == Deed::Dismiss { fields.revision.clone() } else { String::new() },
        ..ActRequest::default()
    };
    api.act(visitor.request(request)).await?;
    Ok(())
}

/// The end of a hold that lasts so many hours; `None` where a person ends it.
fn hours(text: &str) -> Result<Option<SystemTime>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    let hours = text.parse::<u16>().ok().filter(|hours| (1..=8760).contains(hours));
    let wrong = || Status::invalid_argument("a hold may last from 1 to 8760 hours");
    let hours = SignedDuration::from_hours(i64::from(hours.ok_or_else(wrong)?));
    let until = Timestamp::now().checked_add(hours).map_err(|_| wrong())?;
    Ok(Some(until.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_lasts_a_number_of_hours_or_until_somebody_ends_it() {
        assert!(hours("").expect("no end").is_none());
        let end = hours("4").expect("a number").expect("an end");
        let left = end.duration_since(SystemTime::now()).expect("to come").as_secs();
        assert!((4 * 3600 - 60..=4 * 3600).contains(&left), "{left}");
        for wrong in ["0", "-1", "8761", "x", "99999999999999999999"] {
            hours(wrong).expect_err(wrong);
        }
    }
}
