//! The page of one plugin: why it is as it is, what it uses, what it offers, what it says.

use std::collections::BTreeMap;

use guest_agent_actors::model::id::PluginName;
use guest_agent_actors::model::spec::Limits;
use guest_agent_console_kit::chart::chart;
use guest_agent_console_kit::live::Parts;
use guest_agent_console_kit::pieces::pill;
use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::host::Entry;
use guest_agent_proto::local::{AuditEntry, ExplainResponse};
use jiff::Timestamp;
use maud::{Markup, html};

use super::events::{self, Line, Names};
use super::pieces::{Ages, ago, attention, class, fact, page_of, some, state};
use super::row::Row;
use super::{act, audit, log};
use crate::api::http::session::Visitor;
use crate::display::values::Named;
use crate::display::{self, Tone, not_enforced, one_line};

/// What is shown.
#[derive(Clone, Debug)]
pub(super) struct Plugin {
    /// What it looks like, and what it used.
    pub(super) row: Row,
    /// Why; absent when it could not be asked.
    pub(super) why: Option<ExplainResponse>,
    /// What it may use.
    pub(super) limits: Limits,
    /// What it offers to others.
    pub(super) offers: Vec<Entry>,
    /// What happened to it lately, the newest first.
    pub(super) events: Vec<Line>,
    /// The end of its log; `None` for a visitor who may not see it.
    pub(super) log: Option<log::Part>,
    /// What people asked of it lately, the oldest first; `None` for a visitor who may not see it.
    pub(super) audit: Option<Vec<AuditEntry>>,
    /// When all this was so.
    pub(super) now: Timestamp,
}

// === impl Plugin ===

impl Plugin {
    /// The parts of the page that change by themselves, each under its id.
    pub(super) fn parts(&self, ages: Ages) -> Parts {
        vec![
            ("state", state(&self.row.plugin)),
            ("why", self.why(ages)),
            ("facts", self.facts(ages)),
            ("usage", self.usage()),
            ("moves", self.moves(ages)),
            ("offers", self.offers(ages)),
            ("order", self.order()),
            ("events", events::list(&self.events, ages, Names::Left)),
            ("audit", self.audited(ages)),
            ("log", log::end(self.log.as_ref())),
            ("said", events::said(self.events.first())),
        ]
    }

