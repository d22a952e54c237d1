//! Messages that were taken lately, so that a redelivery of one is recognized.
//!
//! A message id alone proves nothing: some servers send every message under the same id. The same
//! content under the same id is a redelivery when it comes on another stream, or as often on the
//! same stream as the server had reason to send it again while it waited.
//!
//! The memory is recorded together with the orders, so that an agent which died before it could
//! acknowledge recognizes them when they come again.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::keys::{key_number, number_key};
use crate::model::id::Sha256Digest;
use crate::ports::{Table, Write};

/// A message that comes again after this time is a new one.
pub const WINDOW: Duration = Duration::from_secs(600);

/// A server that has no acknowledgement sends a message again after 2 s; a little less is assumed,
/// because its clock began before ours.
const RESEND_AFTER: Duration = Duration::from_millis(1500);

/// Messages remembered at most.
pub const MAX: usize = 4096;

/// The beginning of the keys of remembered messages, among the facts.
const PREFIX: &[u8] = b"taken/";

/// Stream of messages that an earlier agent process took: before every stream of this one.
const EARLIER_LIFE: u64 = 0;

/// Names a message by its id and its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MessageKey(Sha256Digest);

/// Messages that were taken lately.
#[derive(Debug, Default)]
pub struct Remembered {
    taken: BTreeMap<MessageKey, Taken>,
    order: VecDeque<MessageKey>,
}

/// When a message was taken, and on which stream.
#[derive(Debug)]
struct Taken {
    stream: u64,
    at: SystemTime,
    /// Repetitions on the same stream that are expected, because the acknowledgement came late.
    repetitions: u32,
}

// === impl MessageKey ===

impl MessageKey {
    /// The key of a message with this id and body.
    #[must_use]
    pub fn of(id: &str, body: &[u8]) -> Self {
        // Such an id has no NUL in it; one that had would do no harm.
        Self(Sha256Digest::of(&[id.as_bytes(), b"\0", body].concat()))
    }

    /// Records that the message is taken.
    #[must_use]
    pub fn put(self, at: SystemTime) -> Write {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let value = number_key(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
        Write::Put { table: Table::Facts, key: self.fact(), value }
    }

    /// Records that it is not.
    #[must_use]
    pub fn delete(self) -> Write {
        Write::Delete { table: Table::Facts, key: self.fact() }
    }

    fn fact(self) -> Vec<u8> {
        [PREFIX, self.0.as_bytes()].concat()
    }
}

/// Reads a fact. Returns `None` for a fact about something else.
///
/// # Errors
/// The fact is about a message, and damaged.
pub fn read_fact(key: &[u8], value: &[u8]) -> Result<Option<(MessageKey, SystemTime)>, String> {
    let Some(digest) = key.strip_prefix(PREFIX) else { return Ok(None) };
    let digest = <[u8; 32]>::try_from(digest).map_err(|_| "its key is not a digest".to_owned())?;
    let millis = key_number(value).ok_or("its value is not a time")?;
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(millis)).ok_or("its time is absurd")?;
    Ok(Some((MessageKey(Sha256Digest::from_bytes(digest)), at)))
}

// === impl Remembered ===

impl Remembered {
    /// The messages that an earlier agent process took.
    #[must_use]
    pub fn from_facts(mut facts: Vec<(MessageKey, SystemTime)>) -> Self {
        facts.sort_by_key(|(_, at)| *at);
        let mut remembered = Self::default();
        for (key, at) in facts {
            remembered.insert(key, Taken { stream: EARLIER_LIFE, at, repetitions: 0 });
        }
        remembered
    }

    /// Whether this message was taken before and is a redelivery.
    pub fn knows(&mut self, key: MessageKey, stream: u64, now: SystemTime) -> bool {
        let Some(taken) = self.taken.get_mut(&key) else { return false };
        // A clock that was set back makes a message younger, not older.
        if now.duration_since(taken.at).unwrap_or_default() >= WINDOW {
            return false;
        }
        if taken.stream == stream && taken.repetitions > 0 {
            taken.repetitions -= 1;
            return true;
        }
        // On any other stream: while a newer one takes over, an older one may still deliver.
        taken.stream != stream
    }

