//! What of the plugins the overview shows, and in which order: its query.

use std::cmp::Ordering;

use guest_agent_console_kit::pieces::query;
use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::local::{PluginStatus, VerdictLevel};
use serde::Deserialize;

use super::choice::Choice;
use super::row::Row;
use crate::display::{level, needs_attention, values};

/// Longest filter, in characters.
const FILTER_MAX: usize = 64;

/// What is looked for, as the address of a page says it. What makes no sense counts as nothing.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Query {
    #[serde(default)]
    plugin: String,
    #[serde(default)]
    show: String,
    #[serde(default)]
    sort: String,
}

/// What is shown, and in which order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct View {
    /// A part of the names; empty for all.
    pub(super) filter: String,
    /// Which of them.
    pub(super) show: Show,
    /// The order of those that need no attention.
    pub(super) sort: Sort,
    /// Whether the order is reversed.
    pub(super) reversed: bool,
}

/// Which plugins are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Show {
    #[default]
    All,
    /// Those that somebody has to look at.
    Attention,
    /// Those with a process that does its work.
    Running,
    /// Those that stand still because that is wanted: stopped, or a one-shot that is done.
    AtRest,
    /// Those that a person keeps as they are.
    Held,
    /// Those with work under way.
    Busy,
}

/// What plugins are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sort {
    #[default]
    Name,
    State,
    Cpu,
    Memory,
    Restarts,
    Started,
}

// === impl Show ===

impl Choice for Show {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::All, "", "All"),
        (Self::Attention, "attention", "Need attention"),
        (Self::Running, "running", "Running"),
        (Self::Busy, "busy", "Busy"),
        (Self::Held, "held", "Held"),
        (Self::AtRest, "at-rest", "At rest"),
    ];
}

impl Show {
    /// Whether a plugin is one of these.
    pub(super) fn has(self, plugin: &PluginStatus) -> bool {
        let state = values::state(plugin);
        match self {
            Self::All => true,
            Self::Attention => needs_attention(plugin),
            Self::Running => state == StatusValue::Running,
            Self::AtRest => {
                matches!(state, StatusValue::Stopped | StatusValue::ExecutionCompleted)
            }
            Self::Held => level(plugin) == VerdictLevel::Held || plugin.hold.is_some(),
            Self::Busy => plugin.busy || level(plugin) == VerdictLevel::Busy,
        }
    }
}

// === impl Sort ===

impl Choice for Sort {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Name, "name", "Plugin"),
        (Self::State, "state", "State"),
        (Self::Cpu, "cpu", "CPU"),
        (Self::Memory, "memory", "Memory"),
        (Self::Restarts, "restarts", "Restarts"),
        (Self::Started, "started", "Started"),
    ];
}

impl Sort {
    fn compare(self, one: &Row, other: &Row) -> Ordering {
        let (one_plugin, other_plugin) = (&one.plugin, &other.plugin);
        match self {
            Self::Name => Ordering::Equal,
            Self::State => one_plugin.state.cmp(&other_plugin.state),
            Self::Cpu => {
                let cpu = |row: &Row| row.points.last().map_or(-1.0, |point| point.cpu_percent);
                cpu(one).total_cmp(&cpu(other))
            }
            Self::Memory => one_plugin.memory_bytes.cmp(&other_plugin.memory_bytes),
            Self::Restarts => one_plugin.restarts.cmp(&other_plugin.restarts),
            Self::Started => {
                let at = |plugin: &PluginStatus| {
                    plugin.pid.and(plugin.started_at.as_ref()).map(|at| (at.seconds, at.nanos))
                };
                at(one_plugin).cmp(&at(other_plugin))
            }
        }
    }
}

// === impl View ===

impl From<Query> for View {
    fn from(query: Query) -> Self {
        let filter = query.plugin.trim().chars().take(FILTER_MAX).collect();
        let (reversed, sort) = match query.sort.strip_prefix('-') {
            Some(sort) => (true, sort),
            None => (false, query.sort.as_str()),
        };
        let sort = Sort::of_word(sort);
        Self {
            filter,
            show: Show::of_word(&query.show).unwrap_or_default(),
            sort: sort.unwrap_or_default(),
            reversed: reversed && sort.is_some(),
        }
    }
}

