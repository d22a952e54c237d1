//! `top`: a live view of all plugins, on a terminal.
//!
//! ```text
//!   agent ─► feed.rs ─────┐
//!   keys ──► screen.rs ───┼─► model.rs: update, pure ─► view.rs, pure ─► screen.rs
//!   time ─────────────────┘        ├─► which plugin is looked at ─► feed.rs
//!                                  └─► what is to be done with one ─► deed.rs
//! ```
//!
//! Without a terminal (a pipe, a file, `--json`), it prints one snapshot instead.

use std::time::Duration;

use guest_agent_proto::local::{GetStatusRequest, StreamEventsRequest};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use self::canvas::Theme;
use self::feed::since;
use self::model::{Flow, Happened, Model, Order};
use self::screen::Screen;
use super::client::{self, Client, Patience};
use super::context::Context;
use super::failure::Failure;
use super::{events, json, status};

pub(super) mod canvas;
mod deed;
mod feed;
pub(super) mod model;
pub(super) mod screen;
mod spark;
#[cfg(test)]
mod tests;
mod view;

/// Events in a snapshot.
const EVENTS_SHOWN: usize = 10;

/// Ages move once a second.
const BEAT: Duration = Duration::from_secs(1);

/// Messages and keys that may wait for the next picture.
const WAITING_MAX: usize = 64;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent top
  guest-agent top --sort memory
  guest-agent top --once
  guest-agent top --json | jq '.plugins[] | select(.state != \"RUNNING\")'

Keys: ? shows all of them; q, Esc and Ctrl-C end it. Where the output is no terminal, and with --once or \
--json, one snapshot is printed.")]
pub(super) struct Flags {
    /// What the plugins are sorted by at first
    #[arg(long, value_enum, default_value_t = Order::Name, value_name = "COLUMN")]
    sort: Order,
    /// Print one snapshot and end
    #[arg(long)]
    once: bool,
}

/// A snapshot, as scripts see it; field names never change.
#[derive(Serialize, JsonSchema)]
pub(super) struct SnapshotJson<'a> {
    /// The agent itself.
    agent: Option<json::Agent<'a>>,
    /// The last events, the oldest first.
    events: Vec<events::EventJson<'a>>,
    /// All plugins.
    plugins: Vec<status::json::Plugin<'a>>,
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let socket = context.socket()?;
    // `top` fails at once when no agent answers at the start, and waits for an agent that goes away
    // later.
    let mut client = client::connect(&socket).await?;
    if flags.once || context.global.json() || context.console.width.is_none() {
        return snapshot(&mut client, context).await;
    }
    drop(client);
    let theme = Theme::new(context.console.colour);
    let now = context.console.now;
    let mut model = Model::new(now(), flags.sort);
    let cannot =
        |error: &std::io::Error| Failure::failed("failed to use the terminal").because(error);
    let mut ends = signals().map_err(|error| cannot(&error))?;
    let (tell, mut told) = mpsc::channel(WAITING_MAX);
    let (look, looked_at) = watch::channel(None);
    let mut screen = Screen::open().map_err(|error| cannot(&error))?;
    let mut keys = screen::keys(WAITING_MAX).map_err(|error| cannot(&error))?;
    let feeding = feed::feed(socket.clone(), now, looked_at, tell.clone());
    tokio::pin!(feeding);
    let mut beat = tokio::time::interval(BEAT);
    loop {
        screen
            .draw(|area, buffer| view::view(&model, theme, area, buffer))
            .map_err(|error| Failure::failed("failed to draw on the terminal").because(&error))?;
        let happened = tokio::select! {
            // Ends only with this loop.
            () = &mut feeding => return Ok(()),
            Some(()) = ends.recv() => return Ok(()),
            _ = beat.tick() => Happened::Beat,
            told = told.recv() => match told {
                Some(told) => Happened::Update(told),
                None => return Ok(()),
            },
            key = keys.recv() => match key {
                Some(key) => Happened::Pressed(key),
                // The terminal was closed.
                None => return Ok(()),
            },
        };
        let mut waiting = vec![happened];
        while let Ok(told) = told.try_recv() {
            waiting.push(Happened::Update(told));
        }
        for happened in waiting {
            if model.update(happened, now()) == Flow::Quit {
                return Ok(());
            }
        }
        if let Some(wish) = model.wish.take() {
            tokio::spawn(deed::carry_out(socket.clone(), wish, tell.clone()));
        }
        look.send_if_modified(|before| {
            let wanted = model.looked_at();
            let is_other = before.as_deref() != wanted;
            *before = wanted.map(str::to_owned);
            is_other
        });
    }
}

/// The signals that end a process in the ordinary way. They are caught, so that the terminal is
/// restored first.
fn signals() -> std::io::Result<mpsc::Receiver<()>> {
    let (came, comes) = mpsc::channel(1);
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
        let (mut signal, came) = (signal(kind)?, came.clone());
        tokio::spawn(async move {
            if signal.recv().await.is_some() {
                let _one_is_on_its_way = came.try_send(());
            }
        });
    }
    Ok(comes)
}

async fn snapshot(client: &mut Client, context: Context<'_, '_>) -> Result<(), Failure> {
    let console = context.console;
    let answer = client.get_status(GetStatusRequest::default()).await?.into_inner();
    let request = StreamEventsRequest {
        since: Some(since((console.now)())),
        ..StreamEventsRequest::default()
    };
    let mut stream = client.stream_events(request).await?.into_inner();
    let mut last = std::collections::VecDeque::new();
    while let Some(event) = client::next(&mut stream, Patience::Soon).await? {
        if last.len() == EVENTS_SHOWN {
            last.pop_front();
        }
        last.push_back(event);
    }
    if context.global.json() {
        let events = last.iter().map(events::EventJson::from).collect();
        return Ok(console.document(&SnapshotJson {
            agent: answer.agent.as_ref().map(json::Agent::from),
            events,
            plugins: status::json::plugins(&answer.plugins),
        })?);
    }
    let text = status::table::overview(
        &answer.plugins.iter().collect::<Vec<_>>(),
        answer.agent.as_ref(),
        console,
    );
    console.text(&text)?;
    if !last.is_empty() {
        console.line("")?;
    }
    for event in &last {
        let line = events::line(event, console);
        console.line(&line)?;
    }
    Ok(())
}
