//! The control plane: thousands of agents at once, and very many events of one.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use guest_agent_lab::ControlPlane;
use guest_agent_proto::agent_communication::agent_communication_client::AgentCommunicationClient;
use guest_agent_proto::agent_communication::stream_agent_messages_request::Type as Up;
use guest_agent_proto::agent_communication::stream_agent_messages_response::Type as Down;
use guest_agent_proto::agent_communication::{
    MessageResponse, RegisterConnection, StreamAgentMessagesRequest,
};
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;

use crate::Extent;
use crate::harness::observe::dial;
use crate::harness::{Archive, Bed, PATIENCE, RESOURCE, orders};
use crate::report::{Row, Target};
use crate::samples::Samples;
use crate::told::{REMOVE_FAILED, Told};
use crate::world::{self, Syncs, between, per_second};

const CHANNEL: &str = "compute.googleapis.com/google-guest-agent";

/// Longest that anything here may take.
const MUCH_PATIENCE: Duration = Duration::from_secs(120);

/// Orders in one message, each of which is refused with an event.
const REFUSED: usize = 1_000;

/// The call that makes records durable, once for all that came meanwhile.
const FLUSH: &str = "fdatasync";

pub(crate) async fn measure(program: &Path, extent: Extent) -> Vec<Row> {
    let mut rows = fan_out(extent).await;
    rows.extend(events(program, extent).await);
    rows
}

/// Agents that only have a link, and orders for all of them.
async fn fan_out(extent: Extent) -> Vec<Row> {
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let socket = dir.path().join("cp.sock");
    let control_plane = ControlPlane::builder().listen_unix(&socket).start().await.unwrap();
    let agents = extent.agents;
    let mut links = JoinSet::new();
    let began = Instant::now();
    for number in 0..agents {
        let stream = connect(&socket, &resource(number)).await;
        links.spawn(stream);
    }
    for number in 0..agents {
        control_plane.gateway().wait_connected(&resource(number), PATIENCE).await.unwrap();
    }
    let connected = began.elapsed();

    let archive = Archive {
        name: "echo".to_owned(),
        url: "https://archives.example/echo.tar.gz".to_owned(),
        sha256: "ab".repeat(32),
        entry_point: "bin/echo".to_owned(),
    };
    let mut rates = Samples::default();
    for round in 0..=extent.rounds {
        let began = Instant::now();
        let mut deliveries = JoinSet::new();
        for number in 0..agents {
            let order = orders::install("echo", &format!("r{round}"), &archive).order();
            let states = ConfigurePluginStates { configure_plugins: vec![order] };
            let delivery = control_plane.configure(&resource(number), &states).unwrap();
            deliveries.spawn(delivery.wait(MUCH_PATIENCE));
        }
        while let Some(acknowledged) = deliveries.join_next().await {
            acknowledged.unwrap().unwrap();
        }
        if round > 0 {
            rates.add(per_second(agents, began.elapsed()));
        }
    }
    assert_eq!(control_plane.gateway().agents().len(), agents, "all stayed connected");
    control_plane.shutdown().await;
    links.shutdown().await;
    let count = f64::from(u32::try_from(agents).unwrap());
    let at_once =
        Row::new("control plane: agents connected at once", Samples::once(count), "agents");
    // That fewer were tried says nothing of the target.
    let is_judged = agents >= crate::WHOLE.agents;
    let at_once = if is_judged { at_once.target(Target::AtLeast(5_000.0)) } else { at_once };
    vec![
        at_once.note(format!(
            "on a connection each, connected and registered in {:.1} s; both ends are in one process",
            connected.as_secs_f64()
        )),
        Row::new("control plane: configurations fanned out, one for each agent", rates, "/s")
            .target(Target::AtLeast(2_000.0))
            .note("recorded, sent, received, acknowledged; kept in memory; the agents' ends are in the same process"),
    ]
}

fn resource(number: usize) -> String {
    format!("projects/1/zones/a/instances/{number}")
}