    /// Remembers a message that came on `stream` at `at`, and was acknowledged `waited` later.
    pub fn remember(&mut self, key: MessageKey, stream: u64, at: SystemTime, waited: Duration) {
        let repetitions = waited.as_millis() / RESEND_AFTER.as_millis();
        let repetitions = u32::try_from(repetitions).unwrap_or(u32::MAX);
        self.insert(key, Taken { stream, at, repetitions });
    }

    /// Forgets messages that are too old or too many, and returns the writes that follow.
    pub fn forget_old(&mut self, now: SystemTime) -> Vec<Write> {
        let mut writes = Vec::new();
        while let Some(oldest) = self.order.front() {
            let age = self.taken.get(oldest).map(|taken| now.duration_since(taken.at));
            let is_old = age.is_none_or(|age| age.unwrap_or_default() >= WINDOW);
            if !is_old && self.order.len() < MAX {
                break;
            }
            if let Some(key) = self.order.pop_front() {
                self.taken.remove(&key);
                writes.push(key.delete());
            }
        }
        writes
    }

    fn insert(&mut self, key: MessageKey, taken: Taken) {
        if self.taken.insert(key, taken).is_some() {
            self.order.retain(|known| *known != key);
        }
        self.order.push_back(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMPT: Duration = Duration::from_millis(3);

    fn start() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_000_000)
    }

    #[test]
    fn only_the_same_message_on_another_stream_is_a_redelivery() {
        let (a, now) = (MessageKey::of("1", b"a"), start());
        let mut remembered = Remembered::default();
        remembered.remember(a, 7, now, PROMPT);
        assert!(remembered.knows(a, 8, now));
        assert!(remembered.knows(a, 6, now), "it was on its way there when it was sent again");
        assert!(!remembered.knows(a, 7, now), "the same stream may repeat an order");
        assert!(!remembered.knows(MessageKey::of("1", b"b"), 8, now), "ids are not unique");
        assert!(!remembered.knows(MessageKey::of("2", b"a"), 8, now));
        assert!(!remembered.knows(a, 8, now + WINDOW));
    }

    #[test]
    fn a_message_that_waited_long_for_its_acknowledgement_may_come_again_on_its_stream() {
        let (key, now) = (MessageKey::of("1", b"a"), start());
        let mut remembered = Remembered::default();
        remembered.remember(key, 7, now, Duration::from_millis(3500));
        assert!(remembered.knows(key, 7, now), "sent again after 2 s without an answer");
        assert!(remembered.knows(key, 7, now));
        assert!(!remembered.knows(key, 7, now), "from then on the message counts as new");
    }

    #[test]
    fn a_message_of_an_earlier_life_is_known_on_every_stream_of_this_one() {
        let (key, now) = (MessageKey::of("1", b"a"), start());
        let Write::Put { key: fact, value, .. } = key.put(now) else { panic!("it is recorded") };
        let facts = read_fact(&fact, &value).expect("the written fact is read");
        let mut remembered = Remembered::from_facts(facts.into_iter().collect());
        assert!(remembered.knows(key, 1, now + WINDOW / 2));
        assert!(!remembered.knows(key, 1, now + WINDOW));
    }

    #[test]
    fn facts_about_other_things_are_left_alone_and_damaged_ones_are_errors() {
        assert_eq!(read_fact(b"boot_id", b"x"), Ok(None));
        assert!(read_fact(b"taken/short", &[0; 8]).is_err());
        assert!(read_fact(&[PREFIX, &[0; 32]].concat(), b"no time").is_err());
    }

    #[test]
    fn remembered_messages_are_bounded_in_number_and_time() {
        let (mut remembered, now) = (Remembered::default(), start());
        let mut deleted = 0;
        for n in 0..3 * MAX {
            deleted += remembered.forget_old(now).len();
            remembered.remember(MessageKey::of(&n.to_string(), b"x"), 1, now, PROMPT);
        }
        assert_eq!(remembered.taken.len(), MAX);
        assert_eq!(deleted, 2 * MAX);
        assert_eq!(remembered.forget_old(now + WINDOW).len(), MAX);
        assert!(remembered.taken.is_empty() && remembered.order.is_empty());
    }
}
