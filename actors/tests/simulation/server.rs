//! The control plane's side of the stream: messages that are sent until they are acknowledged, in
//! frames that may be slow, doubled or lost.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use guest_agent_actors::fakes::Harness;
use guest_agent_actors::messages::Received;
use guest_agent_actors::ports::{InboundMessage, Receipt};
use guest_agent_actors::wire::FLEET_GENERATION;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::chance::Chance;

/// A message is sent again when it was not acknowledged for this long.
const RESEND: Duration = Duration::from_secs(2);

/// A message with orders.
pub(crate) struct Message {
    pub(crate) id: String,
    pub(crate) body: Vec<u8>,
    /// The plugin that it is for and the number that it has for it, if it is a fleet's.
    pub(crate) number: Option<(String, u64)>,
    sent: Option<(u64, Instant)>,
    /// Frames of it that are on their way.
    frames: Rc<Cell<u32>>,
    /// How often it arrived on each stream.
    pub(crate) arrived: Rc<RefCell<BTreeMap<u64, u32>>>,
}

/// A control plane.
pub(crate) struct Server {
    chance: Chance,
    pub(crate) messages: Vec<Message>,
    /// Where frames of the newest stream go.
    stream: Option<(u64, mpsc::UnboundedSender<Frame>)>,
    /// Streams that are not cut, an older one beside a newer one, and how much is on its way on
    /// each.
    lines: Vec<Line>,
    questions: u64,
    numbers: BTreeMap<String, Numbers>,
}

/// The numbers of the orders for one plugin.
#[derive(Default)]
struct Numbers {
    newest: u64,
    /// Numbers that orders have that come late, after orders with higher ones.
    late: Vec<u64>,
}

/// A stream, as far as frames are on their way on it.
#[derive(Clone, Default)]
struct Line {
    frames: Rc<Cell<usize>>,
    is_cut: Rc<Cell<bool>>,
}

/// What is sent on a stream.
struct Frame {
    delay: Duration,
    message: InboundMessage,
    arrived: Option<Arrived>,
}

/// Notes of a message where it arrived, and that a frame of it less is on its way.
type Arrived = (Rc<RefCell<BTreeMap<u64, u32>>>, OnTheWay);

/// A frame on its way, also when it is dropped.
struct OnTheWay(Rc<Cell<u32>>);

impl Drop for OnTheWay {
    fn drop(&mut self) {
        self.0.update(|frames| frames - 1);
    }
}

// === impl Server ===

impl Server {
    pub(crate) const fn new(chance: Chance) -> Self {
        Self {
            chance,
            messages: Vec::new(),
            stream: None,
            lines: Vec::new(),
            questions: 0,
            numbers: BTreeMap::new(),
        }
    }

    pub(crate) fn order(&mut self, body: Vec<u8>) -> String {
        self.send_later(body, None)
    }

    /// An order of a fleet for one plugin. Some are late: the fleet has given a newer one already.
    pub(crate) fn order_numbered(&mut self, body: Vec<u8>, plugin: &str) -> String {
        let numbers = self.numbers.entry(plugin.to_owned()).or_default();
        let is_late = !numbers.late.is_empty() && self.chance.one_in(3);
        let number = if is_late {
            numbers.late.remove(0)
        } else {
            if self.chance.one_in(3) {
                numbers.newest += 1;
                numbers.late.push(numbers.newest);
            }
            numbers.newest += 1;
            numbers.newest
        };
        self.send_later(body, Some((plugin.to_owned(), number)))
    }

    fn send_later(&mut self, body: Vec<u8>, number: Option<(String, u64)>) -> String {
        let id = format!("order-{}", self.messages.len());
        let arrived = Rc::default();
        let frames = Rc::default();
        self.messages.push(Message { id: id.clone(), body, number, sent: None, frames, arrived });
        id
    }

    /// A stream is registered. What arrives on it is read one after the other.
    pub(crate) async fn connect(&mut self, agent: &Harness) {
        agent.connect().await;
        let stream = agent.world.link.stream();
        let (frames, mut arriving) = mpsc::unbounded_channel::<Frame>();
        let line = Line::default();
        self.lines.push(line.clone());
        agent
            .run(|system| {
                let to = system.control_plane.clone();
                let reader = async move {
                    while let Some(Frame { delay, message, arrived }) = arriving.recv().await {
                        tokio::time::sleep(delay).await;
                        if line.is_cut.get() {
                            return;
                        }
                        if let Some((arrived, _)) = &arrived {
                            *arrived.borrow_mut().entry(stream).or_default() += 1;
                        }
                        if to.send(Received(message)).await.is_err() {
                            return;
                        }
                        line.frames.update(|frames| frames - 1);
                    }
                };
                async move { drop(tokio::task::spawn_local(reader)) }
            })
            .await;
        self.stream = Some((stream, frames));
    }

    /// The stream ends, and what was on its way is lost.
    pub(crate) fn hang_up(&mut self) {
        self.stream = None;
        self.lines.drain(..).for_each(|line| line.is_cut.set(true));
    }

    /// Whether frames are on their way.
    pub(crate) fn is_sending(&self) -> bool {
        self.lines.iter().any(|line| line.frames.get() > 0)
    }

    pub(crate) const fn is_connected(&self) -> bool {
        self.stream.is_some()
    }

    /// Sends what was not acknowledged yet and is due.
    pub(crate) fn send(&mut self, calm: bool, is_acknowledged: impl Fn(&str) -> bool) {
        let Some((stream, frames)) = &self.stream else { return };
        for message in &mut self.messages {
            let due = message.sent.is_none_or(|(on, at)| on != *stream || at.elapsed() >= RESEND);
            if !due || is_acknowledged(&message.id) || message.frames.get() > 0 {
                continue;
            }
            message.sent = Some((*stream, Instant::now()));
            let copies = if !calm && self.chance.one_in(15) { 2 } else { 1 };
            if !calm && self.chance.one_in(15) {
                // Lost.
                continue;
            }
            for _ in 0..copies {
                let slow = !calm && self.chance.one_in(6);
                let delay =
                    if slow { self.chance.time(Duration::from_secs(8)) } else { Duration::ZERO };
                let receipt = Receipt { stream: *stream, message_id: message.id.clone() };
                let kind = "agent_controlplane.ConfigurePluginStates";
                let mut labels = labels(&[("message_type", kind)]);
                if let Some((_, number)) = &message.number {
                    labels.insert(FLEET_GENERATION.to_owned(), number.to_string());
                }
                let inbound = InboundMessage { receipt, labels, body: message.body.clone() };
                message.frames.update(|frames| frames + 1);
                let arrived = Some((message.arrived.clone(), OnTheWay(message.frames.clone())));
                self.lines.last().expect("a stream").frames.update(|frames| frames + 1);
                drop(frames.send(Frame { delay, message: inbound, arrived }));
            }
        }
    }

    /// Asks what runs.
    pub(crate) fn ask(&mut self) {
        let Some((stream, frames)) = &self.stream else { return };
        self.questions += 1;
        let number = self.questions.to_string();
        let receipt = Receipt { stream: *stream, message_id: format!("question-{number}") };
        let kind = "agent_controlplane.ListPluginStates";
        let labels = labels(&[("message_type", kind), ("request_id", &number)]);
        let message = InboundMessage { receipt, labels, body: Vec::new() };
        self.lines.last().expect("a stream").frames.update(|frames| frames + 1);
        drop(frames.send(Frame { delay: Duration::ZERO, message, arrived: None }));
    }
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}
