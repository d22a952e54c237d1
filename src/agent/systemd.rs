//! Reports the state of the agent to the service manager, see sd_notify(3).
//!
//! ```text
//!   agent: reloading, ready again, stopping ─┐
//!   keep_informed: ready, status, watchdog ──┴─► Notifier ─► datagram to $NOTIFY_SOCKET
//! ```
//!
//! The messages are those of the crate `sd-notify`. It cannot send them as this agent must:
//! decision 33 says why.
//!
//! Ready means that the local socket is served, the manager has loaded the saved plugins, and the
//! boot-critical ones among them run or their time is over. WATCHDOG=1 is sent from the runtime on
//! which all actors run, and only while the manager answers: systemd starts an agent that hangs
//! again, and that agent finds its plugins running.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix::Recipient;
use guest_agent_actors::manager::readiness::Readiness;
use guest_agent_actors::messages::ListPlugins;
use guest_agent_actors::model::id::PluginName;
use guest_agent_actors::model::view::Reported;
use guest_agent_actors::ports::StoreHealth;
use sd_notify::NotifyState;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tracing::{debug, info, warn};

use crate::config::Environment;
use crate::link::LinkState;

/// Shortest time between two status lines.
const STATUS_PAUSE: Duration = Duration::from_secs(1);

/// How often the agent sends a message again when the socket's buffer is full, and the pause
/// between.
const TRIES: usize = 10;
const TRY_PAUSE: Duration = Duration::from_millis(20);

/// Notifies the service manager, where there is one. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Notifier(Option<Arc<Way>>);

#[derive(Debug)]
struct Way {
    socket: UnixDatagram,
    address: SocketAddr,
    is_ready: AtomicBool,
}

/// The sources of the reports to the service manager.
#[derive(Clone)]
pub struct Watched {
    /// Lists the running plugins.
    pub list: Recipient<ListPlugins>,
    /// Changes whenever that list changes.
    pub roster: watch::Receiver<u64>,
    /// State of the control-plane link.
    pub link: watch::Receiver<LinkState>,
    /// Health of the store.
    pub store: watch::Receiver<StoreHealth>,
    /// Whether the agent counts as ready.
    pub readiness: watch::Receiver<Readiness>,
}

// === impl Notifier ===

impl Notifier {
    /// The socket of the service manager that the environment names.
    #[must_use]
    pub fn from_environment(environment: &dyn Environment) -> Self {
        let Some(name) = environment.variable("NOTIFY_SOCKET") else { return Self(None) };
        match open(&name) {
            Ok((socket, address)) => {
                Self(Some(Arc::new(Way { socket, address, is_ready: AtomicBool::new(false) })))
            }
            Err(error) => {
                warn!(
                    %error,
                    name,
                    "NOTIFY_SOCKET is not usable; the service manager gets no messages"
                );
                Self(None)
            }
        }
    }

    /// Whether a service manager is there.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.0.is_some()
    }

    /// The agent can be used.
    pub async fn ready(&self) {
        if let Some(way) = &self.0 {
            way.is_ready.store(true, Ordering::Relaxed);
        }
        self.send(&[NotifyState::Ready]).await;
    }

    /// The configuration is being read again. An agent that is not ready yet is starting, not
    /// reloading.
    pub async fn reloading(&self) {
        if self.has_been_ready() {
            match NotifyState::monotonic_usec_now() {
                Ok(now) => self.send(&[NotifyState::Reloading, now]).await,
                // systemd ends a service whose RELOADING=1 comes without the time.
                Err(error) => debug!(%error, "the monotonic clock cannot be read"),
            }
        }
    }

    /// The configuration was read.
    pub async fn reloaded(&self) {
        if self.has_been_ready() {
            self.send(&[NotifyState::Ready]).await;
        }
    }

    /// The agent ends.
    pub async fn stopping(&self) {
        self.send(&[NotifyState::Stopping]).await;
    }

    fn has_been_ready(&self) -> bool {
        self.0.as_ref().is_some_and(|way| way.is_ready.load(Ordering::Relaxed))
    }

    /// Sends one datagram, a line for each state. Never blocks the thread of the actors.
    async fn send(&self, states: &[NotifyState<'_>]) {
        let Some(way) = &self.0 else { return };
        let text = states.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        for _ in 0..TRIES {
            match way.socket.send_to_addr(text.as_bytes(), &way.address) {
                Ok(_) => return,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(TRY_PAUSE).await;
                }
                Err(error) => return debug!(%error, "the service manager got no message"),
            }
        }
        debug!("the service manager has no room for messages");
    }
}

