//! Where changes wait, when they may happen, and the form that makes them wait.

use guest_agent_proto::fleet_api::{Hold, Role, Window};
use maud::{Markup, html};

use super::deed::{Deed, buttons};
use super::pieces::{
    Tone, badge, by_hand, cell, counted, none, one_line, pill, query, shell, when,
};
use super::role::May;
use super::shown::Shown;

/// Longest reason that is taken, in characters.
pub(super) const REASON_MAX: usize = 200;

/// The hours after which a hold may end by itself.
const HOURS: [&str; 6] = ["1", "4", "8", "24", "72", "168"];

/// The page.
pub(super) fn page(holds: &[Hold], windows: &[Window], may: &May) -> Shown {
    let live = html! {
        section aria-labelledby="holds-title" {
            h2 id="holds-title" { "Holds" }
            @if holds.is_empty() { p class="empty" { "No change waits for anybody." } } @else { (table(holds, may)) }
        }
        section aria-labelledby="windows-title" {
            h2 id="windows-title" { "Windows" }
            @if windows.is_empty() {
                p class="empty" { "Changes may happen at any time." }
            } @else { (openings(windows)) }
        }
        (by_hand("guest-fleet holds; guest-fleet windows"))
    };
    let mut page = Shown::new("Holds and windows", "/console/holds", live);
    page.fixed = html! {
        div class="title" {
            h1 { "Holds and windows" }
            @if may.act_as(Role::Operator) { a class="button" href="/console/hold" { "Hold…" } }
        }
    };
    page
}

fn about(select: &str, plugins: &[String], own_labels: bool) -> Markup {
    html! {
        span {
            a href={ "/console/agents" (query(&[("select", select)])) } { (one_line(select)) } " "
            span class="quiet" {
                @if plugins.is_empty() { "all plugins" } @else { (one_line(&plugins.join(", "))) }
            }
            @if own_labels { " " (badge("own labels", "Labels that machines claim themselves may select.")) }
        }
    }
}

fn table(holds: &[Hold], may: &May) -> Markup {
    html! {
        table {
            thead { tr {
                th scope="col" { "Hold" } th scope="col" { "State" } th scope="col" { "On" } th scope="col" { "Reason" }
                th scope="col" { "Until" } th scope="col" { span class="hidden" { "Actions" } }
            } }
            tbody {
                @for hold in holds {
                    tr {
                        th scope="row" { (one_line(&hold.name)) div class="note" { "by " (cell(&hold.by)) } }
                        td data-label="State" {
                            @if hold.ended { (pill(Tone::Quiet, "ended")) } @else { (pill(Tone::Busy, "holds")) }
                            @if !hold.by_hand { " " (badge("declared", "A file declares it; end it there.")) }
                        }
                        td data-label="On" { (about(&hold.select, &hold.plugins, hold.own_labels)) }
                        td data-label="Reason" { (cell(&hold.reason)) }
                        td data-label="Until" {
                            (when(hold.until.as_ref()).unwrap_or_else(|| html! { "somebody releases it" }))
                        }
                        td data-label="Actions" {
                            @if hold.ended { (none()) } @else { (buttons(&[Deed::EndHold], &hold.name, may)) }
                        }
                    }
                }
            }
        }
    }
}

fn openings(windows: &[Window]) -> Markup {
    html! {
        table {
            thead { tr {
                th scope="col" { "Window" } th scope="col" { "State" } th scope="col" { "On" } th scope="col" { "Opens" }
                th scope="col" { "Next" }
            } }
            tbody {
                @for window in windows {
                    tr {
                        th scope="row" { (one_line(&window.name)) }
                        td data-label="State" {
                            @if window.open { (pill(Tone::Good, "open")) } @else { (pill(Tone::Plain, "closed")) }
                        }
                        td data-label="On" { (about(&window.select, &window.plugins, window.own_labels)) }
                        td data-label="Opens" {
                            span {
                                (one_line(&window.days.join(" "))) " " (one_line(&window.from)) "–" (one_line(&window.to)) " "
                                span class="quiet" { (one_line(&window.zone)) }
                            }
                        }
                        td data-label="Next" {
                            @if let Some(until) = when(window.until.as_ref()) { span { "closes " (until) } }
                            @else if let Some(next) = when(window.next.as_ref()) { span { "opens " (next) } }
                            @else { "never" }
                        }
                    }
                }
            }
        }
    }
}

