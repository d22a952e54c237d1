//! The places that the connections of a listener have, shared out among its peers.
//!
//! ```text
//!   accept ─► place? ─┬─ there is room ─────────────────────────► Place ─► Placed (stream)
//!                     ├─ the share, or the whole, is full: the oldest idle connection leaves ─┘
//!                     └─ and nobody is idle ─► the new connection is closed
//! ```
//!
//! A connection is idle until a complete request has come over it; for HTTP and gRPC the head of
//! the request counts. A connection of HTTP is idle again when its answer is sent. So connections
//! that ask for nothing never keep out one that does, and a peer that asks for much uses up its own
//! share only. What a peer is: a user of this machine on a unix socket and over loopback, an
//! address otherwise.
//!
//! A connection that is to leave is first read to its end: what was sent before counts.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::connection_counters::{ConnectionCounters, Counter, Label};
use super::peer_uid;

/// How long an idle connection may take to leave. It has nothing to finish.
const LEAVING_WAIT: Duration = Duration::from_secs(1);

/// Bits of an IPv6 address that tell networks apart.
const NETWORK_BITS: u32 = 64;

/// Who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A user of this machine.
    User(u32),
    /// An address, or for IPv6 its network.
    Address(IpAddr),
}

/// A connection whose peer the kernel knows.
pub trait HasPeer {
    /// `None` when the kernel does not say: the connection is broken.
    fn peer(&self) -> Option<Peer>;
}

/// Most connections at once.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    /// Of all peers together.
    pub all: usize,
    /// Of each peer.
    pub each: usize,
}

/// The places of one listener. Clones share them.
#[derive(Clone, Debug)]
pub struct Shares {
    /// Names the listener in the log.
    listener: &'static str,
    most: Most,
    table: Arc<Table>,
}

/// A place, which is free again when this is dropped.
#[derive(Debug)]
pub struct Place(Arc<Seat>);

/// Says of a connection that it is not idle.
#[derive(Clone, Debug)]
pub struct Requested(Arc<Seat>);

#[derive(Debug, Default)]
struct Table {
    seats: Mutex<Seats>,
    /// A connection left, or is not idle any more.
    changed: Notify,
    counter: Arc<Counter>,
}

/// The connections, the oldest first.
#[derive(Debug, Default)]
struct Seats {
    next: u64,
    all: BTreeMap<u64, Arc<Seat>>,
    by_peer: HashMap<Peer, usize>,
}

/// One connection.
struct Seat {
    number: u64,
    peer: Peer,
    table: Arc<Table>,
    is_idle: AtomicBool,
    /// Its request is answered; it is idle again when the answer is sent.
    is_answered: AtomicBool,
    /// Another connection needs its place.
    is_to_leave: AtomicBool,
    /// Wakes the task that reads from it.
    reader: AtomicWaker,
}

// === impl Shares ===

impl Shares {
    /// So many places of a listener, which the log calls by this name.
    #[must_use]
    pub fn new(listener: &'static str, most: Most) -> Self {
        Self { listener, most, table: Arc::default() }
    }

    /// The same, counted for the metrics. To be called before the first connection comes.
    #[must_use]
    pub fn counted(self, counters: &ConnectionCounters, label: Label) -> Self {
        let counter = counters.of(label, self.most.all);
        Self { table: Arc::new(Table { counter, ..Table::default() }), ..self }
    }

    /// A place for a connection of this peer. Waits for an idle connection to leave where one has
    /// to; `None` when none is idle. To be called by one task.
    pub async fn place(&self, peer: Peer) -> Option<Place> {
        let place = self.find(peer).await;
        if place.is_none() {
            let listener = self.listener;
            tracing::warn!(
                listener, %peer, "too many connections, none of them idle; closes the newest"
            );
        }
        place
    }

    /// The same, for a caller that knows what to do without a place.
    pub async fn find(&self, peer: Peer) -> Option<Place> {
        let deadline = Instant::now() + LEAVING_WAIT;
        loop {
            match self.table.seat(peer, self.most) {
                Ok(place) => return Some(place),
                Err(Some(leaving)) => {
                    let (listener, peer) = (self.listener, leaving.peer);
                    tracing::debug!(listener, %peer, "an idle connection makes room for another");
                    leaving.leave();
                }
                Err(None) => break,
            }
            let changed = self.table.changed.notified();
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                break;
            }
        }
        self.table.counter.refused();
        None
    }

    /// Has the oldest idle connection leave of the peer that has the most.
    pub fn shed(&self) {
        let idle = self.table.seats().idlest();
        if let Some(seat) = idle {
            seat.leave();
        }
    }

    /// Whether a place is one of these.
    pub fn has(&self, place: &Place) -> bool {
        Arc::ptr_eq(&self.table, &place.0.table)
    }
}

// === impl Table ===

