//! What is between agents and gateways: every group of agents has one address, behind which its
//! connections go to any of the gateways, and each of these ways can be slow, hang or be cut.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, tcp};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What every piece is delayed by on a slow way.
const DELAY: Duration = Duration::from_millis(200);

/// What happens to bytes on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// They pass.
    Open,
    /// They pass late.
    Slow,
    /// They are kept, and pass when the way is open again.
    Stalled,
    /// Connections are closed.
    Cut,
}

/// All ways.
pub(crate) struct Proxy {
    /// By group and gateway.
    flows: Arc<Vec<Vec<watch::Sender<Flow>>>>,
    addresses: Vec<SocketAddr>,
    _tasks: JoinSet<()>,
}

// === impl Proxy ===

impl Proxy {
    pub(crate) async fn start(groups: usize, gateways: &[SocketAddr]) -> Self {
        let ways = || gateways.iter().map(|_| watch::Sender::new(Flow::Open)).collect();
        let flows: Arc<Vec<Vec<_>>> = Arc::new((0..groups).map(|_| ways()).collect());
        let (mut addresses, mut tasks) = (Vec::new(), JoinSet::new());
        for group in 0..groups {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            addresses.push(listener.local_addr().unwrap());
            tasks.spawn(accept(listener, group, flows.clone(), gateways.to_vec()));
        }
        Self { flows, addresses, _tasks: tasks }
    }

    /// Where the agents of a group connect.
    pub(crate) fn endpoint(&self, group: usize) -> String {
        format!("https://{}", self.addresses[group])
    }

    pub(crate) fn set(&self, group: usize, gateway: usize, flow: Flow) {
        self.flows[group][gateway].send_replace(flow);
    }

    pub(crate) fn open_all(&self) {
        self.flows.iter().flatten().for_each(|flow| {
            flow.send_replace(Flow::Open);
        });
    }
}

async fn accept(
    listener: TcpListener,
    group: usize,
    flows: Arc<Vec<Vec<watch::Sender<Flow>>>>,
    gateways: Vec<SocketAddr>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = connections.join_next(), if !connections.is_empty() => continue,
        };
        let (client, _) = accepted.unwrap();
        let gateway = rand::random_range(0..gateways.len());
        let flow = flows[group][gateway].subscribe();
        connections.spawn(carry(client, gateways[gateway], flow));
    }
}

/// Carries both directions of a connection until it ends or the way is cut.
async fn carry(client: TcpStream, gateway: SocketAddr, mut flow: watch::Receiver<Flow>) {
    if !pass(&mut flow).await {
        return;
    }
    // The agent sees that its connection is closed.
    let Ok(server) = TcpStream::connect(gateway).await else { return };
    let _no_matter = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = copy(from_client, to_server, flow.clone()) => {}
        () = copy(from_server, to_client, flow.clone()) => {}
        _ = flow.wait_for(|flow| *flow == Flow::Cut) => {}
    }
}

async fn copy(
    mut from: tcp::OwnedReadHalf,
    mut to: tcp::OwnedWriteHalf,
    mut flow: watch::Receiver<Flow>,
) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let Ok(count) = from.read(&mut buffer).await else { return };
        if count == 0 || !pass(&mut flow).await || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Waits until something may pass; false where nothing will.
async fn pass(flow: &mut watch::Receiver<Flow>) -> bool {
    loop {
        let now = *flow.borrow_and_update();
        match now {
            Flow::Open => return true,
            Flow::Slow => {
                tokio::time::sleep(DELAY).await;
                return true;
            }
            Flow::Cut => return false,
            Flow::Stalled => {
                if flow.changed().await.is_err() {
                    return false;
                }
            }
        }
    }
}
