//! The frame of every page.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};

use crate::assets;
use crate::headers::headers;

/// A small picture of three plugins, one of which is on.
const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'\
    %3E%3Crect width='16' height='16' rx='4' fill='%231d5fd1'/%3E%3Cg fill='%23fff'%3E%3Crect x='3' \
    y='3' width='4' height='4' rx='1'/%3E%3Crect x='9' y='3' width='4' height='4' rx='1' opacity='.5'\
    /%3E%3Crect x='3' y='9' width='4' height='4' rx='1' opacity='.5'/%3E%3C/g%3E%3C/svg%3E";

/// What all pages of a console have.
#[derive(Clone, Debug)]
pub struct Frame<'a> {
    /// The name of the product, in the title of each page.
    pub product: &'a str,
    /// What is looked at, such as the name of a machine: in the title and in the header.
    pub place: &'a str,
    /// More about it, below its name.
    pub about: Markup,
    /// The pages that the header leads to: a name and an address each.
    pub pages: &'a [(&'a str, &'a str)],
    /// Who looks, at the end of the header.
    pub who: Markup,
}

/// A page.
#[derive(Clone, Debug)]
pub struct Page<'a> {
    /// What all pages have.
    pub frame: Frame<'a>,
    /// The title.
    pub title: &'a str,
    /// The address in the header that this page belongs to.
    pub at: &'a str,
    /// The stream of a page that updates itself: its address, with a query.
    pub live: Option<&'a str>,
    /// What is on it.
    pub body: Markup,
}

// === impl Page ===

impl Page<'_> {
    /// The page as a response.
    pub fn respond(self, status: StatusCode) -> Response {
        let body = self.framed().into_string();
        (status, headers("text/html; charset=utf-8"), body).into_response()
    }

    /// The page as markup.
    #[must_use]
    pub fn framed(self) -> Markup {
        let Self { frame, title, at, live, body } = self;
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title {
                        (title) " · "
                        @if !frame.place.is_empty() { (frame.place) " · " }
                        (frame.product)
                    }
                    link rel="icon" href=(ICON);
                    link rel="stylesheet" href=(assets::STYLE);
                    @if live.is_some() {
                        noscript { meta http-equiv="refresh" content="10"; }
                    }
                    script src=(assets::SCRIPT) defer {}
                }
                body data-live=[live] {
                    a class="skip" href="#main" { "To the content" }
                    header {
                        a class="brand" href="/" {
                            @if frame.place.is_empty() { (frame.product) } @else { (frame.place) }
                        }
                        nav aria-label="Pages" {
                            @for (name, address) in frame.pages {
                                a href=(address) aria-current=[(*address == at).then_some("page")] { (name) }
                            }
                        }
                        @if live.is_some() {
                            p id="live" class="quiet" role="status" {
                                noscript { "again every 10 s" }
                            }
                        }
                        div class="who" { (frame.who) }
                        div class="about" { (frame.about) }
                    }
                    main id="main" tabindex="-1" { (body) }
                    p id="said" class="hidden" role="status" aria-live="polite" {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_its_titles_and_says_where_it_is() {
        let frame = Frame {
            product: "guest-agent",
            place: "<vm>",
            about: html! { "Debian" },
            pages: &[("Overview", "/"), ("Events", "/console/events")],
            who: html! {},
        };
        let live = Some("/console/live?page=events");
        let body = html! { h1 { "Events" } };
        let page = Page { frame, title: "Events", at: "/console/events", live, body };
        let page = page.framed().into_string();
        assert!(page.contains("<title>Events · &lt;vm&gt; · guest-agent</title>"), "{page}");
        assert!(page.contains(r#"href="/console/events" aria-current="page""#), "{page}");
        assert!(page.contains(r#"data-live="/console/live?page=events""#), "{page}");
        assert_eq!(page.matches("aria-current").count(), 1);
    }
}