    /// The whole page, without its frame. `done` says what was just ordered.
    pub(super) fn page(&self, ages: Ages, visitor: &Visitor, done: Option<&str>) -> Markup {
        let parts: BTreeMap<_, _> = self.parts(ages).into_iter().collect();
        let plugin = &self.row.plugin;
        let section = |id: &'static str, title: &str| {
            let label = format!("{id}-title");
            html! {
                section aria-labelledby=(label) {
                    h2 id=(label) { (title) }
                    div id=(id) { (parts[id]) }
                }
            }
        };
        html! {
            @if let Some(done) = done { p class="done" role="status" { (done) } }
            div class="title head" {
                h1 { (one_line(&plugin.name)) " " span id="state" { (parts["state"]) } }
                (act::buttons(plugin, visitor))
            }
            (section("why", "Why it is so"))
            div class="columns" {
                (section("facts", "What it is"))
                (section("usage", "What it uses"))
            }
            div class="columns" {
                (section("moves", "Last steps"))
                (section("events", "Events"))
            }
            div class="columns" {
                (section("order", "What it is run with"))
                (section("offers", "What it offers"))
            }
            (section("audit", "Who acted"))
            section aria-labelledby="log-title" {
                div class="title" {
                    h2 id="log-title" { "Log" }
                    @if self.log.is_some() {
                        a href={ (page_of(&plugin.name)) "/log" } { "Follow, search, download" }
                    }
                }
                div id="log" { (parts["log"]) }
            }
        }
    }

    fn why(&self, ages: Ages) -> Markup {
        let Some(why) = &self.why else {
            return html! { p class="quiet" { "It is busy and does not answer; this page tries again." } };
        };
        html! {
            @if let Some(attention) = attention(&self.row.plugin, ages, usize::MAX) {
                p class="doing" { (attention) }
            }
            p class="doing" { (display::doing(why, self.now)) }
            ul class="reasons" {
                @for reason in display::reasons(why, self.now) {
                    li {
                        @if !reason.label.is_empty() { (pill(reason.tone, reason.label)) " " }
                        (reason.text)
                    }
                }
            }
            @if let Some(rules) = &why.rules {
                @let (verdict, policy) = display::rules_heads(rules);
                h3 { "Rules " (pill(verdict.tone, verdict.label)) }
                p { (verdict.text) ": " (policy) }
                ul { @for rule in &rules.rules { li { (display::rule_line(rule)) } } }
            }
            @if !why.triggers.is_empty() {
                h3 { "Triggers" }
                ul { @for plan in &why.triggers { li { (display::trigger_line(plan, self.now)) } } }
            }
            @if !why.last_output.is_empty() {
                h3 { "Its last run wrote" }
                pre class="log" { @for line in why.last_output.lines() { (log::line(line)) "\n" } }
            }
        }
    }

    fn facts(&self, ages: Ages) -> Markup {
        let plugin = &self.row.plugin;
        let health = plugin.health.as_ref().map(|health| {
            let (tone, word) =
                if health.code == 0 { (Tone::Good, "healthy") } else { (Tone::Bad, "unhealthy") };
            html! {
                (pill(tone, word)) " "
                @if health.code != 0 { "code " (health.code) " " }
                span class="quiet" { (ago(health.at.as_ref(), ages)) }
                @for result in &health.results { br; (one_line(result)) }
            }
        });
        let last_exit = plugin.last_exit.as_ref().map(|exit| {
            html! { (one_line(&display::exit(exit))) " " span class="quiet" { (ago(exit.at.as_ref(), ages)) } }
        });
        let started = plugin.started_at.as_ref().filter(|_| plugin.pid.is_some());
        let limits = plugin.limits.as_ref().and_then(display::limits);
        let limits = limits.unwrap_or_else(|| "none".to_owned());
        let code = |text: &str| some(text).map(|text| html! { code { (text) } });
        html! {
            dl class="facts" {
                (fact("Revision", code(&plugin.revision)))
                (fact("Pending", display::pending(plugin).map(|text| one_line(&text))))
                (fact("Progress", display::progress(plugin).map(|text| one_line(&text))))
                (fact("Kind", Some(display::kind_words(plugin))))
                (fact("Health", health))
                (fact("Process", plugin.pid.map(|pid| html! { code { (pid) } })))
                (fact("Started", started.map(|at| ago(Some(at), ages))))
                (fact("Restarts", Some(plugin.restarts.to_string())))
                (fact("Last run for", display::ran_for(plugin).map(|why| one_line(&why))))
                (fact("Last exit", last_exit))
                (fact("Memory", display::memory(plugin)))
                (fact("Limits", Some(limits)))
                (fact("Limited", display::limit_override(plugin).map(|text| one_line(&text))))
                @for shortfall in &plugin.not_enforced {
                    (fact("Not enforced", Some(html! {
                        span class=(class(Tone::Bad)) { (one_line(&not_enforced(shortfall))) }
                    })))
                }
                (fact("Configuration", code(&plugin.config_hash)))
                (fact("Address", code(&plugin.address)))
                (fact("Installed in", code(&plugin.install_path)))
            }
        }
    }

    fn usage(&self) -> Markup {
        let (mut cpu, mut memory) = (self.row.cpu(), self.row.memory());
        cpu.limit = self.limits.cpu_percent.map(f64::from);
        memory.limit = self.limits.memory_bytes.map(|most| most as f64);
        html! { (chart(&cpu)) (chart(&memory)) }
    }

    fn moves(&self, ages: Ages) -> Markup {
        let moves = self.why.as_ref().map(|why| why.moves.as_slice()).unwrap_or_default();
        html! {
            @if moves.is_empty() { p class="empty" { "None is remembered." } }
            ol class="events" {
                @for step in moves.iter().rev() {
                    li class=(class(display::state_tone(StatusValue::named(&step.state).unwrap_or_default()))) {
                        span class="when" { (ago(step.at.as_ref(), ages)) }
                        span class="kind" { (step_word(&step.state)) }
                        span class="what" { (one_line(&step.why)) }
                    }
                }
            }
        }
    }

    /// What it is run with, and the configuration that is in effect.
    fn order(&self) -> Markup {
        let Some(order) = self.why.as_ref().and_then(|why| why.order.as_ref()) else {
            return html! { (log::with_token("What a plugin is run with is shown with a token only.")) };
        };
        let code = |text: &str| some(text).map(|text| html! { code { (text) } });
        html! {
            dl class="facts" {
                (fact("Program", code(&order.entry_point)))
                (fact("Arguments", (!order.arguments.is_empty()).then(|| html! {
                    @for argument in &order.arguments { code { (one_line(argument)) } " " }
                })))
                (fact("Source", code(&order.source)))
                (fact("SHA-256", code(&order.sha256)))
                (fact("Signed by", code(&order.signed_by)))
            }
            @if let Some(config) = order.config.as_deref().filter(|config| !config.is_empty()) {
                h3 { "Configuration" }
                pre class="log" tabindex="0" aria-label="Configuration" {
                    @for line in config.lines() { (log::line(line)) "\n" }
                }
            } @else {
                p class="quiet" { "It has no configuration." }
            }
        }
    }

    fn audited(&self, ages: Ages) -> Markup {
        match &self.audit {
            Some(entries) => audit::table(entries, ages),
            None => log::with_token("Who acted is shown with a token only."),
        }
    }

    fn offers(&self, ages: Ages) -> Markup {
        html! {
            @if self.offers.is_empty() {
                p class="empty" { "The plugin has no entry in the registry." }
            } @else {
                table {
                    thead {
                        tr {
                            @for heading in ["Type", "Name", "Version", "Socket", "Answers", "Since"] {
                                th scope="col" { (heading) }
                            }
                        }
                    }
                    tbody {
                        @for entry in &self.offers {
                            @let offer = entry.offer.clone().unwrap_or_default();
                            tr {
                                td data-label="Type" { (one_line(&offer.r#type)) }
                                th scope="row" { (one_line(&offer.name)) }
                                td data-label="Version" { (one_line(&offer.version)) }
                                td data-label="Socket" { code { (one_line(&offer.socket_path)) } }
                                td data-label="Answers" {
                                    @if entry.verified { (pill(Tone::Good, "yes")) }
                                    @else { (pill(Tone::Busy, "not yet")) }
                                }
                                td data-label="Since" { (ago(entry.registered_at.as_ref(), ages)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The state of a step as a word; one of a later agent is its name.
fn step_word(name: &str) -> String {
    match StatusValue::named(name) {
        Some(state) => display::state_word(state).to_owned(),
        None => one_line(name),
    }
}

/// The parts of the page of a plugin that was removed.
pub(super) fn gone(name: &PluginName) -> Parts {
    let text = format!("{name} is not on this machine any more.");
    vec![
        ("state", pill(Tone::Quiet, "gone")),
        ("why", html! { p { (text) " " a href="/" { "To the overview" } } }),
        ("said", html! { (text) }),
    ]
}
