//! The least that looking after plugins could cost: a thread that asks each for its health, over
//! connections that stay open.
//!
//! It has no actors, deadlines, metrics or records. `fleet` holds an agent against it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use guest_agent_proto::plugin_comm::GetStatusRequest;
use guest_agent_proto::plugin_comm::guest_agent_plugin_client::GuestAgentPluginClient;
use nix::time::{ClockId, clock_gettime};
use tonic::transport::Channel;

use crate::harness::observe::dial;
use crate::world;

/// How often an agent asks.
pub(crate) const INTERVAL: Duration = Duration::from_secs(10);

/// At so many moments of an interval, as an agent does: a few plugins together.
const MOMENTS: u32 = 10;

/// How much of one core it takes to ask those who listen here, in percent.
pub(crate) async fn cpu_share(sockets: Vec<PathBuf>, look: Duration) -> f64 {
    let asking = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let clients: Vec<_> = join_all(sockets.into_iter().map(connect)).await;
            let (began, before) = (Instant::now(), own_time());
            ask(&clients, look).await;
            world::percent(own_time() - before, began.elapsed())
        })
    };
    // A thread of its own, whose time is its alone.
    tokio::task::spawn_blocking(asking).await.unwrap()
}

async fn connect(socket: PathBuf) -> GuestAgentPluginClient<Channel> {
    let client = GuestAgentPluginClient::new(dial(socket).await.unwrap());
    // What a first call needs is there from now on.
    check(&client).await;
    client
}

async fn ask(clients: &[GuestAgentPluginClient<Channel>], look: Duration) {
    let together = clients.len().div_ceil(usize::try_from(MOMENTS).unwrap());
    let mut beat = tokio::time::interval(INTERVAL / MOMENTS);
    let end = tokio::time::Instant::now() + look;
    for some in clients.chunks(together).cycle() {
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(end) => return,
            _ = beat.tick() => {}
        }
        join_all(some.iter().map(check)).await;
    }
}

async fn check(client: &GuestAgentPluginClient<Channel>) {
    // Another handle of the same connection.
    client.clone().get_status(GetStatusRequest::default()).await.unwrap();
}

/// The CPU time of this thread.
fn own_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}
