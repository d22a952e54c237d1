//! Small parts that all pages of the fleet are made of. What knows nothing of a fleet is in
//! [`guest_agent_console_kit`].

use guest_agent_console_kit::gauge::{Slice, slices};
pub(super) use guest_agent_console_kit::pieces::{Ages, badge, fact, pill, query, some};
pub(super) use guest_agent_console_kit::text::{Tone, one_line, shortened};
use guest_agent_proto::fleet_api::{Index, Standing, Standings};
use jiff::Timestamp;
use maud::{Markup, html};

use super::standing;

/// Longest text of foreign origin in a cell of a table, in columns.
pub(super) const CELL: usize = 200;

/// A time of a message.
pub(super) fn moment(at: Option<&prost_types::Timestamp>) -> Option<Timestamp> {
    let at = at?;
    Timestamp::new(at.seconds, at.nanos).ok()
}

/// How long ago something was; nothing where that is unknown.
pub(super) fn ago(at: Option<&prost_types::Timestamp>, ages: Ages) -> Markup {
    guest_agent_console_kit::pieces::ago(moment(at), ages)
}

/// A time that is still to come, or over: the time itself.
pub(super) fn when(at: Option<&prost_types::Timestamp>) -> Option<Markup> {
    let text = guest_agent_console_kit::text::second(moment(at)?);
    Some(html! { span class="number" { (text) } })
}

/// The command that says the same as a page.
pub(super) fn by_hand(command: &str) -> Markup {
    html! {
        p class="by-hand" { "The same by hand: " code { (one_line(command)) } }
    }
}

/// A word of a command line: in quotes where a shell would make something else of it.
pub(super) fn shell(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,%@".contains(c);
    let word = one_line(word);
    if !word.is_empty() && word.chars().all(plain) {
        return word;
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// `1 machine`, `12 machines`.
pub(super) fn counted(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}

/// A revision; `nothing` where the plugin is to be absent.
pub(super) fn revision(revision: Option<&str>) -> String {
    revision.map_or_else(|| "nothing".to_owned(), one_line)
}

/// Something that is not there, in a table.
pub(super) fn none() -> Markup {
    html! { span class="quiet" { "–" } }
}

/// A text in a cell; a dash where it is empty.
pub(super) fn cell(text: &str) -> Markup {
    let text = shortened(&one_line(text), CELL);
    if text.is_empty() {
        none()
    } else {
        html! { (text) }
    }
}

/// Labels as they are selected by.
pub(super) fn labels<'a>(pairs: impl IntoIterator<Item = (&'a String, &'a String)>) -> Markup {
    html! {
        @for (key, value) in pairs {
            (badge(&shortened(&one_line(&format!("{key}={value}")), 60), "")) " "
        }
    }
}

/// How many agents stand where, as a bar.
pub(super) fn standings(name: &str, all: &Standings) -> Markup {
    if all.agents == 0 {
        return none();
    }
    slices(name, &standing_slices(all))
}

/// How many agents stand where, the best first.
fn standing_slices(all: &Standings) -> Vec<Slice> {
    let mut found: Vec<(Standing, u64)> =
        all.states.iter().map(|one| (one.state(), one.agents)).collect();
    found.retain(|(state, _)| *state != Standing::Archived);
    found.sort_by_key(|(state, _)| standing::rank(*state));
    let slice = |(state, count)| Slice {
        tone: standing::tone(state),
        name: standing::word(state).to_owned(),
        count,
    };
    found.into_iter().map(slice).collect()
}

/// How old counts are.
pub(super) fn counted_when(index: Option<&Index>, ages: Ages) -> Markup {
    html! {
        @match index {
            None => span class="quiet" { "nobody counted yet" },
            Some(index) => {
                @if index.old { (pill(Tone::Bad, "old")) " " }
                span class="quiet" { "counted " (ago(index.as_of.as_ref(), ages)) }
            }
        }
    }
}

/// Where a page of something named is.
pub(super) fn page_of(kind: &str, name: &str) -> String {
    format!("/console/{kind}{}", query(&[("of", name)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_is_copied_does_what_it_says() {
        assert_eq!(shell("env=prod"), "env=prod");
        assert_eq!(shell("env = prod"), "'env = prod'");
        assert_eq!(shell("$(rm -rf /)"), "'$(rm -rf /)'");
        assert_eq!(shell("it's"), r"'it'\''s'");
        assert_eq!(shell("a\nb"), "'a b'");
        assert_eq!(shell(""), "''");
    }

    #[test]
    fn the_address_of_a_page_holds_any_name() {
        assert_eq!(page_of("agent", "a/../b?c#d"), "/console/agent?of=a%2F..%2Fb%3Fc%23d");
    }
}
