//! Keeps one registered stream until the link is closed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::backoff::Backoff;
use super::config::{LinkConfig, LinkListener};
use super::session::{self, Live};
use super::shared::{LinkState, Shared};
use super::status::StreamEnd;

/// The end of a link that the caller has to run. Dropping it, or the future of [`LinkTask::run`],
/// cuts every stream at once.
#[must_use = "a link does nothing until its task runs"]
pub struct LinkTask {
    config: LinkConfig,
    listener: Arc<dyn LinkListener>,
    shared: Arc<Shared>,
    backoff: Backoff,
    next_stream: u64,
    /// Streams that were replaced and wait for their outstanding acknowledgements.
    retiring: JoinSet<()>,
}

/// Why a stream is not served any more.
enum Served {
    /// It ended.
    Ended(StreamEnd),
    /// The link is closed.
    Closed,
}

/// What comes after a stream.
enum Next {
    /// The stream that replaces it.
    Replaced(Live),
    /// Nothing yet: the stream ended.
    Ended(StreamEnd),
    /// The link is closed.
    Closed,
}

// === impl LinkTask ===

impl LinkTask {
    pub(super) fn new(
        config: LinkConfig,
        listener: Arc<dyn LinkListener>,
        shared: Arc<Shared>,
    ) -> Self {
        let backoff = Backoff::new(config.timings.backoff);
        Self { config, listener, shared, backoff, next_stream: 1, retiring: JoinSet::new() }
    }

    /// Keeps the link connected until [`super::Link::close`] is called. Needs a tokio runtime.
    pub async fn run(mut self) {
        let mut closing = self.shared.closing.subscribe();
        loop {
            self.shared.state.send_replace(LinkState::Connecting);
            let opened = tokio::select! {
                opened = self.open() => opened,
                () = closed(&mut closing) => break,
            };
            let end = match opened {
                Ok(live) => match self.serve(live, &mut closing).await {
                    Served::Ended(end) => end,
                    Served::Closed => break,
                },
                Err(end) => end,
            };
            if !self.wait(&end, &mut closing).await {
                break;
            }
        }
        while self.retiring.join_next().await.is_some() {}
        // Dropping sets the state.
    }

    async fn open(&mut self) -> Result<Live, StreamEnd> {
        let number = self.next_stream;
        self.next_stream += 1;
        let opened =
            session::open(&self.config, number, &self.listener, &self.shared.streams).await;
        opened.inspect_err(|end| self.config.heed(end))
    }

    /// Waits before the next attempt; returns false when the link was closed meanwhile.
    async fn wait(&mut self, end: &StreamEnd, closing: &mut watch::Receiver<bool>) -> bool {
        let wait = wait_after(end, &mut self.backoff);
        let reason = end.reason();
        tracing::info!(
            endpoint = %self.config.endpoint,
            reason,
            wait_ms = wait.as_millis(),
            "the control plane is not connected"
        );
        let until = SystemTime::now() + wait;
        self.shared.state.send_replace(LinkState::Waiting { reason, until });
        tokio::select! {
            () = tokio::time::sleep(wait) => true,
            () = closed(closing) => false,
        }
    }

    /// Makes the stream the current one, replaces it when it grows old, and returns when it ends.
    async fn serve(&mut self, mut live: Live, closing: &mut watch::Receiver<bool>) -> Served {
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        self.shared.state.send_replace(LinkState::Connected {
            since: SystemTime::now(),
            endpoint: self.config.endpoint.to_string(),
        });
        self.make_current(&live);
        loop {
            let replacement = match self.replacement(&mut live, closing).await {
                Next::Replaced(replacement) => replacement,
                Next::Ended(end) => return self.lost(&live, end),
                Next::Closed => return self.part(live),
            };
            self.backoff.lived(live.accepted.elapsed());
            let old = std::mem::replace(&mut live, replacement);
            self.make_current(&live);
            // At most one is added each hour, and each ends within seconds. Their results do not
            // matter.
            while self.retiring.try_join_next().is_some() {}
            self.retiring.spawn(old.retire());
        }
    }

    /// Opens the stream that replaces `live` when that has grown old. Failures do not matter while
    /// the old one lives.
    async fn replacement(&mut self, live: &mut Live, closing: &mut watch::Receiver<bool>) -> Next {
        // Spreads the agents of a site over several minutes.
        let age = self.config.timings.max_age.mul_f64(1.0 - 0.1 * rand::random::<f64>());
        let mut wait = age.saturating_sub(live.accepted.elapsed());
        let mut backoff = Backoff::new(self.config.timings.backoff);
        loop {
            tokio::select! {
                end = live.ended() => return Next::Ended(end),
                () = closed(closing) => return Next::Closed,
                () = tokio::time::sleep(wait) => {}
            }
            match self.replace(live, closing).await {
                Ok(next) => return next,
                Err(end) => {
                    wait = wait_after(&end, &mut backoff);
                    tracing::debug!(reason = end.reason(), "the stream could not be replaced yet");
                }
            }
        }
    }

    /// Tries once to open the stream that takes the place of `live`. An error leaves `live` as it
    /// is. A server may end the old stream as soon as it accepts the new one, and that end may
    /// arrive before the acceptance. So the end counts as a loss only after the attempt failed,
    /// which it does within the time of a registration.
    async fn replace(
        &mut self,
        live: &mut Live,
        closing: &mut watch::Receiver<bool>,
    ) -> Result<Next, StreamEnd> {
        let mut ended = None;
        let mut opening = std::pin::pin!(self.open());
        let opened = loop {
            tokio::select! {
                opened = &mut opening => break opened,
                () = closed(closing) => return Ok(Next::Closed),
                end = live.ended(), if ended.is_none() => ended = Some(end),
            }
        };
        match (opened, ended) {
            (Ok(replacement), _) => Ok(Next::Replaced(replacement)),
            (Err(_), Some(end)) => Ok(Next::Ended(end)),
            (Err(end), None) => Err(end),
        }
    }

    fn make_current(&self, live: &Live) {
        self.shared.streams().current = Some(Arc::clone(&live.session));
        tracing::info!(
            endpoint = %self.config.endpoint,
            stream = live.session.number,
            "connected to the control plane"
        );
        self.listener.connected(live.session.number, live.session.server);
    }

    fn lost(&mut self, live: &Live, end: StreamEnd) -> Served {
        self.config.heed(&end);
        self.backoff.lived(live.accepted.elapsed());
        self.shared.streams().current = None;
        self.listener.disconnected(end.reason());
        Served::Ended(end)
    }

    fn part(&mut self, live: Live) -> Served {
        self.shared.streams().current = None;
        self.retiring.spawn(live.retire());
        self.listener.disconnected("the link was closed".to_owned());
        Served::Closed
    }
}

impl Drop for LinkTask {
    fn drop(&mut self) {
        self.shared.streams().current = None;
        self.shared.state.send_replace(LinkState::Disabled);
    }
}

/// How long to wait after a stream, or an attempt to open one, ended like this.
fn wait_after(end: &StreamEnd, backoff: &mut Backoff) -> Duration {
    match end.retry_after {
        Some(asked) => Backoff::asked(asked, rand::random()),
        None => backoff.next(end.severity(), rand::random()),
    }
}

async fn closed(closing: &mut watch::Receiver<bool>) {
    // The sender is in what this task shares, so it outlives the wait.
    drop(closing.wait_for(|&closing| closing).await);
}
