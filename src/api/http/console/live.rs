//! Sends the changed parts of a page to all browsers that show it.
//!
//! ```text
//!   roster, events, link, outbox, logs, every few seconds ─► one task per page ─► rendered parts
//!                                                              │ those that changed, once for all
//!                                       browser ◄─ bounded queue ◄─ broadcast
//! ```
//!
//! A task runs only while a browser shows its page: nothing is rendered, and nothing wakes up, for
//! nobody. A browser that falls behind gets the whole page again instead of the changes that it
//! missed.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::response::sse::Event;
use futures_util::Stream;
use guest_agent_actors::model::id::PluginName;
use maud::Markup;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::pieces::Ages;
use super::plugin;
use super::source::Source;
use crate::api::http::access::Keys;
use crate::api::http::session::Sight;

/// Most browsers that follow a page at once.
const WATCHERS_MAX: usize = 16;

/// Changes that wait for one browser. Beyond that it gets the whole page.
const BEHIND_MAX: usize = 8;

/// How often a page is looked at when nothing says that it changed: samples come in between.
const BEAT: Duration = Duration::from_secs(3);

/// Shortest time between two looks at a page. What happens in between is one change.
const PAUSE: Duration = Duration::from_millis(150);

/// Longest that a browser follows a page before it has to connect again, with its token or session.
const FOLLOWED_MAX: Duration = Duration::from_secs(15 * 60);

/// A page that changes, for those who are shown the same of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    /// The first page, with what is looked for on it.
    Overview(String, Sight),
    /// The page of a plugin.
    Plugin(PluginName, Sight),
}

/// All pages that somebody follows.
pub(super) struct Hub {
    source: Source,
    topics: Mutex<BTreeMap<Topic, Arc<Channel>>>,
    seats: Arc<Semaphore>,
    ending: CancellationToken,
}

/// One page and those who follow it.
struct Channel {
    changes: broadcast::Sender<Arc<str>>,
    /// The newest of every part.
    whole: Mutex<Parts>,
}

type Parts = BTreeMap<&'static str, String>;

/// One who follows a page.
pub(super) struct Follower {
    channel: Arc<Channel>,
    changes: broadcast::Receiver<Arc<str>>,
    /// Whether the browser has to get the whole page next.
    is_behind: bool,
    until: Instant,
    ending: CancellationToken,
    /// Change when the browser may have lost its access.
    allowed: (watch::Receiver<()>, watch::Receiver<Arc<Keys>>),
    _seat: OwnedSemaphorePermit,
}

// === impl Hub ===

impl Hub {
    pub(super) fn new(source: Source, ending: CancellationToken) -> Arc<Self> {
        let seats = Arc::new(Semaphore::new(WATCHERS_MAX));
        Arc::new(Self { source, topics: Mutex::default(), seats, ending })
    }

    /// Follows a page; `None` when too many do already.
    pub(super) fn follow(
        self: &Arc<Self>,
        topic: Topic,
        allowed: (watch::Receiver<()>, watch::Receiver<Arc<Keys>>),
    ) -> Option<Follower> {
        let seat = self.seats.clone().try_acquire_owned().ok()?;
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = topics.entry(topic.clone()).or_insert_with(|| {
            let (changes, _) = broadcast::channel(BEHIND_MAX);
            let channel = Arc::new(Channel { changes, whole: Mutex::default() });
            tokio::spawn(self.clone().render(topic, channel.clone()));
            channel
        });
        Some(Follower {
            changes: channel.changes.subscribe(),
            channel: channel.clone(),
            is_behind: true,
            until: Instant::now() + FOLLOWED_MAX,
            ending: self.ending.clone(),
            allowed,
            _seat: seat,
        })
    }

    /// Renders a page again and again, for as long as somebody follows it.
    async fn render(self: Arc<Self>, topic: Topic, channel: Arc<Channel>) {
        let mut wakes = Wakes::new(&self.source);
        loop {
            let parts = self.parts(&topic).await;
            let changed = channel.take(parts);
            if !changed.is_empty() {
                // It fails only when no browser follows any more.
                drop(channel.changes.send(packed(&changed)));
            }
            tokio::select! {
                () = wakes.next() => {}
                () = channel.changes.closed() => {}
                () = self.ending.cancelled() => return,
            }
            let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
            // Nobody can begin to follow while this is looked at.
            if channel.changes.receiver_count() == 0 {
                topics.remove(&topic);
                return;
            }
        }
    }

