//! A page as its parts: what stays, and what changes by itself.

use guest_agent_console_kit::live::Parts;
use maud::{Markup, html};

/// A page.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    /// The title.
    pub(super) title: String,
    /// The address in the header that it belongs to.
    pub(super) at: &'static str,
    /// What stays as it is, such as forms in which people write.
    pub(super) fixed: Markup,
    /// What changes by itself.
    pub(super) live: Markup,
    /// What screen readers are to say when it changes.
    pub(super) said: String,
}

// === impl Shown ===

impl Shown {
    /// A page of which everything changes by itself.
    pub(super) fn new(title: &str, at: &'static str, live: Markup) -> Self {
        Self {
            title: title.to_owned(),
            at,
            fixed: html! { h1 { (title) } },
            live,
            said: String::new(),
        }
    }

    /// The parts that change.
    pub(super) fn parts(self) -> Parts {
        vec![("page", self.live), ("said", html! { (self.said) })]
    }

    /// The page without its frame.
    pub(super) fn body(&self) -> Markup {
        html! {
            (self.fixed)
            div id="page" { (self.live) }
        }
    }
}
