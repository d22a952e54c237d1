//! Keeps the attributes of the metadata server current, for as long as the agent runs.
//!
//! ```text
//!   Unknown ─► Absent ⇄ (asked again after a wait with jitter, 1 s doubling to 60 s)
//!       └────► Present: the server holds the next question until something changes
//! ```
//!
//! Known attributes stay known while the server does not answer: a rule must not change its result
//! because of that.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use guest_agent_actors::error::Chain;
use guest_agent_serve_kit::backoff::{Backoff, Jitter, Schedule};
use tokio::sync::watch;
use tokio::time::Instant;

use super::error::MetadataError;
use super::tree::{Etag, Fetched, Tree};

/// The waits after failures.
const WAITS: Schedule =
    Schedule::doubling(Duration::from_secs(1), Duration::from_secs(60), Jitter::UpperHalf);

/// The shortest time between two requests, whatever the answer: some servers do not wait.
const LEAST_GAP: Duration = Duration::from_secs(1);

/// The time between two requests to a server that cannot wait for a change.
const POLL: Duration = Duration::from_secs(60);

/// A source of the tree: the metadata server, or a test.
#[async_trait]
pub trait Source: Send + Sync {
    /// The tree, at once, or, with the mark of an earlier one, when it has changed or a while has
    /// passed. One attempt with a deadline of its own.
    async fn tree(&self, known: Option<&Etag>) -> Result<Fetched, MetadataError>;

    /// The address of the source, for people.
    fn address(&self) -> String;
}

/// What the agent knows of the metadata server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The first answer has not arrived yet.
    Unknown,
    /// It has not answered since the agent started.
    Absent {
        /// The reason, for people.
        reason: Arc<str>,
    },
    /// This is the newest answer.
    Present {
        /// Its attributes.
        tree: Arc<Tree>,
        /// Why there is no newer answer, while the server does not answer.
        trouble: Option<Arc<str>>,
    },
}

/// Sends requests for ever. The caller has to run it.
#[must_use = "a watcher does nothing until it runs"]
pub struct Watcher {
    source: Arc<dyn Source>,
    state: watch::Sender<State>,
}

// === impl Watcher ===

impl Watcher {
    /// No request was sent yet.
    pub fn new(source: Arc<dyn Source>) -> Self {
        Self { source, state: watch::Sender::new(State::Unknown) }
    }

    /// The current state and all later ones.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Sends requests until it is dropped.
    pub async fn run(self) {
        let mut known: Option<Etag> = None;
        let mut backoff = Backoff::new(WAITS);
        loop {
            let asked_at = Instant::now();
            match self.source.tree(known.as_ref()).await {
                Ok(Fetched { tree, etag }) => {
                    backoff.reset();
                    self.present(tree);
                    let gap = if etag.is_some() { LEAST_GAP } else { POLL };
                    known = etag;
                    tokio::time::sleep_until(asked_at + gap).await;
                }
                Err(error) => {
                    self.silent(&error);
                    // The server may be another one when it answers again.
                    known = None;
                    tokio::time::sleep(backoff.next(rand::random())).await;
                }
            }
        }
    }

    fn present(&self, tree: Tree) {
        self.state.send_if_modified(|state| {
            let news = match state {
                State::Present { tree: known, trouble: None } => **known != tree,
                State::Present { trouble: Some(_), .. } => {
                    tracing::info!("the metadata server answers again");
                    true
                }
                State::Unknown | State::Absent { .. } => {
                    tracing::info!(server = self.source.address(), "the metadata server answers");
                    true
                }
            };
            if news {
                *state = State::Present { tree: Arc::new(tree), trouble: None };
            }
            news
        });
    }

