//! The one accept loop: connections of a listener, as many at once as its caller allows.
//!
//! Which connection gets a place is a [`Bound`]'s decision, most often that of [`Shares`]. One that
//! gets none is closed. A connection that cannot be accepted, most likely for want of file
//! descriptors, ends no other: an idle one leaves, and after a pause the next one is accepted. The
//! last [`descriptors`] are not for connections.

use std::io;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::Instant;
use tokio_stream::Stream;

use super::placed::Placed;
use super::shares::{HasPeer, Place, Shares};
use crate::descriptors::{self, Open};

/// Pause after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// A listener.
pub trait Listener: Send + 'static {
    /// A connection.
    type Stream: Send + 'static;

    /// The next connection. Nothing is lost when this is dropped before it resolves.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// How many connections there may be at once.
pub trait Bound<S>: Send + 'static {
    /// The place of an accepted connection; without one it is closed.
    fn place(&self, stream: &S) -> impl Future<Output = Option<Place>> + Send;

    /// The agent is short of descriptors: has an idle connection leave, if there is one.
    fn shed(&self);
}

/// Accepts connections of a listener.
pub struct Acceptor<L: Listener, B> {
    listener: L,
    bound: B,
    not_accepted: fn(&io::Error),
    /// Accepted, and without a place so far.
    accepted: Option<L::Stream>,
    /// After a failure: when the next connection is accepted.
    resume_at: Option<Instant>,
}

// === impl Listener ===

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        let (stream, _) = UnixListener::accept(self).await?;
        descriptors::check(&stream, Open::ToAll)?;
        Ok(stream)
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = TcpListener::accept(self).await?;
        descriptors::check(&stream, Open::ToAll)?;
        // The end of an answer would wait for the acknowledgement of what was sent before.
        drop(stream.set_nodelay(true));
        Ok(stream)
    }
}

// === impl Bound ===

impl<S: HasPeer + Sync> Bound<S> for Shares {
    async fn place(&self, stream: &S) -> Option<Place> {
        Shares::place(self, stream.peer()?).await
    }

    fn shed(&self) {
        Shares::shed(self);
    }
}

// === impl Acceptor ===

impl<L: Listener, B: Bound<L::Stream>> Acceptor<L, B> {
    /// Nothing is accepted yet. `not_accepted` logs a failure.
    pub fn new(listener: L, bound: B, not_accepted: fn(&io::Error)) -> Self {
        Self { listener, bound, not_accepted, accepted: None, resume_at: None }
    }

    /// The next connection, with its place. No connection is lost when this is dropped before it
    /// resolves.
    pub async fn next(&mut self) -> Placed<L::Stream> {
        loop {
            if let Some(stream) = &self.accepted {
                let place = self.bound.place(stream).await;
                if let (Some(stream), Some(place)) = (self.accepted.take(), place) {
                    return Placed::new(stream, place);
                }
            }
            if let Some(at) = self.resume_at {
                tokio::time::sleep_until(at).await;
                self.resume_at = None;
            }
            match self.listener.accept().await {
                Ok(stream) => self.accepted = Some(stream),
                Err(error) => {
                    (self.not_accepted)(&error);
                    self.bound.shed();
                    self.resume_at = Some(Instant::now() + PAUSE);
                }
            }
        }
    }

