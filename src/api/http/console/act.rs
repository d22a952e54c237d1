//! What people may do with a plugin, and the pages on which they are asked whether they mean it.
//!
//! ```text
//!   GET  /console/plugins/NAME/ACT ─► what it will do, and a form of this session
//!   POST /console/plugins/NAME/ACT ─► access, form ─► local API (durable) ─► the plugin's page
//! ```

use std::time::SystemTime;

use axum::Form;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use guest_agent_actors::model::id::PluginName;
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::local::local_agent_server::LocalAgent;
use guest_agent_proto::local::{self, ActRequest, ConfigureRequest, PluginStatus, RestartRequest};
use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use serde::Deserialize;
use tonic::Status;

use super::login::{forged, redirect};
use super::page::{Page, csrf_field, failed, notice, unknown};
use super::pieces::page_of;
use super::state::Console;
use crate::api::http::access::Access;
use crate::api::http::refusal::Refusal;
use crate::api::http::session::Visitor;
use crate::api::local::remove_order;
use crate::display::{is_only_refused, one_line, values};

/// Longest reason that is taken, in characters.
const REASON_MAX: usize = 200;

/// What is done with a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Restart,
    Run,
    Stop,
    Start,
    Rollback,
    Hold,
    Release,
    Remove,
}

/// The fields of a form.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Fields {
    #[serde(default)]
    csrf: String,
    #[serde(default)]
    reason: String,
    /// The hours after which a hold ends by itself; empty for one that a person ends.
    #[serde(default)]
    hours: String,
}

// === impl Deed ===

impl Deed {
    pub(super) const ALL: [Self; 8] = [
        Self::Restart,
        Self::Run,
        Self::Stop,
        Self::Start,
        Self::Rollback,
        Self::Hold,
        Self::Release,
        Self::Remove,
    ];

    /// Its word in addresses.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Restart => "restart",
            Self::Run => "run",
            Self::Stop => "stop",
            Self::Start => "start",
            Self::Rollback => "rollback",
            Self::Hold => "hold",
            Self::Release => "release",
            Self::Remove => "remove",
        }
    }

    fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|deed| deed.word() == word)
    }

    /// What its buttons say.
    const fn name(self) -> &'static str {
        match self {
            Self::Restart => "Restart",
            Self::Run => "Run now",
            Self::Stop => "Stop",
            Self::Start => "Start",
            Self::Rollback => "Roll back",
            Self::Hold => "Hold",
            Self::Release => "Release",
            Self::Remove => "Remove",
        }
    }

    /// What is said once it is requested.
    const fn requested(self) -> &'static str {
        match self {
            Self::Restart => "Restart requested.",
            Self::Run => "Run requested.",
            Self::Stop => "Stop requested.",
            Self::Start => "Start requested.",
            Self::Rollback => "Rollback requested.",
            Self::Hold => "Hold requested.",
            Self::Release => "Release requested.",
            Self::Remove => {
                "Removal requested. The plugin disappears from here when it is removed."
            }
        }
    }

    /// Whether it makes sense for a plugin as it is.
    fn suits(self, plugin: &PluginStatus) -> bool {
        let is_one_shot = plugin.kind == "one_shot";
        let is_stopped = super::pieces::is_stopped(plugin);
        match self {
            Self::Restart => !is_one_shot && !is_stopped,
            Self::Run => is_one_shot && !is_stopped,
            Self::Stop => !is_stopped,
            Self::Start => is_stopped,
            Self::Rollback => !plugin.rollback_to.is_empty(),
            Self::Hold => plugin.hold.is_none(),
            Self::Release => plugin.hold.is_some() || !plugin.rolled_back.is_empty(),
            Self::Remove => true,
        }
    }

    /// What it will do to a plugin, as sentences.
    fn means(self, plugin: &PluginStatus) -> Vec<String> {
        let name = one_line(&plugin.name);
        let revision = one_line(&plugin.revision);
        let runs = values::state(plugin) == StatusValue::Running;
        let mut sentences = match self {
            Self::Restart if runs => vec![
                format!("The process of {name} is asked to stop, is ended if it does not, and is started again."),
                "Its work is interrupted for that long.".to_owned(),
            ],
            Self::Restart => vec![format!("{name} is started again now, without waiting for its next attempt.")],
            Self::Run => vec![format!("{name} runs once now, beside its triggers.")],
            Self::Stop => vec![
                format!("{name} is stopped and stays stopped, over restarts of the agent and of the machine, until somebody starts it."),
                "Its files and its data stay. The control plane sees that it was stopped, and by whom.".to_owned(),
            ],
            Self::Start => vec![format!("The stop of {name} ends, and revision {revision} is started.")],
            Self::Rollback => {
                let back = one_line(&plugin.rollback_to);
                vec![
                    format!("Revision {revision} of {name} is stopped, and revision {back} runs again."),
                    format!("Revision {revision} stays away until it is released, also when the control plane orders it."),
                ]
            }
            Self::Hold => vec![
                format!("{name} stays as it is: orders of the control plane for it wait until the hold ends."),
                "It is still started again when it crashes. The control plane sees the hold.".to_owned(),
            ],
            Self::Release => {
                let mut sentences = vec![format!("The hold of {name} ends, and the order that waits is carried out.")];
                if !plugin.rolled_back.is_empty() {
                    sentences.push(format!("Revision {} may be ordered again.", one_line(&plugin.rolled_back)));
                }
                sentences
            }
            Self::Remove => vec![
                format!("{name} is stopped, and its files and its data are deleted. This cannot be taken back."),
                "A control plane that still wants it installs it again.".to_owned(),
            ],
        };
        if let Some(held) = plugin.hold.as_ref().filter(|_| matches!(self, Self::Remove)) {
            sentences.push(format!(
                "It is held by {}; the removal waits for the end of the hold.",
                one_line(&held.by)
            ));
        }
        sentences
    }

    const fn is_dangerous(self) -> bool {
        matches!(self, Self::Remove)
    }
}