    fn silent(&self, error: &MetadataError) {
        let reason: Arc<str> = Chain(error).to_string().into();
        self.state.send_if_modified(|state| {
            let next = match state {
                State::Unknown | State::Absent { .. } => State::Absent { reason },
                State::Present { tree, .. } => {
                    State::Present { tree: tree.clone(), trouble: Some(reason) }
                }
            };
            let news = *state != next;
            if news {
                // Most machines have no metadata server, so this is not a warning.
                tracing::info!(
                    server = self.source.address(),
                    reason = %Chain(error),
                    "the metadata server does not answer; the agent asks again, after longer and \
                     longer pauses"
                );
                *state = next;
            }
            news
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    type Script = dyn Fn(u32, Option<&Etag>) -> Result<Fetched, MetadataError> + Send + Sync;

    /// A metadata server that gives the answers of the test, and counts the requests.
    struct Scripted {
        asked: AtomicU32,
        marks: Mutex<Vec<Option<Etag>>>,
        script: Box<Script>,
    }

    #[async_trait]
    impl Source for Scripted {
        async fn tree(&self, known: Option<&Etag>) -> Result<Fetched, MetadataError> {
            self.marks.lock().expect("no panic").push(known.cloned());
            (self.script)(self.asked.fetch_add(1, Ordering::SeqCst), known)
        }

        fn address(&self) -> String {
            "a script".to_owned()
        }
    }

    fn scripted(
        script: impl Fn(u32, Option<&Etag>) -> Result<Fetched, MetadataError> + Send + Sync + 'static,
    ) -> (Arc<Scripted>, watch::Receiver<State>, tokio::task::JoinHandle<()>) {
        let source = Arc::new(Scripted {
            asked: AtomicU32::new(0),
            marks: Mutex::default(),
            script: Box::new(script),
        });
        let watcher = Watcher::new(source.clone());
        let state = watcher.state();
        (source, state, tokio::spawn(watcher.run()))
    }

    fn fetched(role: &str, etag: Option<&str>) -> Fetched {
        let text = serde_json::json!({ "instance": { "attributes": { "role": role } } });
        let tree = Tree::parse(text.to_string().as_bytes()).expect("a tree");
        Fetched { tree, etag: etag.and_then(Etag::new) }
    }

    fn gone() -> MetadataError {
        MetadataError::TimedOut { seconds: 5 }
    }

    #[tokio::test(start_paused = true)]
    async fn an_absent_server_is_asked_for_ever_but_not_often() {
        let (source, state, task) = scripted(|_, _| Err(gone()));
        tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
        let asked = source.asked.load(Ordering::SeqCst);
        // 45 s on average, once the waits have grown.
        assert!((1440..2900).contains(&asked), "{asked} attempts in a day");
        assert!(matches!(&*state.borrow(), State::Absent { reason } if reason.contains("5 s")));
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_appears_late_is_noticed() {
        let (_source, mut state, task) = scripted(|asked, _| match asked {
            0..8 => Err(gone()),
            _ => Ok(fetched("web", None)),
        });
        let present = state.wait_for(|state| matches!(state, State::Present { .. }));
        tokio::time::timeout(Duration::from_secs(600), present)
            .await
            .expect("noticed within ten minutes")
            .expect("the watcher lives");
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_waited_for_with_the_mark_of_the_last_answer() {
        let (source, _state, task) = scripted(|asked, _| match asked {
            0 => Ok(fetched("a", Some("m1"))),
            1 => Ok(fetched("b", Some("m2"))),
            2 => Err(gone()),
            _ => Ok(fetched("b", Some("m3"))),
        });
        tokio::time::sleep(Duration::from_secs(30)).await;
        let marks = source.marks.lock().expect("no panic").clone();
        let expected = [None, Etag::new("m1"), Etag::new("m2"), None, Etag::new("m3")];
        assert_eq!(marks[..5], expected);
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_wait_is_not_hammered() {
        let (source, mut state, task) = scripted(|_, _| Ok(fetched("a", Some("same"))));
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let asked = source.asked.load(Ordering::SeqCst);
        assert!(asked <= 3601, "{asked} questions in an hour");
        state.mark_unchanged();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!state.has_changed().expect("the watcher lives"), "nothing is new");
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_known_stays_known_when_the_server_is_gone() {
        let (_source, state, task) = scripted(|asked, _| match asked {
            0 => Ok(fetched("web", None)),
            _ => Err(gone()),
        });
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let State::Present { tree, trouble } = state.borrow().clone() else {
            panic!("{:?}", *state.borrow())
        };
        assert_eq!(*tree, fetched("web", None).tree);
        assert!(trouble.is_some());
        task.abort();
    }

    #[test]
    fn waits_grow_to_a_minute() {
        for (failures, least, most) in [(0, 500, 1_000), (3, 4_000, 8_000), (99, 30_000, 60_000)] {
            assert_eq!(WAITS.wait(failures, 0.0), Duration::from_millis(least));
            assert_eq!(WAITS.wait(failures, 1.0), Duration::from_millis(most));
        }
    }
}
