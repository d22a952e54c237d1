//! The page for a person whom the identity provider knows, and who has no role in the fleet.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use maud::{Markup, html};

use super::frame::Page;
use super::login::LOGIN;
use super::pieces::{CELL, one_line, shell, shortened};
use crate::records::access::Subject;

/// Most groups that the page names.
const GROUPS: usize = 20;

/// The page for a person that has just logged in.
pub(super) fn unknown(issuer: &str, name: &str, groups: &[String], cookie: &str) -> Response {
    let said = html! {
        p {
            (one_line(issuer)) " says that you are " strong { (shown(name)) }
            @if let [first, others @ ..] = &groups[..groups.len().min(GROUPS)] {
                ", of the groups " (shown(first))
                @for other in others { ", " (shown(other)) }
                @if groups.len() > GROUPS { " and " (groups.len() - GROUPS) " more" }
            }
            ". Nobody has given you a role here, nor any of your groups."
        }
    };
    respond(&said, name, groups, cookie)
}

/// The page for a person that has lost the last role.
pub(super) fn lost(name: &str, cookie: &str) -> Response {
    let said = html! {
        p { "You were logged in as " strong { (shown(name)) } ", and have no role here any more." }
    };
    respond(&said, name, &[], cookie)
}

fn respond(said: &Markup, name: &str, groups: &[String], cookie: &str) -> Response {
    let person = grant(&Subject::Person(name.to_owned()));
    let group = groups.first().map(|group| grant(&Subject::Group(group.clone())));
    let body = html! {
        section class="notice" {
            h1 { "You have no role in this fleet" }
            (said)
            p { "An admin of the fleet gives one, to you or to a group, such as:" }
            p { code { (person) } }
            @if let Some(group) = group { p { code { (group) } } }
            p { a class="button" href=(LOGIN) { "Log in again" } }
        }
    };
    let page = Page { title: "No role", at: "", visitor: None, live: None, body };
    let mut response = page.respond(StatusCode::FORBIDDEN);
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}

fn shown(name: &str) -> String {
    shortened(&one_line(name), CELL)
}

/// The command that an admin runs. A name that looks like an option is taken as a name.
fn grant(subject: &Subject) -> String {
    match subject {
        Subject::Person(name) if name.starts_with('-') => {
            format!("guest-fleet access grant --role viewer -- {}", shell(name))
        }
        Subject::Person(name) => format!("guest-fleet access grant {} --role viewer", shell(name)),
        Subject::Group(name) => {
            format!("guest-fleet access grant --group={} --role viewer", shell(name))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_gives_the_role_to_this_person_and_nobody_else() {
        let person = |name: &str| grant(&Subject::Person(name.to_owned()));
        let plain = "guest-fleet access grant alice@example.org --role viewer";
        assert_eq!(person("alice@example.org"), plain);
        let hostile = "guest-fleet access grant --role viewer -- --group=web";
        assert_eq!(person("--group=web"), hostile);
        assert_eq!(person("a; reboot"), "guest-fleet access grant 'a; reboot' --role viewer");
        let group = grant(&Subject::Group("web team".to_owned()));
        assert_eq!(group, "guest-fleet access grant --group='web team' --role viewer");
    }
}
