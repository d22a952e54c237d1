//! The data of `top` and the state of its screen. [`Model::update`] is pure: the caller passes the
//! time with each event.

use std::cmp::Ordering;
use std::collections::VecDeque;

use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::local::{AgentStatus, Event, PluginStatus};
use jiff::{SignedDuration, Timestamp};

use super::deed::{Deed, Wish};
use super::feed::{Detail, Update};
use crate::display::{self, values};

/// Events that are kept, and plugins' names in a filter.
pub(super) const EVENTS_MAX: usize = 200;

/// Longest filter.
const FILTER_MAX: usize = 64;

/// Lines that a page key scrolls.
const PAGE: usize = 10;

/// What the plugins are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Order {
    Name,
    State,
    Restarts,
    Cpu,
    Memory,
}

/// The direction of sorting. Downward is the usual one of each column: names from A, load from the
/// highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Usual,
    Reversed,
}

/// The page that the screen shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Face {
    List,
    /// The list, while its filter is written.
    Filter,
    /// The list, while a person is asked whether a deed is meant.
    Asking(Deed),
    /// One plugin, from this line on.
    Detail {
        from: usize,
    },
    Help,
}

/// The connection to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Connecting,
    Connected,
    Lost { why: String, retry_at: Timestamp },
}

/// A key, or another event of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Backspace,
    Interrupt,
    Resized,
}

/// What changes the model.
#[derive(Clone, Debug)]
pub(super) enum Happened {
    Update(Update),
    Pressed(Key),
    Beat,
}

/// Whether `top` keeps running after an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Flow {
    GoOn,
    Quit,
}

/// Everything that a picture shows.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) now: Timestamp,
    pub(super) link: Link,
    pub(super) agent: Option<AgentStatus>,
    /// In the order of the agent's list.
    pub(super) plugins: Vec<PluginStatus>,
    pub(super) events: VecDeque<Event>,
    pub(super) order: Order,
    pub(super) way: Way,
    pub(super) filter: String,
    pub(super) face: Face,
    pub(super) detail: Option<Detail>,
    /// What the agent answered last; until another key is pressed.
    pub(super) notice: Option<String>,
    /// A confirmed deed that was not carried out yet.
    pub(super) wish: Option<Wish>,
    selected: Option<String>,
    /// The row of the selected plugin, for the time after its removal.
    at: usize,
}

// === impl Model ===

impl Model {
    /// A model without data.
    pub(super) fn new(now: Timestamp, order: Order) -> Self {
        Self {
            now,
            link: Link::Connecting,
            agent: None,
            plugins: Vec::new(),
            events: VecDeque::new(),
            order,
            way: Way::Usual,
            filter: String::new(),
            face: Face::List,
            detail: None,
            notice: None,
            wish: None,
            selected: None,
            at: 0,
        }
    }

    /// Updates the model with an event.
    pub(super) fn update(&mut self, happened: Happened, now: Timestamp) -> Flow {
        self.now = now;
        let flow = match happened {
            Happened::Beat => Flow::GoOn,
            Happened::Update(told) => {
                self.told(told);
                Flow::GoOn
            }
            Happened::Pressed(Key::Interrupt) => Flow::Quit,
            Happened::Pressed(key) => self.pressed(key),
        };
        self.settle();
        flow
    }

    fn pressed(&mut self, key: Key) -> Flow {
        if key != Key::Resized {
            self.notice = None;
        }
        match self.face {
            Face::List => return self.pressed_in_list(key),
            Face::Detail { from } => return self.pressed_in_detail(key, from),
            Face::Filter => self.pressed_in_filter(key),
            Face::Asking(deed) => self.answered(deed, key),
            Face::Help if key == Key::Resized => {}
            Face::Help => self.face = Face::List,
        }
        Flow::GoOn
    }

    /// Whether the deed is meant. Only `y` says so.
    fn answered(&mut self, deed: Deed, key: Key) {
        if key == Key::Resized {
            return;
        }
        self.face = Face::List;
        if matches!(key, Key::Char('y' | 'Y'))
            && let Some(name) = self.selected.clone()
        {
            self.wish = Some(Wish { name, deed });
        }
    }

