//! The messages that the agent sends to the service manager.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Mutex;
use std::time::Duration;

use guest_agent_proto::agent_controlplane::ExecutionModel;
use nix::sys::signal::Signal;

use crate::harness::{Bed, orders, signal};

/// The other end of `NOTIFY_SOCKET`.
struct ServiceManager {
    socket: UnixDatagram,
    name: String,
    heard: Mutex<Vec<String>>,
}

// === impl ServiceManager ===

impl ServiceManager {
    /// On an abstract address, which `@` stands for.
    fn abstract_one(name: &str) -> Self {
        let name = format!("guest-agent-{name}-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        Self::on(UnixDatagram::bind_addr(&address).unwrap(), format!("@{name}"))
    }

    fn on(socket: UnixDatagram, name: String) -> Self {
        socket.set_nonblocking(true).unwrap();
        Self { socket, name, heard: Mutex::default() }
    }

    /// Everything so far.
    fn heard(&self) -> Vec<String> {
        let mut heard = self.heard.lock().unwrap();
        let mut bytes = [0; 4096];
        while let Ok(read) = self.socket.recv(&mut bytes) {
            heard.push(String::from_utf8(bytes[..read].to_vec()).unwrap());
        }
        heard.clone()
    }

    async fn hears(&self, bed: &Bed, what: &str) {
        bed.until(what, async || self.heard().iter().any(|it| it == what).then_some(())).await;
    }
}

#[tokio::test]
async fn the_agent_is_ready_says_what_it_does_and_stops() {
    let services = ServiceManager::abstract_one("ready");
    let mut bed = Bed::builder().variable("NOTIFY_SOCKET", services.name.clone()).start().await;
    services.hears(&bed, "READY=1").await;
    services.hears(&bed, "STATUS=0 of 0 plugins running; connected to the control plane").await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("a", "1", &echo).order()]).await;
    services.hears(&bed, "STATUS=1 of 1 plugins running; connected to the control plane").await;
    assert!(services.heard().iter().all(|it| !it.starts_with("WATCHDOG")), "none is asked for");
    bed.stop_agent().await;
    assert_eq!(services.heard().last().unwrap(), "STOPPING=1");
    assert_eq!(services.heard().iter().filter(|it| *it == "READY=1").count(), 1);
    bed.finish().await;
}

#[tokio::test]
async fn the_watchdog_is_fed_and_a_stopped_agent_does_not_feed_it() {
    let folder = tempfile::Builder::new().prefix("ga-").tempdir_in("/tmp").unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let services = ServiceManager::on(socket, path.to_string_lossy().into_owned());
    let bed = Bed::builder()
        .variable("NOTIFY_SOCKET", services.name.clone())
        .variable("WATCHDOG_USEC", "200000")
        .start()
        .await;
    let fed = || services.heard().iter().filter(|it| *it == "WATCHDOG=1").count();
    bed.until("the watchdog is fed again and again", async || (fed() > 3).then_some(())).await;
    let agent = bed.agent_pid();
    bed.freeze(agent).await;
    let before = fed();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(fed(), before, "nobody else feeds it");
    signal(bed.agent_pid(), Signal::SIGCONT);
    bed.until("it is fed again", async || (fed() > before).then_some(())).await;
    bed.finish().await;
}

#[tokio::test]
async fn a_reload_is_announced_with_its_time_and_its_end() {
    let services = ServiceManager::abstract_one("reload");
    let bed = Bed::builder().variable("NOTIFY_SOCKET", services.name.clone()).start().await;
    services.hears(&bed, "READY=1").await;
    signal(bed.agent_pid(), Signal::SIGHUP);
    bed.until("it is ready again", async || {
        let ready = services.heard().iter().filter(|it| *it == "READY=1").count();
        (ready == 2).then_some(())
    })
    .await;
    let heard = services.heard();
    let reloading = heard.iter().position(|it| it.starts_with("RELOADING=1\n")).unwrap();
    let time = heard[reloading].strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
    assert!(time.parse::<u64>().unwrap() > 0);
    assert!(heard.iter().rposition(|it| it == "READY=1").unwrap() > reloading, "{heard:?}");
    bed.finish().await;
}

#[tokio::test]
async fn the_agent_is_ready_when_its_boot_critical_plugins_are_or_had_their_chance() {
    let services = ServiceManager::abstract_one("critical");
    let mut bed = Bed::builder().variable("NOTIFY_SOCKET", services.name.clone()).start().await;
    let ready = || services.heard().iter().filter(|it| *it == "READY=1").count();
    services.hears(&bed, "READY=1").await;
    let trouble = bed.trouble().await;
    let critical = |name: &str| {
        orders::install(name, "1", &trouble).manifest(|manifest| {
            manifest.start_timeout = orders::seconds(1.0);
            manifest.start_attempt_count = 1;
            let model = ExecutionModel { boot_critical: true, ..ExecutionModel::default() };
            manifest.execution_model = Some(model);
        })
    };
    bed.configure(vec![critical("good").order()]).await;
    bed.running("good", "1").await;
    bed.kill_agent().await;
    // No service manager receives it, and its next start takes time.
    let pid = bed.processes("good")[0];
    signal(pid, Signal::SIGKILL);
    bed.until("it is dead", async || bed.processes("good").is_empty().then_some(())).await;
    bed.start_agent().await;
    bed.until("it is ready again", async || (ready() == 2).then_some(())).await;
    assert_eq!(bed.status("good").await.unwrap().state, "RUNNING");
    bed.finish().await;
}
