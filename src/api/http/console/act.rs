//! What people may do with a plugin: the buttons, and the page that says what each of them will do.

use guest_agent_proto::agent_controlplane::PluginType;
use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::local::PluginStatus;
use maud::{Markup, html};

use super::page::csrf_field;
use super::pieces::page_of;
use crate::api::http::access::Access;
use crate::api::http::session::Visitor;
use crate::display::{self, is_only_refused, one_line, values};

/// Longest reason that is taken, in characters.
pub(super) const REASON_MAX: usize = 200;

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
    Dismiss,
    Remove,
}

// === impl Deed ===

impl Deed {
    pub(super) const ALL: [Self; 9] = [
        Self::Restart,
        Self::Run,
        Self::Stop,
        Self::Start,
        Self::Rollback,
        Self::Hold,
        Self::Release,
        Self::Dismiss,
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
            Self::Dismiss => "dismiss",
            Self::Remove => "remove",
        }
    }

    /// The deed of a word.
    pub(super) fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|deed| deed.word() == word)
    }

    /// What its buttons say.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Restart => "Restart",
            Self::Run => "Run now",
            Self::Stop => "Stop",
            Self::Start => "Start",
            Self::Rollback => "Roll back",
            Self::Hold => "Hold",
            Self::Release => "Release",
            Self::Dismiss => "Dismiss the failure",
            Self::Remove => "Remove",
        }
    }

    /// The sentence on the plugin's page once it is requested.
    const fn requested(self) -> &'static str {
        match self {
            Self::Restart => "Restart requested.",
            Self::Run => "Run requested.",
            Self::Stop => "Stop requested.",
            Self::Start => "Start requested.",
            Self::Rollback => "Rollback requested.",
            Self::Hold => "Hold requested.",
            Self::Release => "Release requested.",
            Self::Dismiss => "Dismissal requested.",
            Self::Remove => {
                "Removal requested. The plugin disappears from here when it is removed."
            }
        }
    }

    /// Whether it makes sense for a plugin as it is.
    pub(super) fn suits(self, plugin: &PluginStatus) -> bool {
        let is_one_shot = values::kind(plugin) == PluginType::OneShot;
        let is_stopped = display::is_stopped(plugin);
        match self {
            Self::Restart => !is_one_shot && !is_stopped,
            Self::Run => is_one_shot && !is_stopped,
            Self::Stop => !is_stopped,
            Self::Start => is_stopped,
            Self::Rollback => !plugin.rollback_to.is_empty(),
            Self::Hold => plugin.hold.is_none(),
            Self::Release => display::is_releasable(plugin),
            Self::Dismiss => display::is_dismissible(plugin),
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
            Self::Dismiss => {
                let failed = plugin.pending.as_ref().map(|pending| one_line(&pending.revision));
                let failed = failed.unwrap_or_default();
                vec![
                    format!("The failure of revision {failed} of {name} counts no more: lists, alerts and `doctor` leave it out."),
                    "It counts again when a revision fails the next time.".to_owned(),
                ]
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
    let wants_reason = matches!(deed, Deed::Stop | Deed::Rollback | Deed::Hold | Deed::Dismiss);
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
                @if deed == Deed::Dismiss && let Some(failed) = &plugin.pending {
                    input type="hidden" name="revision" value=(failed.revision);
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

#[cfg(test)]
mod tests {
    use guest_agent_proto::local;

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
}