/// The sentence that is shown after a request.
pub(super) fn done(word: &str) -> Option<&'static str> {
    Deed::named(word).map(Deed::requested)
}

/// The buttons of what can be done with a plugin. Each leads to a page that asks.
pub(super) fn buttons(plugin: &PluginStatus, visitor: &Visitor) -> Markup {
    html! {
        @if visitor.access == Access::Act && !is_only_refused(plugin) {
            div class="actions" {
                @for deed in Deed::ALL.into_iter().filter(|deed| deed.suits(plugin)) {
                    a class=(if deed.is_dangerous() { "button danger" } else { "button" })
                        href={ (page_of(&plugin.name)) "/" (deed.word()) } { (deed.name()) "…" }
                }
            }
        }
    }
}

/// The page that says what will be done, with the form that does it.
pub(super) fn question(deed: Deed, plugin: &PluginStatus, visitor: &Visitor) -> Markup {
    let name = one_line(&plugin.name);
    let wants_reason = matches!(deed, Deed::Stop | Deed::Rollback | Deed::Hold);
    html! {
        section class="notice" {
            h1 { (deed.name()) " " (name) "?" }
            @for sentence in deed.means(plugin) { p { (sentence) } }
            form method="post" action={ (page_of(&plugin.name)) "/" (deed.word()) } {
                (csrf_field(visitor))
                @if wants_reason {
                    label for="reason" { "Reason, for those who look later" }
                    input id="reason" name="reason" type="text" maxlength=(REASON_MAX)
                        required[deed == Deed::Hold];
                }
                @if deed == Deed::Hold {
                    label for="hours" { "Ends by itself" }
                    select id="hours" name="hours" {
                        option value="" { "not: somebody releases it" }
                        @for hours in ["1", "4", "8", "24", "72", "168"] {
                            option value=(hours) { "after " (hours) " h" }
                        }
                    }
                }
                div class="actions" {
                    button type="submit" class=[deed.is_dangerous().then_some("danger")] {
                        (deed.name()) " " (name) @if deed == Deed::Remove { " and its data" }
                    }
                    a class="button" href=(page_of(&plugin.name)) { "Back" }
                }
            }
        }
    }
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
    };
    let until = hours(&fields.hours)?;
    let request = ActRequest {
        name: name.to_string(),
        act: act.into(),
        reason: one_line(&fields.reason).chars().take(REASON_MAX).collect(),
        until: until.filter(|_| deed == Deed::Hold).map(Into::into),
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

    fn plugin(state: &str) -> PluginStatus {
        PluginStatus {
            name: "web".to_owned(),
            revision: "2".to_owned(),
            state: state.to_owned(),
            kind: "daemon".to_owned(),
            ..PluginStatus::default()
        }
    }

    fn suit(plugin: &PluginStatus) -> Vec<&'static str> {
        Deed::ALL.into_iter().filter(|deed| deed.suits(plugin)).map(Deed::word).collect()
    }

    #[test]
    fn only_what_makes_sense_is_offered() {
        assert_eq!(suit(&plugin("RUNNING")), ["restart", "stop", "hold", "remove"]);
        let back = PluginStatus { rollback_to: "1".to_owned(), ..plugin("RUNNING") };
        assert!(suit(&back).contains(&"rollback"));
        let one_shot =
            PluginStatus { kind: "one_shot".to_owned(), ..plugin("EXECUTION_COMPLETED") };
        assert_eq!(suit(&one_shot), ["run", "stop", "hold", "remove"]);
        let held = PluginStatus { hold: Some(local::Hold::default()), ..plugin("RUNNING") };
        assert_eq!(suit(&held), ["restart", "stop", "release", "remove"]);
        let verdict = local::Verdict { cause: "stopped".to_owned(), ..local::Verdict::default() };
        let stopped = PluginStatus { verdict: Some(verdict), ..plugin("STOPPED") };
        assert_eq!(suit(&stopped), ["start", "hold", "remove"]);
    }

    #[test]
    fn every_deed_says_what_it_means_and_has_a_word_of_its_own() {
        for deed in Deed::ALL {
            assert_eq!(Deed::named(deed.word()), Some(deed));
            let means = deed.means(&plugin("RUNNING"));
            assert!(!means.is_empty() && means.iter().all(|it| it.ends_with('.')), "{means:?}");
            assert!(done(deed.word()).is_some_and(|it| it.contains("requested.")));
        }
        assert_eq!(done("paint"), None);
    }

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