    /// The selected plugin.
    pub(super) fn selected(&self) -> Option<&PluginStatus> {
        let name = self.selected.as_ref()?;
        self.plugins.iter().find(|plugin| plugin.name == *name)
    }

    /// The plugins that are shown, in the order in which they are.
    pub(super) fn visible(&self) -> Vec<&PluginStatus> {
        let wanted = self.filter.to_lowercase();
        let fits = |plugin: &&PluginStatus| {
            plugin.name.to_lowercase().contains(&wanted)
                || plugin.state.to_lowercase().contains(&wanted)
        };
        let mut visible: Vec<_> = self.plugins.iter().filter(fits).collect();
        visible.sort_by(|one, other| {
            let by_column = match self.order {
                Order::Name => Ordering::Equal,
                Order::State => badness(one).cmp(&badness(other)).then(one.state.cmp(&other.state)),
                Order::Restarts => other.restarts.cmp(&one.restarts),
                Order::Cpu => {
                    let cpu = |plugin: &PluginStatus| plugin.cpu_percent.unwrap_or(-1.0);
                    cpu(other).total_cmp(&cpu(one))
                }
                Order::Memory => other.memory_bytes.cmp(&one.memory_bytes),
            };
            let sorted = by_column.then_with(|| one.name.cmp(&other.name));
            match self.way {
                Way::Usual => sorted,
                Way::Reversed => sorted.reverse(),
            }
        });
        visible
    }

    /// Where in the list the selected plugin stands.
    pub(super) fn selection(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.visible().iter().position(|plugin| plugin.name == *selected)
    }

    /// The plugin whose details are wanted.
    pub(super) fn looked_at(&self) -> Option<&str> {
        match self.face {
            Face::Detail { .. } => self.selected.as_deref(),
            Face::List | Face::Filter | Face::Asking(_) | Face::Help => None,
        }
    }

    /// What the detail page shows, line by line: why the plugin is in its state, and what it
    /// printed.
    pub(super) fn detail_lines(&self) -> Vec<&str> {
        let Some(detail) = self.detail.as_ref().filter(|it| Some(&*it.name) == self.looked_at())
        else {
            return vec!["…"];
        };
        let mut lines: Vec<&str> = detail.explained.iter().map(String::as_str).collect();
        lines.push("");
        lines.push(if detail.printed.is_empty() { "it printed nothing" } else { "it printed:" });
        lines.extend(detail.printed.iter().map(String::as_str));
        lines
    }

    fn told(&mut self, told: Update) {
        match told {
            Update::Connected => {
                self.link = Link::Connected;
                self.events.clear();
            }
            Update::Status(status) => {
                self.link = Link::Connected;
                self.agent = status.agent;
                self.plugins = status.plugins;
            }
            Update::Event(event) => {
                if self.events.len() == EVENTS_MAX {
                    self.events.pop_front();
                }
                self.events.push_back(*event);
            }
            Update::Detail(detail) => self.detail = Some(detail),
            Update::Answered(said) => self.notice = Some(said),
            Update::Lost { why, retry_in } => {
                let retry_in = SignedDuration::try_from(retry_in).unwrap_or(SignedDuration::ZERO);
                let retry_at = self.now.checked_add(retry_in).unwrap_or(self.now);
                self.link = Link::Lost { why, retry_at };
            }
        }
    }