/// An agent reduced to its link: acknowledges whatever comes, until the stream ends.
async fn connect(socket: &Path, resource: &str) -> impl Future<Output = ()> + use<> {
    let (out, frames) = mpsc::channel(8);
    let mut request = Request::new(ReceiverStream::new(frames));
    let metadata = [
        ("authentication", "Bearer token"),
        ("agent-communication-resource-id", resource),
        ("agent-communication-channel-id", CHANNEL),
    ];
    for (name, value) in metadata {
        request.metadata_mut().insert(name, value.parse().unwrap());
    }
    let registration = Up::RegisterConnection(RegisterConnection {
        protocol_version: 1,
        channel_id: CHANNEL.to_owned(),
        resource_id: resource.to_owned(),
    });
    out.send(frame("registration", registration)).await.unwrap();
    let mut client = AgentCommunicationClient::new(dial(socket.to_owned()).await.unwrap());
    let mut inbound = client.stream_agent_messages(request).await.unwrap().into_inner();
    async move {
        while let Ok(Some(message)) = inbound.message().await {
            if let Some(Down::MessageBody(_)) = message.r#type {
                let answer = Up::MessageResponse(MessageResponse { status: None });
                if out.send(frame(&message.message_id, answer)).await.is_err() {
                    return;
                }
            }
        }
    }
}

fn frame(id: &str, content: Up) -> StreamAgentMessagesRequest {
    StreamAgentMessagesRequest { message_id: id.to_owned(), r#type: Some(content) }
}

/// Events as fast as the agent can tell them.
async fn events(program: &Path, extent: Extent) -> Vec<Row> {
    let bed = world::bed(program, &["log.level=error"]).await;
    let (mut rates, mut bare) = (Samples::default(), Samples::default());
    for round in 0..=extent.rounds {
        let took = refusals(&bed, extent.events).await;
        let flushed = flushes(extent.events.min(REFUSED));
        if round > 0 {
            rates.add(per_second(extent.events, took));
            bare.add(per_second(extent.events.min(REFUSED), flushed));
        }
    }
    let syncs = Syncs::count(&bed).await;
    refusals(&bed, extent.events).await;
    let syncs = syncs.map(|syncs| syncs.end(Some(FLUSH)));
    bed.finish().await;
    let events = extent.events;
    let mut rows = vec![
        Row::new(format!("{events} events from the agent to the control plane's acknowledgement"), rates, "/s")
            .beside("storing each alone: sled, flushed and synced", bare)
            .target(Target::AtLeast(5_000.0))
            .note(format!(
                "ordered by messages of {REFUSED} removals of plugins that are not there; judging them is part of it"
            )),
    ];
    rows.extend(syncs.map(|syncs| {
        let each = syncs / f64::from(u32::try_from(events).unwrap());
        Row::new("flushes of the store per event of such a burst", Samples::once(each), "")
            .target(Target::AtMost(0.02))
            .note(format!("calls of {FLUSH}, counted by strace, which slows the agent down"))
    }));
    rows
}

/// Orders what cannot be done and waits until all has been told.
async fn refusals(bed: &Bed, events: usize) -> Duration {
    let mut told = Told::from_now(&bed.control_plane, REMOVE_FAILED).await;
    let mut orders_given = Vec::new();
    let began = SystemTime::now();
    for message in 0..events / REFUSED {
        let names = (0..REFUSED).map(|number| format!("nobody-{message}-{number}"));
        let configure_plugins = names.map(|name| orders::remove(&name)).collect();
        let states = ConfigurePluginStates { configure_plugins };
        orders_given.push(bed.control_plane.configure(RESOURCE, &states).unwrap());
    }
    let all_told = told.times(events, MUCH_PATIENCE).await;
    for given in orders_given {
        given.wait(MUCH_PATIENCE).await.unwrap();
    }
    between(began, all_told)
}

/// The same number of records, made durable one by one as the agent makes them durable.
fn flushes(records: usize) -> Duration {
    let dir = tempfile::tempdir().unwrap();
    let store = sled::Config::new().path(dir.path()).flush_every_ms(None).open().unwrap();
    let database = std::fs::File::open(dir.path().join("db")).unwrap();
    let began = Instant::now();
    for number in 0..records {
        store.insert(number.to_be_bytes(), vec![0x5a_u8; 200]).unwrap();
        store.flush().unwrap();
        database.sync_data().unwrap();
    }
    began.elapsed()
}