impl Table {
    /// A place, or the connection that has to leave first, if there is one.
    fn seat(self: &Arc<Self>, peer: Peer, most: Most) -> Result<Place, Option<Arc<Seat>>> {
        let mut seats = self.seats();
        seats.has_room(peer, most)?;
        let number = seats.next;
        seats.next += 1;
        let seat = Arc::new(Seat {
            number,
            peer,
            table: Arc::clone(self),
            is_idle: AtomicBool::new(true),
            is_answered: AtomicBool::new(false),
            is_to_leave: AtomicBool::new(false),
            reader: AtomicWaker::new(),
        });
        self.counter.opened();
        seats.all.insert(number, Arc::clone(&seat));
        *seats.by_peer.entry(peer).or_default() += 1;
        Ok(Place(seat))
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Seats ===

impl Seats {
    /// Whether there is room for one more; else the connection that has to leave first, if there is
    /// one.
    fn has_room(&self, peer: Peer, most: Most) -> Result<(), Option<Arc<Seat>>> {
        Err(if self.of(peer) >= most.each {
            self.oldest_idle(|seat| seat.peer == peer)
        } else if self.all.len() >= most.all {
            self.idlest()
        } else {
            return Ok(());
        })
    }

    fn of(&self, peer: Peer) -> usize {
        self.by_peer.get(&peer).copied().unwrap_or_default()
    }

    /// The oldest idle connection of the peer that has the most.
    fn idlest(&self) -> Option<Arc<Seat>> {
        let idle = self.all.values().filter(|seat| seat.is_idle());
        let crowd = idle.map(|seat| self.of(seat.peer)).max();
        self.oldest_idle(|seat| Some(self.of(seat.peer)) == crowd)
    }

    fn oldest_idle(&self, may: impl Fn(&Seat) -> bool) -> Option<Arc<Seat>> {
        self.all.values().find(|seat| seat.is_idle() && may(seat)).cloned()
    }
}

// === impl Seat ===

impl Seat {
    fn is_idle(&self) -> bool {
        self.is_idle.load(Ordering::Acquire)
    }

    fn leave(&self) {
        if !self.is_to_leave.swap(true, Ordering::AcqRel) {
            self.table.counter.shed();
        }
        self.reader.wake();
    }
}

impl fmt::Debug for Seat {
    /// Without the table, which has the seat in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, peer, .. } = self;
        f.debug_struct("Seat").field("number", number).field("peer", peer).finish_non_exhaustive()
    }
}

// === impl Place ===

impl Place {
    /// Says later that the connection is not idle any more.
    pub fn requested(&self) -> Requested {
        Requested(Arc::clone(&self.0))
    }

    /// Whether the connection has to leave. If not, the task is woken when it has to.
    pub fn is_to_leave(&self, cx: &Context<'_>) -> bool {
        self.0.reader.register(cx.waker());
        self.left()
    }

    /// All that was written is sent. A connection whose request is answered is idle from now on.
    pub(crate) fn flushed(&self) {
        if self.0.is_answered.swap(false, Ordering::AcqRel) {
            self.0.is_idle.store(true, Ordering::Release);
            // One more may have found nobody idle a moment ago.
            self.0.table.changed.notify_one();
        }
    }

    /// Whether the connection has to leave.
    pub fn left(&self) -> bool {
        self.0.is_to_leave.load(Ordering::Acquire) && self.0.is_idle()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Seat { number, peer, table, .. } = &*self.0;
        table.counter.closed();
        let mut seats = table.seats();
        seats.all.remove(number);
        if let Some(count) = seats.by_peer.get_mut(peer) {
            *count -= 1;
            if *count == 0 {
                seats.by_peer.remove(peer);
            }
        }
        drop(seats);
        table.changed.notify_one();
        // A waker keeps its task in memory.
        drop::<Option<Waker>>(self.0.reader.take());
    }
}

// === impl Requested ===

impl Requested {
    /// A complete request has come.
    pub fn note(&self) {
        self.0.is_answered.store(false, Ordering::Release);
        if self.0.is_idle.swap(false, Ordering::AcqRel) {
            self.0.table.changed.notify_one();
        }
    }

