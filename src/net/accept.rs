//! The one accept loop: connections of a listener, as many at once as its caller allows.
//!
//! What becomes of a connection over the bound is the caller's policy, a [`Bound`]: it waits in the
//! kernel's queue, or is accepted and closed. A connection that cannot be accepted, for want of
//! file descriptors most likely, ends nothing: after a pause the next one is accepted.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_stream::Stream;

use super::with_permit::WithPermit;

/// Pause after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// A listener.
pub(crate) trait Listener: Send + 'static {
    /// A connection.
    type Stream: Send + 'static;

    /// The next connection. Nothing is lost when this is dropped before it resolves.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// How many connections there may be at once.
pub(crate) trait Bound<S>: Send + 'static {
    /// Held by a connection until it is closed.
    type Permit: Send + 'static;

    /// Resolves when the next connection may be accepted.
    fn room(&self) -> impl Future<Output = ()> + Send;

    /// The permit of an accepted connection; without one it is closed.
    fn permit(&self, stream: &S) -> Option<Self::Permit>;
}

/// At most so many connections; one more waits where the kernel bounds the queue.
pub(crate) struct Waiting(Arc<Semaphore>);

/// At most so many connections; one more is closed, and its peer is given to `over`.
pub(crate) struct Closing<S> {
    permits: Arc<Semaphore>,
    over: fn(&S),
}

/// As many connections as there are descriptors.
pub(crate) struct Unbounded;

/// Accepts connections of a listener.
pub(crate) struct Acceptor<L, B> {
    listener: L,
    bound: B,
    not_accepted: fn(&io::Error),
    /// After a failure: when the next connection is accepted.
    resume_at: Option<Instant>,
}

// === impl Listener ===

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        UnixListener::accept(self).await.map(|(stream, _)| stream)
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        TcpListener::accept(self).await.map(|(stream, _)| stream)
    }
}

// === impl Bound ===

impl Waiting {
    pub(crate) fn at_most(connections: usize) -> Self {
        Self(Arc::new(Semaphore::new(connections)))
    }
}

impl<S: Sync> Bound<S> for Waiting {
    type Permit = OwnedSemaphorePermit;

    async fn room(&self) {
        // Only the acceptor takes permits, so the one that is free now is free after the accept.
        drop(self.0.acquire().await);
    }

    fn permit(&self, _stream: &S) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_owned().ok()
    }
}

impl<S> Closing<S> {
    pub(crate) fn at_most(connections: usize, over: fn(&S)) -> Self {
        Self { permits: Arc::new(Semaphore::new(connections)), over }
    }
}

impl<S: Sync + 'static> Bound<S> for Closing<S> {
    type Permit = OwnedSemaphorePermit;

    async fn room(&self) {}

    fn permit(&self, stream: &S) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok();
        if permit.is_none() {
            (self.over)(stream);
        }
        permit
    }
}

impl<S: Sync> Bound<S> for Unbounded {
    type Permit = ();

    async fn room(&self) {}

    fn permit(&self, _stream: &S) -> Option<()> {
        Some(())
    }
}

// === impl Acceptor ===

impl<L: Listener, B: Bound<L::Stream>> Acceptor<L, B> {
    /// Nothing is accepted yet. `not_accepted` logs a failure.
    pub(crate) fn new(listener: L, bound: B, not_accepted: fn(&io::Error)) -> Self {
        Self { listener, bound, not_accepted, resume_at: None }
    }

    /// The next connection, with its permit. No connection is lost when this is dropped before it
    /// resolves.
    pub(crate) async fn next(&mut self) -> (L::Stream, B::Permit) {
        loop {
            if let Some(at) = self.resume_at {
                tokio::time::sleep_until(at).await;
                self.resume_at = None;
            }
            self.bound.room().await;
            match self.listener.accept().await {
                Ok(stream) => {
                    if let Some(permit) = self.bound.permit(&stream) {
                        return (stream, permit);
                    }
                }
                Err(error) => {
                    (self.not_accepted)(&error);
                    self.resume_at = Some(Instant::now() + PAUSE);
                }
            }
        }
    }

    /// All connections, for a server that takes a stream of them. It never ends.
    pub(crate) fn incoming(
        self,
    ) -> impl Stream<Item = io::Result<WithPermit<L::Stream, B::Permit>>> + Send
    where
        L: Sync,
        B: Sync,
    {
        futures_util::stream::unfold(self, |mut acceptor| async {
            let (stream, permit) = acceptor.next().await;
            Some((Ok(WithPermit::new(stream, permit)), acceptor))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A listener that fails first, so many times, and counts what it was asked.
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

    fn failing(failures: usize) -> (Failing, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        (Failing { failures, asked: Arc::clone(&asked) }, asked)
    }

    fn unheard(_: &io::Error) {}

    #[tokio::test(start_paused = true)]
    async fn want_of_descriptors_is_waited_out_with_pauses() {
        let (listener, asked) = failing(3);
        let mut acceptor = Acceptor::new(listener, Unbounded, unheard);
        let since = Instant::now();
        assert_eq!(acceptor.next().await.0, 3);
        assert_eq!(since.elapsed(), PAUSE * 3);
        assert_eq!(asked.load(Ordering::SeqCst), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_wait_does_not_shorten_the_pause() {
        let (listener, asked) = failing(1);
        let mut acceptor = Acceptor::new(listener, Unbounded, unheard);
        for _ in 0..3 {
            let soon = tokio::time::timeout(PAUSE / 4, acceptor.next()).await;
            assert!(soon.is_err(), "it pauses");
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        assert_eq!(acceptor.next().await.0, 1);
    }

    #[tokio::test]
    async fn one_too_many_waits_until_another_ends() {
        let (listener, asked) = failing(0);
        let mut acceptor = Acceptor::new(listener, Waiting::at_most(2), unheard);
        let (first, _second) = (acceptor.next().await, acceptor.next().await);
        assert!(futures_util::FutureExt::now_or_never(acceptor.next()).is_none());
        assert_eq!(asked.load(Ordering::SeqCst), 2, "it is left in the kernel's queue");
        drop(first);
        assert_eq!(acceptor.next().await.0, 2);
    }

    #[tokio::test]
    async fn one_too_many_is_closed_and_a_place_that_is_left_is_taken() {
        static CLOSED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
        let over = |stream: &usize| CLOSED.lock().expect("no panic").push(*stream);
        let bound = Closing::at_most(1, over);
        let held = bound.permit(&0).expect("the first one");
        assert!(bound.permit(&1).is_none());
        assert_eq!(*CLOSED.lock().expect("no panic"), [1]);
        drop(held);
        assert!(bound.permit(&2).is_some());
    }

    #[tokio::test]
    async fn connections_of_both_kinds_are_accepted() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.sock");
        let unix = UnixListener::bind(&path).expect("a socket");
        let mut unix = Acceptor::new(unix, Unbounded, unheard);
        let tcp = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = tcp.local_addr().expect("an address");
        let mut tcp = Acceptor::new(tcp, Unbounded, unheard);
        let (_one, _two) = (UnixStream::connect(&path).await, TcpStream::connect(at).await);
        unix.next().await;
        tcp.next().await;
    }
}