/// A hold that somebody thinks of.
#[derive(Clone, Debug, Default)]
pub(super) struct Thought {
    /// Its name.
    pub(super) name: String,
    /// Which agents.
    pub(super) select: String,
    /// Names of plugins, with blanks between; empty for all.
    pub(super) plugins: String,
    /// After how many hours it ends by itself; empty where it does not.
    pub(super) hours: String,
    /// Why.
    pub(super) reason: String,
}

// === impl Thought ===

impl Thought {
    /// The plugins one by one.
    pub(super) fn plugins(&self) -> Vec<String> {
        self.plugins.split_whitespace().map(str::to_owned).collect()
    }

    /// After how many hours it ends; `None` where it does not.
    pub(super) fn hours(&self) -> Option<i64> {
        HOURS.contains(&self.hours.as_str()).then(|| self.hours.parse().ok()).flatten()
    }

    fn command(&self) -> String {
        let (name, select) = (shell(&self.name), shell(&self.select));
        let mut command =
            format!("guest-fleet hold {name} --select {select} --reason {}", shell(&self.reason));
        for plugin in self.plugins() {
            command.push_str(" --plugin ");
            command.push_str(&shell(&plugin));
        }
        if let Some(hours) = self.hours() {
            command.push_str(" --for ");
            command.push_str(&hours.to_string());
            command.push('h');
        }
        command
    }
}

/// How many agents a selector selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Selected {
    /// So many.
    pub(super) agents: u64,
    /// And more, which were not counted.
    pub(super) and_more: bool,
}

/// The page on which somebody thinks of a hold: the form, and whom it would touch with the button that sets
/// it.
pub(super) fn ask(
    thought: &Thought,
    selected: Option<&Result<Selected, String>>,
    csrf: &Markup,
) -> Markup {
    html! {
        h1 { "Hold" }
        section {
            form class="fields" method="get" action="/console/hold" {
                label for="name" { "Name" }
                input id="name" name="name" required maxlength="64" value=(thought.name);
                label for="select" { "Which agents, such as “env = prod” or “all”" }
                input id="select" name="select" required maxlength="1024" value=(thought.select);
                label for="plugins" { "Plugins, with blanks between; empty: all" }
                input id="plugins" name="plugins" maxlength="1024" value=(thought.plugins);
                label for="hours" { "Ends by itself" }
                select id="hours" name="hours" {
                    option value="" { "not: somebody releases it" }
                    @for hours in HOURS {
                        option value=(hours) selected[thought.hours == hours] { "after " (hours) " h" }
                    }
                }
                label for="reason" { "Reason; people who wait read it" }
                input id="reason" name="reason" required maxlength=(REASON_MAX) value=(thought.reason);
                div class="actions" { button type="submit" { "Show whom it would touch" } }
            }
        }
        @match selected {
            None => {},
            Some(Err(reason)) => p class="troubles" role="alert" { (cell(reason)) },
            Some(Ok(selected)) => {
                section class="notice" {
                    p class="touches" { (touches(*selected)) }
                    p { "Changes of their plugins wait until the hold ends. What runs keeps running." }
                    form method="post" action="/console/hold" {
                        (csrf)
                        @for (name, value) in [
                            ("name", &thought.name), ("select", &thought.select), ("plugins", &thought.plugins),
                            ("hours", &thought.hours), ("reason", &thought.reason),
                        ] { input type="hidden" name=(name) value=(value); }
                        div class="actions" {
                            button type="submit" { "Hold" }
                            a class="button" href="/console/holds" { "Back" }
                        }
                    }
                }
                (by_hand(&thought.command()))
            },
        }
    }
}

fn touches(selected: Selected) -> String {
    let count = counted(selected.agents, "machine");
    if selected.and_more {
        format!("Touches more than {count}.")
    } else {
        format!("Touches {count}.")
    }
}