    /// The request is answered: when all of the answer is sent, the connection is idle until the
    /// next request.
    pub fn note_answer(&self) {
        self.0.is_answered.store(true, Ordering::Release);
    }
}

// === impl Peer ===

impl Peer {
    fn of_address(address: IpAddr) -> Self {
        Self::Address(network(address))
    }
}

/// The part of an address that one client has for itself: an IPv4 address, or the network of an IPv6
/// address, because one host mostly has all addresses of it.
#[must_use]
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let network = u128::MAX << (u128::BITS - NETWORK_BITS);
            Ipv6Addr::from_bits(address.to_bits() & network).into()
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(uid) => write!(f, "uid {uid}"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl HasPeer for UnixStream {
    fn peer(&self) -> Option<Peer> {
        self.peer_cred().ok().map(|credentials| Peer::User(credentials.uid()))
    }
}

impl HasPeer for TcpStream {
    fn peer(&self) -> Option<Peer> {
        let peer = self.peer_addr().ok()?;
        // All users of this machine have its loopback addresses.
        let uid = peer.ip().to_canonical().is_loopback().then(|| {
            let own = self.local_addr().ok()?;
            peer_uid::of(own, peer)
        });
        Some(uid.flatten().map_or_else(|| Peer::of_address(peer.ip()), Peer::User))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const MOST: Most = Most { all: 6, each: 4 };

    /// Connections with the number of their peer, the oldest first.
    struct Open {
        shares: Shares,
        places: Vec<(u32, Place)>,
    }

    impl Open {
        fn new() -> Self {
            Self { shares: Shares::new("the test", MOST), places: Vec::new() }
        }

        /// A connection of a peer for which there is room.
        fn comes(&mut self, peer: u32) {
            let place = self.shares.place(Peer::User(peer)).now_or_never();
            self.places.push((peer, place.flatten().expect("there is room")));
        }

        /// The same, that sends a request.
        fn asks(&mut self, peer: u32) {
            self.comes(peer);
            self.places[self.places.len() - 1].1.requested().note();
        }

        /// Which connection has to leave for one of this peer, by its index. It does leave.
        async fn makes_room_for(&mut self, peer: u32) -> Option<usize> {
            let mut leaving = None;
            let place = {
                let placing = self.shares.place(Peer::User(peer));
                tokio::pin!(placing);
                match (&mut placing).now_or_never() {
                    Some(place) => place,
                    None => {
                        let found = self.places.iter().position(|(_, place)| place.left());
                        let index = found.expect("one has to leave");
                        drop(self.places.remove(index));
                        leaving = Some(index);
                        placing.await
                    }
                }
            };
            self.places.push((peer, place?));
            leaving
        }
    }

    #[tokio::test]
    async fn of_a_full_share_the_oldest_idle_connection_leaves() {
        let mut open = Open::new();
        open.asks(1);
        open.comes(2);
        open.comes(1);
        open.comes(1);
        open.comes(1);
        assert_eq!(open.makes_room_for(1).await, Some(2), "not that of 2, nor the one that asked");
        assert_eq!(open.makes_room_for(1).await, Some(2));
    }

    #[tokio::test]
    async fn of_a_full_whole_one_leaves_that_belongs_to_the_peer_with_the_most() {
        let mut open = Open::new();
        for peer in [3, 2, 2, 1, 1, 1] {
            open.comes(peer);
        }
        assert_eq!(open.makes_room_for(4).await, Some(3));
        // Of two that have as many, the older one.
        assert_eq!(open.makes_room_for(5).await, Some(1));
    }

    #[tokio::test]
    async fn many_idle_connections_of_one_peer_never_cost_another_its_own() {
        let mut open = Open::new();
        open.comes(2);
        for _ in 0..200 {
            open.makes_room_for(1).await;
        }
        assert_eq!(open.makes_room_for(3).await, None, "there is room for a third");
        assert_eq!(open.places.len(), MOST.all);
        assert_eq!(open.makes_room_for(4).await, Some(1));
        assert!(open.places.iter().any(|(peer, _)| *peer == 2));
    }

    #[tokio::test]
    async fn where_nobody_is_idle_the_new_one_is_closed_and_a_place_that_is_left_is_taken() {
        let mut open = Open::new();
        (0..MOST.each).for_each(|_| open.asks(1));
        let full = open.shares.place(Peer::User(1)).now_or_never();
        assert!(full.expect("it waits for nobody").is_none());
        open.comes(2);
        open.places.remove(0);
        open.comes(1);
    }

    #[tokio::test]
    async fn one_that_asks_while_it_is_to_leave_stays_and_the_next_idle_one_leaves() {
        let mut open = Open::new();
        (0..MOST.each).for_each(|_| open.comes(1));
        let placing = open.shares.place(Peer::User(1));
        tokio::pin!(placing);
        assert!((&mut placing).now_or_never().is_none());
        let (first, second) = (&open.places[0].1, &open.places[1].1);
        assert!(first.left() && !second.left());
        first.requested().note();
        assert!((&mut placing).now_or_never().is_none());
        assert!(!first.left() && second.left());
        drop(open.places.remove(1));
        assert!(placing.await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_does_not_leave_is_waited_for_a_moment_only() {
        let mut open = Open::new();
        (0..MOST.each).for_each(|_| open.comes(1));
        let since = Instant::now();
        assert!(open.shares.place(Peer::User(1)).await.is_none());
        assert_eq!(since.elapsed(), LEAVING_WAIT);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_are_counted_with_those_that_left_and_those_that_got_no_place() {
        let counters = ConnectionCounters::default();
        let label = Label { listener: "test", places: "usual" };
        let shares = Shares::new("the test", MOST).counted(&counters, label);
        let mut open = Open { shares, places: Vec::new() };
        (0..MOST.each).for_each(|_| open.comes(1));
        assert_eq!(open.makes_room_for(1).await, Some(0));
        for (_, place) in &open.places {
            place.requested().note();
        }
        assert!(open.shares.place(Peer::User(1)).await.is_none());
        open.places.pop();
        let [counted] = counters.now()[..] else { panic!("{:?}", counters.now()) };
        assert_eq!((counted.open, counted.limit), (MOST.each - 1, MOST.all));
        assert_eq!((counted.refused, counted.shed), (1, 1));
    }

    #[test]
    fn a_host_with_a_network_of_its_own_is_one_peer() {
        let of = |text: &str| Peer::of_address(text.parse().expect("an address"));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::2"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