fn open(name: &str) -> std::io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None if name.starts_with('/') => SocketAddr::from_pathname(name)?,
        None => return Err(std::io::ErrorKind::Unsupported.into()),
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

/// How often to send `WATCHDOG=1`: twice in `WATCHDOG_USEC`. Returns `None` when systemd runs no
/// watchdog for this process.
#[must_use]
pub fn watchdog_beat(environment: &dyn Environment) -> Option<Duration> {
    let mine = std::process::id().to_string();
    if environment.variable("WATCHDOG_PID").is_some_and(|pid| pid != mine) {
        return None;
    }
    let usec: u64 = environment.variable("WATCHDOG_USEC")?.parse().ok()?;
    (usec >= 2).then(|| Duration::from_micros(usec / 2))
}

/// Reports to systemd when the agent is ready, its status and, periodically, that it is alive. Runs
/// until the future is dropped.
pub async fn keep_informed(notifier: Notifier, beat: Option<Duration>, watched: Watched) {
    let Watched { list, mut roster, mut link, mut store, mut readiness } = watched;
    // The manager answers this only after it has loaded its plugins.
    if list.send(ListPlugins).await.is_err() {
        return;
    }
    let mut is_ready = false;
    let mut beats = beat.map(interval);
    let mut next_status = Instant::now();
    let mut said = String::new();
    let mut is_news = true;
    loop {
        tokio::select! {
            // The watchdog has precedence.
            biased;
            () = tick(beats.as_mut()) => {
                if answers(&list, beat.unwrap_or_default()).await {
                    notifier.send(&[NotifyState::Watchdog]).await;
                } else {
                    warn!("the manager of the plugins does not answer; sends no WATCHDOG=1");
                }
            }
            ready = becomes_ready(&mut readiness), if !is_ready => {
                // The manager has ended, and the agent will end soon.
                let Some(without) = ready else { return };
                is_ready = true;
                notifier.ready().await;
                info!(without, "the service manager knows that the agent is ready");
            }
            () = tokio::time::sleep_until(next_status), if is_news => {
                roster.mark_unchanged();
                is_news = false;
                next_status = Instant::now() + STATUS_PAUSE;
                let Ok(status) = status(&list, &mut link, &mut store).await else { continue };
                if status != said {
                    notifier.send(&[NotifyState::Status(&status)]).await;
                    said = status;
                }
            }
            changed = roster.changed() => match changed {
                Ok(()) => is_news = true,
                // The manager has ended, and the agent will end soon.
                Err(_) => return,
            },
            // The store outlives this task.
            Ok(()) = store.changed() => is_news = true,
            changed = link.changed() => match changed {
                Ok(()) => is_news = true,
                Err(_) => return,
            },
        }
    }
}

/// Resolves when the agent counts as ready, with the boot-critical plugins that do not run yet.
async fn becomes_ready(readiness: &mut watch::Receiver<Readiness>) -> Option<String> {
    let ready = readiness.wait_for(Readiness::is_ready).await.ok()?;
    match &*ready {
        Readiness::Ready { without } => Some(in_words(without)),
        Readiness::Waiting { on } => Some(in_words(on)),
    }
}

fn in_words(plugins: &[PluginName]) -> String {
    plugins.iter().map(PluginName::as_str).collect::<Vec<_>>().join(" ")
}

fn interval(beat: Duration) -> Interval {
    let mut beats = tokio::time::interval(beat);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beats
}

async fn tick(beats: Option<&mut Interval>) {
    match beats {
        Some(beats) => {
            beats.tick().await;
        }
        None => std::future::pending().await,
    }
}

async fn answers(list: &Recipient<ListPlugins>, within: Duration) -> bool {
    matches!(tokio::time::timeout(within, list.send(ListPlugins)).await, Ok(Ok(_)))
}

/// What the agent is doing, on one line.
async fn status(
    list: &Recipient<ListPlugins>,
    link: &mut watch::Receiver<LinkState>,
    store: &mut watch::Receiver<StoreHealth>,
) -> Result<String, ()> {
    let listed = tokio::time::timeout(STATUS_PAUSE, list.send(ListPlugins)).await;
    let plugins = listed.map_err(drop)?.map_err(drop)?;
    let running = plugins.iter().filter(|listed| listed.view.state == Reported::Running).count();
    let link = match &*link.borrow_and_update() {
        LinkState::Connected { .. } => "connected to the control plane",
        LinkState::Connecting | LinkState::Waiting { .. } => "not connected to the control plane",
        LinkState::Disabled => "no control plane",
    };
    let trouble = store.borrow_and_update().trouble.as_ref().map(|why| format!("; {why}"));
    let trouble = trouble.unwrap_or_default();
    Ok(format!("{running} of {} plugins running; {link}{trouble}", plugins.len()))
}