    /// All connections, for a server that takes a stream of them. It never ends.
    pub fn incoming(self) -> impl Stream<Item = io::Result<Placed<L::Stream>>> + Send
    where
        L: Sync,
        L::Stream: Sync,
        B: Sync,
    {
        futures_util::stream::unfold(self, |mut acceptor| async {
            let placed = acceptor.next().await;
            Some((Ok(placed), acceptor))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::shares::{Most, Peer};

    /// A listener that fails a number of times first, and counts the calls.
    struct Failing {
        failures: usize,
        asked: Arc<AtomicUsize>,
    }

    impl Listener for Failing {
        type Stream = usize;

        async fn accept(&self) -> io::Result<usize> {
            match self.asked.fetch_add(1, Ordering::SeqCst) {
                asked if asked < self.failures => Err(io::Error::from_raw_os_error(24)),
                asked => Ok(asked),
            }
        }
    }

    impl HasPeer for usize {
        fn peer(&self) -> Option<Peer> {
            Some(Peer::User(0))
        }
    }

    fn failing(failures: usize) -> (Failing, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        (Failing { failures, asked: Arc::clone(&asked) }, asked)
    }

    fn room_for(connections: usize) -> Shares {
        Shares::new("the test", Most { all: connections, each: connections })
    }

    fn unheard(_: &io::Error) {}

    #[tokio::test(start_paused = true)]
    async fn want_of_descriptors_is_waited_out_with_pauses() {
        let (listener, asked) = failing(3);
        let mut acceptor = Acceptor::new(listener, room_for(9), unheard);
        let since = Instant::now();
        assert_eq!(*acceptor.next().await.stream(), 3);
        assert_eq!(since.elapsed(), PAUSE * 3);
        assert_eq!(asked.load(Ordering::SeqCst), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_cannot_be_accepted_has_the_oldest_idle_one_leave() {
        let (listener, _asked) = failing(0);
        let shares = room_for(9);
        let places = [(); 3].map(|()| {
            let place = futures_util::FutureExt::now_or_never(shares.place(Peer::User(0)));
            place.flatten().expect("there is room")
        });
        places[0].requested().note();
        let mut acceptor = Acceptor::new(Failing { failures: 1, ..listener }, shares, unheard);
        acceptor.next().await;
        assert_eq!(places.each_ref().map(|place| place.left()), [false, true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_wait_does_not_shorten_the_pause() {
        let (listener, asked) = failing(1);
        let mut acceptor = Acceptor::new(listener, room_for(9), unheard);
        for _ in 0..3 {
            let soon = tokio::time::timeout(PAUSE / 4, acceptor.next()).await;
            assert!(soon.is_err(), "it pauses");
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        assert_eq!(*acceptor.next().await.stream(), 1);
    }

    #[tokio::test]
    async fn a_connection_that_waits_for_its_place_is_not_lost_with_a_dropped_wait() {
        let (listener, asked) = failing(0);
        let mut acceptor = Acceptor::new(listener, room_for(2), unheard);
        let (first, _second) = (acceptor.next().await, acceptor.next().await);
        for _ in 0..3 {
            assert!(futures_util::FutureExt::now_or_never(acceptor.next()).is_none());
        }
        assert_eq!(asked.load(Ordering::SeqCst), 3, "the others are left in the kernel's queue");
        drop(first);
        assert_eq!(*acceptor.next().await.stream(), 2);
    }

    #[tokio::test]
    async fn one_too_many_is_closed_and_a_place_that_is_left_is_taken() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let connect = || async { UnixStream::connect(&path).await.expect("it listens") };
        let mut acceptor = Acceptor::new(listener, room_for(1), unheard);
        let _first = connect().await;
        let held = acceptor.next().await;
        held.requested().note();
        let mut second = connect().await;
        let read = tokio::select! {
            _ = acceptor.next() => panic!("there is no room"),
            read = second.read_u8() => read,
        };
        assert_eq!(read.expect_err("it is closed").kind(), io::ErrorKind::UnexpectedEof);
        drop(held);
        let _third = connect().await;
        acceptor.next().await;
    }

    #[tokio::test]
    async fn connections_of_both_kinds_are_accepted() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.sock");
        let unix = UnixListener::bind(&path).expect("a socket");
        let mut unix = Acceptor::new(unix, room_for(9), unheard);
        let tcp = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = tcp.local_addr().expect("an address");
        let mut tcp = Acceptor::new(tcp, room_for(9), unheard);
        let (_one, _two) = (UnixStream::connect(&path).await, TcpStream::connect(at).await);
        unix.next().await;
        tcp.next().await;
    }
}
