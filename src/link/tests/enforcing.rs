//! A server that counts pings as gRFC A8 says, byte for byte: the HTTP/2 of tonic's server answers
//! every ping and ends no connection over them.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use guest_agent_proto::agent_communication::{
    MessageResponse, StreamAgentMessagesRequest, StreamAgentMessagesResponse,
    stream_agent_messages_response as down,
};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::within;

/// Length of what a client begins with.
const PREFACE: usize = 24;

/// Bad pings that are let pass (A8: MAX_PING_STRIKES).
const STRIKES_MAX: u32 = 2;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const ENHANCE_YOUR_CALM: u32 = 0xb;

/// What the server does.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// Pings that come sooner after each other are bad ones (A8: PERMIT_KEEPALIVE_TIME).
    pub(super) permitted: Duration,
    /// Sends a frame of data so often, if at all.
    pub(super) talks_every: Option<Duration>,
}

/// What the server sees of the connections.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// The agent registered a stream.
    Registered,
    /// A ping arrived.
    Ping,
    /// The server ended the connection because of the pings.
    Complaint,
}

pub(super) struct Enforcing {
    pub(super) endpoint: String,
    seen: mpsc::UnboundedReceiver<Seen>,
    task: tokio::task::JoinHandle<()>,
}

struct Peer {
    stream: TcpStream,
    rules: Rules,
    seen: mpsc::UnboundedSender<Seen>,
    last_ping: Option<Instant>,
    strikes: u32,
}

// === impl Enforcing ===

impl Enforcing {
    pub(super) async fn start(rules: Rules) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (sender, seen) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let seen = sender.clone();
                let peer = Peer { stream, rules, seen, last_ping: None, strikes: 0 };
                tokio::spawn(async move { drop(peer.serve().await) });
            }
        });
        Self { endpoint, seen, task }
    }

    pub(super) async fn sees(&mut self) -> Seen {
        within("the server sees something", self.seen.recv()).await.unwrap()
    }

    /// Whether the client sent frames that it should not send.
    pub(super) fn saw_more(&mut self) -> Option<Seen> {
        self.seen.try_recv().ok()
    }
}

impl Drop for Enforcing {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// === impl Peer ===

impl Peer {
    async fn serve(mut self) -> std::io::Result<()> {
        self.stream.read_exact(&mut [0; PREFACE]).await?;
        self.write(SETTINGS, 0, 0, &[]).await?;
        let mut sent = 0_u64;
        loop {
            let talks_every = self.rules.talks_every.filter(|_| sent > 0);
            let pause = async {
                match talks_every {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            let (mut header, mut first) = ([0; 9], [0; 1]);
            tokio::select! {
                // Waits only for the first byte, so that no frame is read in part.
                ready = self.stream.peek(&mut first) => drop(ready?),
                () = pause => {
                    self.respond("nobody waits for it").await?;
                    continue;
                }
            }
            self.stream.read_exact(&mut header).await?;
            let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
            let mut payload = vec![0; length as usize];
            self.stream.read_exact(&mut payload).await?;
            match (header[3], header[4]) {
                (SETTINGS, 0) => self.write(SETTINGS, ACK, 0, &[]).await?,
                (HEADERS, _) => {
                    // `:status: 200`, then `content-type` by its number in the static table.
                    let mut block = vec![0x88, 0x0f, 0x10, 16];
                    block.extend_from_slice(b"application/grpc");
                    self.write(HEADERS, END_HEADERS, 1, &block).await?;
                }
                (DATA, _) if payload.len() > 5 => {
                    let message = StreamAgentMessagesRequest::decode(&payload[5..]).unwrap();
                    self.respond(&message.message_id).await?;
                    sent += 1;
                    self.seen.send(Seen::Registered).ok();
                }
                (PING, 0) => {
                    self.write(PING, ACK, 0, &payload).await?;
                    self.seen.send(Seen::Ping).ok();
                    if self.is_one_too_many() {
                        let mut goaway = 1_u32.to_be_bytes().to_vec();
                        goaway.extend_from_slice(&ENHANCE_YOUR_CALM.to_be_bytes());
                        goaway.extend_from_slice(b"too_many_pings");
                        self.write(GOAWAY, 0, 0, &goaway).await?;
                        self.seen.send(Seen::Complaint).ok();
                        return self.stream.shutdown().await;
                    }
                }
                _ => {}
            }
        }
    }

    fn is_one_too_many(&mut self) -> bool {
        let now = Instant::now();
        let last = self.last_ping.replace(now);
        if last.is_some_and(|last| now.duration_since(last) < self.rules.permitted) {
            self.strikes += 1;
        }
        self.strikes > STRIKES_MAX
    }

    async fn respond(&mut self, id: &str) -> std::io::Result<()> {
        let response = down::Type::MessageResponse(MessageResponse { status: None });
        let message =
            StreamAgentMessagesResponse { message_id: id.to_owned(), r#type: Some(response) };
        let message = message.encode_to_vec();
        let mut data = vec![0];
        data.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
        data.extend_from_slice(&message);
        self.write(DATA, 0, 1, &data).await
    }

    async fn write(&mut self, kind: u8, flags: u8, id: u32, content: &[u8]) -> std::io::Result<()> {
        let length = u32::try_from(content.len()).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend_from_slice(&id.to_be_bytes());
        frame.extend_from_slice(content);
        self.stream.write_all(&frame).await
    }
}