#[cfg(test)]
mod tests {
    use actix::prelude::*;

    use super::*;
    use crate::config::MapEnvironment;

    /// A manager that answers while the channel holds `true`.
    struct Manager(watch::Receiver<bool>);

    impl Actor for Manager {
        type Context = Context<Self>;
    }

    impl Handler<ListPlugins> for Manager {
        type Result = ResponseFuture<Vec<guest_agent_actors::messages::Listed>>;

        fn handle(&mut self, _: ListPlugins, _: &mut Self::Context) -> Self::Result {
            let mut answers = self.0.clone();
            Box::pin(async move {
                drop(answers.wait_for(|answers| *answers).await);
                Vec::new()
            })
        }
    }

    fn environment(variables: &[(&str, &str)]) -> MapEnvironment {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        MapEnvironment { variables: variables.iter().map(own).collect(), ..Default::default() }
    }

    #[test]
    fn the_watchdog_is_fed_twice_in_its_time_by_the_process_it_watches() {
        let beat = |variables: &[(&str, &str)]| watchdog_beat(&environment(variables));
        assert_eq!(beat(&[("WATCHDOG_USEC", "3000000")]), Some(Duration::from_millis(1500)));
        let mine = std::process::id().to_string();
        assert!(beat(&[("WATCHDOG_USEC", "100"), ("WATCHDOG_PID", &mine)]).is_some());
        assert_eq!(beat(&[("WATCHDOG_USEC", "100"), ("WATCHDOG_PID", "1")]), None);
        for wrong in ["", "0", "1", "-5", "soon"] {
            assert_eq!(beat(&[("WATCHDOG_USEC", wrong)]), None, "{wrong}");
        }
    }

    #[tokio::test]
    async fn without_a_service_manager_nothing_is_sent() {
        for name in ["", "relative", "vsock:2:1", "/nonexistent/socket"] {
            let notifier = Notifier::from_environment(&environment(&[("NOTIFY_SOCKET", name)]));
            notifier.ready().await;
            notifier.stopping().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_manager_that_does_not_answer_is_neither_ready_nor_alive() {
        let name = format!("guest-agent-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("an address");
        let manager_of_services = UnixDatagram::bind_addr(&address).expect("a socket");
        manager_of_services.set_nonblocking(true).expect("set");
        let heard = || {
            let mut bytes = [0; 1024];
            let mut heard = Vec::new();
            while let Ok(read) = manager_of_services.recv(&mut bytes) {
                heard.push(String::from_utf8_lossy(&bytes[..read]).into_owned());
            }
            heard
        };
        let address = format!("@{name}");
        let notifier = Notifier::from_environment(&environment(&[("NOTIFY_SOCKET", &address)]));
        let (answers, may_answer) = watch::channel(false);
        let (_roster, roster) = watch::channel(0);
        let (_link, link) = watch::channel(LinkState::Disabled);
        let (_store, store) = watch::channel(StoreHealth::default());
        let critical = "critical".parse().expect("a name");
        let (ready, readiness) = watch::channel(Readiness::Waiting { on: vec![critical] });
        let beat = Duration::from_secs(5);
        let actors = tokio::task::LocalSet::new();
        let list = actors.run_until(async { Manager(may_answer).start().recipient() }).await;
        let watched = Watched { list, roster, link, store, readiness };
        let informing = actors.spawn_local(keep_informed(notifier.clone(), Some(beat), watched));
        let pass = async |seconds| {
            actors.run_until(tokio::time::sleep(Duration::from_secs(seconds))).await;
        };
        pass(60).await;
        notifier.reloading().await;
        assert_eq!(heard(), [""; 0], "it is not ready, so it does not reload either");
        answers.send_replace(true);
        pass(21).await;
        let waiting = heard();
        assert!(waiting.contains(&"WATCHDOG=1".to_owned()), "it lives while it waits: {waiting:?}");
        assert!(waiting.contains(&"STATUS=0 of 0 plugins running; no control plane".to_owned()));
        assert!(
            !waiting.contains(&"READY=1".to_owned()),
            "a critical plugin is not up: {waiting:?}"
        );
        ready.send_replace(Readiness::Ready { without: Vec::new() });
        pass(21).await;
        let first = heard();
        assert_eq!(first[0], "READY=1");
        let fed = |heard: &[String]| heard.iter().filter(|it| *it == "WATCHDOG=1").count();
        assert!((4..=5).contains(&fed(&first)), "{first:?}");
        answers.send_replace(false);
        pass(60).await;
        assert_eq!(fed(&heard()), 0);
        informing.abort();
    }
}