impl View {
    /// Whether a plugin is shown.
    pub(super) fn has(&self, plugin: &PluginStatus) -> bool {
        plugin.name.contains(&self.filter) && self.show.has(plugin)
    }

    /// Puts rows in order; those that are equal by their names.
    pub(super) fn sort(&self, rows: &mut [Row]) {
        rows.sort_by(|one, other| {
            let order = self.sort.compare(one, other);
            let by_name = one.plugin.name.cmp(&other.plugin.name);
            let order = if self.sort == Sort::Name { by_name } else { order };
            let order = if self.reversed { order.reverse() } else { order };
            order.then(by_name)
        });
    }

    /// The view as a query, beside these pairs.
    pub(super) fn query(&self, more: &[(&str, &str)]) -> String {
        let sort = match (self.sort, self.reversed) {
            (Sort::Name, false) => String::new(),
            (sort, false) => sort.word().to_owned(),
            (sort, true) => format!("-{}", sort.word()),
        };
        let own = [("plugin", &*self.filter), ("show", self.show.word()), ("sort", &*sort)];
        query(&[more, &own].concat())
    }

    /// The same plugins in the order of a column: reversed if that is the order already. Numbers begin
    /// with the largest.
    pub(super) fn by(&self, sort: Sort) -> Self {
        let first = matches!(sort, Sort::Cpu | Sort::Memory | Sort::Restarts | Sort::Started);
        let reversed = if self.sort == sort { !self.reversed } else { first };
        Self { sort, reversed, ..self.clone() }
    }

    /// Others of the plugins in this order.
    pub(super) fn of(&self, show: Show) -> Self {
        Self { show, ..self.clone() }
    }

    /// How a column says that the rows are sorted by it.
    pub(super) fn order(&self, sort: Sort) -> Option<&'static str> {
        let order = if self.reversed { "descending" } else { "ascending" };
        (self.sort == sort).then_some(order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(plugin: &str, show: &str, sort: &str) -> View {
        let own = str::to_owned;
        View::from(Query { plugin: own(plugin), show: own(show), sort: own(sort) })
    }

    fn row(name: &str, restarts: u32) -> Row {
        let plugin = PluginStatus { name: name.to_owned(), restarts, ..PluginStatus::default() };
        Row { plugin, points: Vec::new() }
    }

    #[test]
    fn law_a_view_is_what_its_query_says() {
        for &(show, word, _) in Show::ALL {
            for &(sort, by, _) in Sort::ALL {
                for by in [by.to_owned(), format!("-{by}")] {
                    let view = view(" a&b ", word, &by);
                    assert_eq!((view.filter.as_str(), view.show, view.sort), ("a&b", show, sort));
                    let query = view.query(&[("page", "overview")]);
                    assert!(query.starts_with("?page=overview&plugin=a%26b"), "{query}");
                    let says = by != "name";
                    assert_eq!(query.contains(&format!("sort={by}")), says, "{query}");
                }
            }
        }
        let nonsense = view(&"x".repeat(1000), "everything", "-colour");
        assert_eq!(nonsense, View { filter: "x".repeat(FILTER_MAX), ..View::default() });
    }

    #[test]
    fn a_column_sorts_and_sorts_the_other_way_round() {
        let mut rows = [row("b", 1), row("a", 1), row("c", 7)];
        let names =
            |rows: &[Row]| -> String { rows.iter().map(|row| row.plugin.name.as_str()).collect() };
        let view = View::default();
        view.sort(&mut rows);
        assert_eq!(names(&rows), "abc");
        let most = view.by(Sort::Restarts);
        most.sort(&mut rows);
        assert_eq!(
            (names(&rows), most.order(Sort::Restarts)),
            ("cab".to_owned(), Some("descending"))
        );
        let fewest = most.by(Sort::Restarts);
        fewest.sort(&mut rows);
        assert_eq!(names(&rows), "abc");
        view.by(Sort::Name).sort(&mut rows);
        assert_eq!(names(&rows), "cba");
    }
}
