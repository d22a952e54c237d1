//! The page of the configuration that is in effect.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use guest_agent_console_kit::pieces::badge;
use maud::{Markup, html};

use super::log::with_token;
use super::page::Page;
use super::state::Console;
use crate::api::http::session::{Sight, Visitor};
use crate::config::{self, Config, Loaded};
use crate::display::one_line;

/// Shows every key with its value. A visitor without a token sees none: paths and hosts say much about
/// a machine.
pub(super) async fn show(State(console): State<Console>, visitor: Visitor) -> Response {
    let machine = &console.site.api.machine;
    let (status, body) = if visitor.sight == Sight::All {
        (StatusCode::OK, page(&console.site.config.borrow()))
    } else {
        let left_out = with_token("The configuration is shown with a token only.");
        (StatusCode::FORBIDDEN, html! { h1 { "Configuration" } section { (left_out) } })
    };
    let at = "/console/configuration";
    Page { machine, title: "Configuration", at, visitor: &visitor, live: None, body }
        .respond(status)
}

/// The keys, by section. Secrets are left out, as `guest-agent config show` leaves them out.
pub(super) fn page(config: &Config) -> Markup {
    let all = |config: &Config| {
        config::entries(&Loaded { config: config.clone(), origins: BTreeMap::new() })
    };
    let defaults: BTreeMap<_, _> =
        all(&Config::default()).into_iter().map(|entry| (entry.key, entry.value)).collect();
    let mut sections: BTreeMap<String, Vec<(String, String, bool)>> = BTreeMap::new();
    for entry in all(config) {
        let (section, key) = entry.key.rsplit_once('.').unwrap_or(("", &entry.key));
        let is_default = defaults.get(&entry.key) == Some(&entry.value);
        let rows = sections.entry(section.to_owned()).or_default();
        rows.push((key.to_owned(), entry.value.clone(), is_default));
    }
    html! {
        div class="title" {
            h1 { "Configuration" }
            span class="quiet" { "in effect now; " code { "guest-agent config show" } " also says where each value comes from" }
        }
        @for (section, rows) in &sections {
            section aria-label=(section) {
                h2 { "[" (one_line(section)) "]" }
                table class="keys" {
                    thead { tr { th scope="col" { "Key" } th scope="col" { "Value" } } }
                    tbody {
                        @for (key, value, is_default) in rows {
                            tr {
                                th scope="row" { code { (one_line(key)) } }
                                td data-label="Value" {
                                    span {
                                        code { (one_line(value)) }
                                        @if !is_default { " " (badge("set", "It differs from the default.")) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
