//! How long plugins are away: from the order to RUNNING, from a death to the agent's knowledge of
//! it and to RUNNING again.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use guest_agent_proto::plugin_comm::StartRequest;
use guest_agent_proto::plugin_comm::guest_agent_plugin_client::GuestAgentPluginClient;
use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::Extent;
use crate::harness::observe::dial;
use crate::harness::{Archive, Bed, PATIENCE, RESOURCE, orders, signal};
use crate::report::{Row, Target};
use crate::samples::Samples;
use crate::told::STARTED;
use crate::world::{self, bare, between};

/// What a plugin of one round went through.
struct Life {
    ordered_to_running: Duration,
    killed_to_known: Duration,
    killed_to_running: Duration,
}

pub(crate) async fn measure(program: &Path, extent: Extent) -> Vec<Row> {
    let bed =
        world::bed(program, &["log.level=info,guest_agent::process::launch::watch=debug"]).await;
    let archive = bed.archive("plugin.tar.zst", world::plugin()).await;
    let rounds = extent.rounds * 3;
    let [mut ordered, mut known, mut running, mut bare_known, mut bare_start] =
        [(); 5].map(|()| Samples::default());
    for round in 0..=rounds {
        let life = life(&bed, &archive, &format!("p{round}")).await;
        let death = bare_death();
        let start = bare_start_of(&bed.dir().join(format!("bare{round}.sock"))).await;
        // The first fills the cache.
        if round > 0 {
            ordered.add_time(life.ordered_to_running);
            known.add_time(life.killed_to_known);
            running.add_time(life.killed_to_running);
            bare_known.add_time(death);
            bare_start.add_time(start);
        }
    }
    bed.finish().await;
    let start = "its own start: execution to first answer, without an agent";
    vec![
        Row::new("plugin killed → the agent knows", known, "ms")
            .times(1.5, "a thread that only polls a pidfd", bare_known)
            .note("the same program is killed in both; most of the time is the kernel taking it down"),
        Row::new("plugin killed → RUNNING again", running, "ms")
            .plus(30.0, start, bare_start.clone())
            .note(
                "the first crash in a row, until the control plane has been told; a pause of up to 10 ms by plugin, \
                 which keeps plugins that fell together apart, is part of it",
            ),
        Row::new("order given → RUNNING, archive in the cache", ordered, "ms")
            .beside(start, bare_start)
            .target(Target::AtMost(60.0))
            .note("unpacking, syncing and starting included, until the control plane has been told"),
    ]
}

async fn life(bed: &Bed, archive: &Archive, name: &str) -> Life {
    let order = orders::install(name, "1", archive).order();
    let ordered = SystemTime::now();
    bed.configure(vec![order]).await;
    let started = started(bed, name, 0).await;
    let pid = bed.running(name, "1").await.pid.unwrap();

    let killed = SystemTime::now();
    signal(pid, Signal::SIGKILL);
    let again = self::started(bed, name, started.1).await;
    let known = known_at(bed, pid).await;
    bed.configure(vec![orders::remove(name)]).await;
    bed.gone(name).await;
    Life {
        ordered_to_running: between(ordered, started.0),
        killed_to_known: between(killed, known),
        killed_to_running: between(killed, again.0),
    }
}

/// When the control plane received the first STARTED event after the event of this number, and the
/// number of that event.
async fn started(bed: &Bed, name: &str, after: u64) -> (SystemTime, u64) {
    let wanted = |event: &guest_agent_lab::AgentEvent| {
        event.sequence > after && event.event.event_type == STARTED && event.plugin() == name
    };
    let event = bed.control_plane.wait_for_event(RESOURCE, wanted, PATIENCE).await.unwrap();
    (event.received_at, event.sequence)
}

/// When the agent noticed the end of a process, by its log.
async fn known_at(bed: &Bed, pid: u32) -> SystemTime {
    let line = bed
        .until("the agent's log tells of the end", async || {
            let log = bed.log();
            let told = |line: &&str| {
                line.contains("a process ended")
                    && line.split(' ').any(|word| word == format!("pid={pid}"))
            };
            log.lines().rev().find(told).map(str::to_owned)
        })
        .await;
    let time = line.split(' ').next().unwrap();
    let time: jiff::Timestamp = time.parse().unwrap();
    time.into()
}

/// How long a thread that does nothing else takes to learn of the end of a process.
fn bare_death() -> Duration {
    let dir = tempfile::tempdir().unwrap();
    let mut child = bare(&dir.path().join("bare.sock"));
    let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
    let waiting = std::thread::spawn(move || {
        poll(&mut [PollFd::new(&pidfd.as_fd(), PollFlags::IN)], None).unwrap();
        Instant::now()
    });
    // It is asleep by then, as an agent is that has nothing to do; and the plugin has started.
    std::thread::sleep(Duration::from_millis(30));
    let killed = Instant::now();
    signal(child.id(), Signal::SIGKILL);
    let known = waiting.join().unwrap();
    child.wait().unwrap();
    known.duration_since(killed)
}

/// How long the plugin takes from its execution to its first answer without an agent.
async fn bare_start_of(socket: &Path) -> Duration {
    let began = Instant::now();
    let mut child = bare(socket);
    let channel = loop {
        match dial(socket.to_owned()).await {
            Ok(channel) => break channel,
            Err(_) if began.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Err(error) => panic!("the plugin does not listen: {error}"),
        }
    };
    let mut client = GuestAgentPluginClient::new(channel);
    client.start(StartRequest::default()).await.unwrap();
    let took = began.elapsed();
    child.kill().unwrap();
    child.wait().unwrap();
    drop(std::fs::remove_file(socket));
    took
}