    async fn parts(&self, topic: &Topic) -> Vec<(&'static str, Markup)> {
        match topic {
            Topic::Overview(filter, sight) => {
                let overview = self.source.overview(filter, *sight).await;
                overview.map(|overview| overview.parts(Ages::Left)).unwrap_or_default()
            }
            Topic::Plugin(name, sight) => match self.source.plugin(name, *sight).await {
                Ok(Some(plugin)) => plugin.parts(Ages::Left),
                Ok(None) => plugin::gone(name),
                Err(_) => Vec::new(),
            },
        }
    }
}

// === impl Channel ===

impl Channel {
    /// Takes rendered parts; returns those that are new.
    fn take(&self, parts: Vec<(&'static str, Markup)>) -> Parts {
        let mut whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = Parts::new();
        for (id, part) in parts {
            let part = part.into_string();
            if whole.get(id) != Some(&part) {
                whole.insert(id, part.clone());
                changed.insert(id, part);
            }
        }
        changed
    }

    /// Everything, if there is something yet.
    fn everything(&self) -> Option<Arc<str>> {
        let whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        (!whole.is_empty()).then(|| packed(&whole))
    }
}

// === impl Follower ===

impl Follower {
    /// The messages to the browser, until it has to connect again.
    pub(super) fn stream(self) -> impl Stream<Item = Result<Event, Infallible>> {
        futures_util::stream::unfold(self, |mut follower| async move {
            let data = follower.next().await?;
            Some((Ok(Event::default().data(&*data)), follower))
        })
    }

    /// The next message; `None` when the stream ends.
    async fn next(&mut self) -> Option<Arc<str>> {
        loop {
            if std::mem::take(&mut self.is_behind)
                && let Some(everything) = self.channel.everything()
            {
                return Some(everything);
            }
            let (sessions, keys) = &mut self.allowed;
            tokio::select! {
                change = self.changes.recv() => match change {
                    Ok(change) => return Some(change),
                    Err(broadcast::error::RecvError::Lagged(_)) => self.is_behind = true,
                    Err(broadcast::error::RecvError::Closed) => return None,
                },
                _ = sessions.changed() => return None,
                _ = keys.changed() => return None,
                () = self.ending.cancelled() => return None,
                () = tokio::time::sleep_until(self.until) => return None,
            }
        }
    }
}

/// Everything that may change a page.
struct Wakes {
    source: Source,
    roster: watch::Receiver<u64>,
    link: watch::Receiver<crate::link::LinkState>,
    depth: watch::Receiver<usize>,
    events: watch::Receiver<()>,
}

// === impl Wakes ===

impl Wakes {
    fn new(source: &Source) -> Self {
        let api = &source.api;
        Self {
            source: source.clone(),
            roster: api.changes.clone(),
            link: api.link.clone(),
            depth: api.outbox.depth.clone(),
            events: source.timeline.watch(),
        }
    }

    /// Resolves when something may have changed, and not too soon after it did before. Whatever
    /// ended changes no more, which the beat makes up for.
    async fn next(&mut self) {
        let logs = self.source.api.logs.clone();
        let changed = async {
            tokio::select! {
                Ok(()) = self.roster.changed() => {}
                Ok(()) = self.link.changed() => {}
                Ok(()) = self.depth.changed() => {}
                Ok(()) = self.events.changed() => {}
                () = logs.written() => {}
                else => std::future::pending().await,
            }
        };
        drop(tokio::time::timeout(BEAT, changed).await);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Parts as they are sent: one JSON object of HTML by id.
fn packed(parts: &Parts) -> Arc<str> {
    serde_json::to_string(parts).unwrap_or_else(|_| "{}".to_owned()).into()
}

#[cfg(test)]
mod tests {
    use maud::html;

    use super::*;

    fn channel() -> Channel {
        Channel { changes: broadcast::channel(BEHIND_MAX).0, whole: Mutex::default() }
    }

    #[test]
    fn only_parts_that_changed_are_sent() {
        let channel = channel();
        assert_eq!(channel.everything(), None);
        let first = channel.take(vec![("a", html! { "1" }), ("b", html! { "1" })]);
        assert_eq!(first.len(), 2);
        assert!(channel.take(vec![("a", html! { "1" }), ("b", html! { "1" })]).is_empty());
        let second = channel.take(vec![("a", html! { "2" }), ("b", html! { "1" })]);
        assert_eq!(packed(&second).as_ref(), r#"{"a":"2"}"#);
        assert_eq!(channel.everything().as_deref(), Some(r#"{"a":"2","b":"1"}"#));
    }

    #[test]
    fn what_is_sent_is_one_line() {
        let channel = channel();
        let changed = channel.take(vec![("log", html! { "a\nb\r\nc\u{2028}" })]);
        assert!(!packed(&changed).contains(['\n', '\r']));
    }
}