    fn pressed_in_list(&mut self, key: Key) -> Flow {
        match key {
            Key::Char('q') => return Flow::Quit,
            Key::Escape if self.filter.is_empty() => return Flow::Quit,
            Key::Escape => self.filter.clear(),
            Key::Char('?' | 'h') => self.face = Face::Help,
            Key::Char('/') => self.face = Face::Filter,
            Key::Char('n') => self.sort_by(Order::Name),
            Key::Char('s') => self.sort_by(Order::State),
            Key::Char('r') => self.sort_by(Order::Restarts),
            Key::Char('c') => self.sort_by(Order::Cpu),
            Key::Char('m') => self.sort_by(Order::Memory),
            Key::Enter if self.selected.is_some() => {
                self.detail = None;
                self.face = Face::Detail { from: 0 };
            }
            Key::Up | Key::Char('k') => self.select(self.at.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.select(self.at + 1),
            Key::PageUp => self.select(self.at.saturating_sub(PAGE)),
            Key::PageDown => self.select(self.at + PAGE),
            Key::Home | Key::Char('g') => self.select(0),
            Key::End | Key::Char('G') => self.select(usize::MAX),
            Key::Char(key) => {
                if let Some(deed) = self.selected().and_then(|plugin| Deed::of(key, plugin)) {
                    self.face = Face::Asking(deed);
                }
            }
            Key::Enter | Key::Backspace | Key::Resized | Key::Interrupt => {}
        }
        Flow::GoOn
    }

    fn pressed_in_filter(&mut self, key: Key) {
        match key {
            Key::Char(c) if self.filter.chars().count() < FILTER_MAX => self.filter.push(c),
            Key::Backspace => drop(self.filter.pop()),
            Key::Enter => self.face = Face::List,
            Key::Escape => {
                self.filter.clear();
                self.face = Face::List;
            }
            Key::Up => self.select(self.at.saturating_sub(1)),
            Key::Down => self.select(self.at + 1),
            Key::Char(_)
            | Key::PageUp
            | Key::PageDown
            | Key::Home
            | Key::End
            | Key::Resized
            | Key::Interrupt => {}
        }
    }

    fn pressed_in_detail(&mut self, key: Key, from: usize) -> Flow {
        let from = match key {
            Key::Char('q') => return Flow::Quit,
            Key::Escape | Key::Backspace => {
                self.face = Face::List;
                return Flow::GoOn;
            }
            Key::Up | Key::Char('k') => from.saturating_sub(1),
            Key::Down | Key::Char('j') => from.saturating_add(1),
            Key::PageUp => from.saturating_sub(PAGE),
            Key::PageDown => from.saturating_add(PAGE),
            Key::Home | Key::Char('g') => 0,
            Key::End | Key::Char('G') => usize::MAX,
            Key::Enter | Key::Char(_) | Key::Resized | Key::Interrupt => from,
        };
        self.face = Face::Detail { from };
        Flow::GoOn
    }

    /// Sorts by another column, or by the same the other way round.
    fn sort_by(&mut self, order: Order) {
        self.way = match self.way {
            Way::Usual if self.order == order => Way::Reversed,
            Way::Usual | Way::Reversed => Way::Usual,
        };
        self.order = order;
    }

    fn select(&mut self, at: usize) {
        let visible = self.visible();
        let at = at.min(visible.len().saturating_sub(1));
        let selected = visible.get(at).map(|plugin| plugin.name.clone());
        (self.selected, self.at) = (selected, at);
    }

    /// Updates the selection and the scroll position after the list changed: a selected plugin
    /// stays selected when its row moves, and its neighbour is selected when it is gone.
    fn settle(&mut self) {
        match self.selection() {
            Some(at) => self.at = at,
            // The page of a removed plugin stays open and says that the plugin was removed.
            None if matches!(self.face, Face::Detail { .. }) => {}
            // The question was about a plugin that is gone.
            None if matches!(self.face, Face::Asking(_)) => {
                self.face = Face::List;
                self.select(self.at);
            }
            None => self.select(self.at),
        }
        if let Face::Detail { from } = self.face {
            let last = self.detail_lines().len().saturating_sub(1);
            self.face = Face::Detail { from: from.min(last) };
        }
    }
}

/// Sorts plugins by state: those that need attention come first.
fn badness(plugin: &PluginStatus) -> (i32, u8) {
    let by_state = match values::state(plugin) {
        StatusValue::Crashed | StatusValue::InstallFailed | StatusValue::ExecutionFailed => 0,
        StatusValue::Installing | StatusValue::Starting | StatusValue::Stopping => 1,
        StatusValue::Stopped => 2,
        StatusValue::Running
        | StatusValue::ExecutionCompleted
        | StatusValue::StateValueUnspecified => 3,
    };
    (display::urgency(plugin), by_state)
}
