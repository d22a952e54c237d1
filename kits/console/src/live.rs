//! Sends the changed parts of a page to all browsers that show it.
//!
//! ```text
//!   what happened, every few seconds ─► one task per page ─► rendered parts
//!                                         │ those that changed, once for all
//!                  browser ◄─ bounded queue ◄─ broadcast
//! ```
//!
//! A task runs only while a browser shows its page: nothing is rendered, and nothing wakes up, for
//! nobody. A browser that falls behind gets the whole page again instead of the changes that it
//! missed.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, Stream, StreamExt};
use maud::Markup;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Most browsers that follow a page at once.
const FOLLOWERS_MAX: usize = 16;

/// Changes that wait for one browser. Beyond that it gets the whole page.
const BEHIND_MAX: usize = 8;

/// How often a page is looked at when nothing says that it changed: samples come in between.
const BEAT: Duration = Duration::from_secs(3);

/// Shortest time between two looks at a page. What happens in between is one change.
const PAUSE: Duration = Duration::from_millis(150);

/// Longest that a browser follows a page before it has to connect again, with its token or session.
const FOLLOWED_MAX: Duration = Duration::from_secs(15 * 60);

/// How often an idle stream sends a comment, so that it is not taken for dead.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The parts of a page that change by themselves, each under its id.
pub type Parts = Vec<(&'static str, Markup)>;

/// The pages of a server, as what changes on them.
pub trait Pages: Send + Sync + 'static {
    /// A page, for those who are shown the same of it.
    type Topic: Clone + Ord + Send + Sync + 'static;

    /// What says that a page may have changed.
    type Changes: Changes;

    /// The parts of a page as they are now; none when they cannot be had.
    fn parts(&self, topic: &Self::Topic) -> impl Future<Output = Parts> + Send;

    /// Says from now on when a page may have changed.
    fn changes(&self) -> Self::Changes;
}

/// What says that pages may have changed.
pub trait Changes: Send + 'static {
    /// Resolves when something may have changed since the last time.
    fn next(&mut self) -> impl Future<Output = ()> + Send;
}

/// All pages that somebody follows.
pub struct Hub<P: Pages> {
    pages: P,
    topics: Mutex<BTreeMap<P::Topic, Arc<Channel>>>,
    seats: Arc<Semaphore>,
    ending: CancellationToken,
}

/// One page and those who follow it.
struct Channel {
    changes: broadcast::Sender<Arc<str>>,
    /// The newest of every part.
    whole: Mutex<Rendered>,
}

type Rendered = BTreeMap<&'static str, String>;

/// One who follows a page.
struct Follower {
    channel: Arc<Channel>,
    changes: broadcast::Receiver<Arc<str>>,
    /// Whether the browser has to get the whole page next.
    is_behind: bool,
    seat: Seat,
}

/// The place of one stream to a browser, and what ends it.
pub struct Seat {
    until: Instant,
    ending: CancellationToken,
    /// Resolves when the browser may have lost its access.
    revoked: BoxFuture<'static, ()>,
    _permit: OwnedSemaphorePermit,
}

// === impl Hub ===

impl<P: Pages> Hub<P> {
    /// A hub for these pages. All streams end with `ending`.
    pub fn new(pages: P, ending: CancellationToken) -> Arc<Self> {
        let seats = Arc::new(Semaphore::new(FOLLOWERS_MAX));
        Arc::new(Self { pages, topics: Mutex::default(), seats, ending })
    }

    /// A place for a stream to a browser; `None` when all are taken. `revoked` resolves when the
    /// browser may have lost its access.
    pub fn seat(&self, revoked: impl Future<Output = ()> + Send + 'static) -> Option<Seat> {
        let permit = self.seats.clone().try_acquire_owned().ok()?;
        Some(Seat {
            until: Instant::now() + FOLLOWED_MAX,
            ending: self.ending.clone(),
            revoked: revoked.boxed(),
            _permit: permit,
        })
    }

    /// The changes of a page as server-sent events, until the seat is lost.
    pub fn follow(self: &Arc<Self>, topic: P::Topic, seat: Seat) -> Response {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        let channel = topics.entry(topic.clone()).or_insert_with(|| {
            let (changes, _) = broadcast::channel(BEHIND_MAX);
            let channel = Arc::new(Channel { changes, whole: Mutex::default() });
            tokio::spawn(self.clone().render(topic, channel.clone()));
            channel
        });
        let changes = channel.changes.subscribe();
        let follower = Follower { changes, channel: channel.clone(), is_behind: true, seat };
        drop(topics);
        events(futures_util::stream::unfold(follower, |mut follower| async move {
            let data = follower.next().await?;
            Some((Event::default().data(&*data), follower))
        }))
    }

    /// Renders a page again and again, for as long as somebody follows it.
    async fn render(self: Arc<Self>, topic: P::Topic, channel: Arc<Channel>) {
        let mut changes = self.pages.changes();
        loop {
            let parts = self.pages.parts(&topic).await;
            let changed = channel.take(parts);
            if !changed.is_empty() {
                // It fails only when no browser follows any more.
                drop(channel.changes.send(packed(&changed)));
            }
            let something = async {
                drop(tokio::time::timeout(BEAT, changes.next()).await);
                tokio::time::sleep(PAUSE).await;
            };
            tokio::select! {
                () = something => {}
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
}

/// A response that streams server-sent events, and a comment whenever it was idle for 15 s.
pub fn events(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let events = events.map(Ok::<_, Infallible>);
    Sse::new(events).keep_alive(KeepAlive::new().interval(HEARTBEAT)).into_response()
}

// === impl Seat ===

impl Seat {
    /// Resolves when the stream has to end: the server ends, the access may be lost, or it is time
    /// to connect again.
    pub async fn lost(&mut self) {
        tokio::select! {
            () = &mut self.revoked => {}
            () = self.ending.cancelled() => {}
            () = tokio::time::sleep_until(self.until) => {}
        }
    }
}

// === impl Channel ===

impl Channel {
    /// Takes rendered parts; returns those that are new.
    fn take(&self, parts: Parts) -> Rendered {
        let mut whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = Rendered::new();
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
    /// The next message; `None` when the stream ends.
    async fn next(&mut self) -> Option<Arc<str>> {
        loop {
            if std::mem::take(&mut self.is_behind)
                && let Some(everything) = self.channel.everything()
            {
                return Some(everything);
            }
            tokio::select! {
                change = self.changes.recv() => match change {
                    Ok(change) => return Some(change),
                    Err(broadcast::error::RecvError::Lagged(_)) => self.is_behind = true,
                    Err(broadcast::error::RecvError::Closed) => return None,
                },
                () = self.seat.lost() => return None,
            }
        }
    }
}

/// Parts as they are sent: one JSON object of HTML by id.
fn packed(parts: &Rendered) -> Arc<str> {
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
