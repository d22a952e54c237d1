//! What the agent and its configuration say.

use std::fmt::Write as _;

use guest_agent_proto::local::{ExplainRequest, StreamEventsRequest, StreamLogsRequest};

use super::super::client::{self, Client, Patience};
use super::super::context::{Context, JsonForm};
use super::super::{audit, config_verb, doctor, events, explain, failure::Failure, status};
use super::archive::File;
use super::manifest::{Made, Manifest};
use super::scrub::{Known, Scrub};
use crate::config::Config;

/// Most bytes of one file; of a longer one the end is kept.
pub(super) const FILE_MAX: usize = 4 << 20;

/// Most bytes of all files together, before they are compressed.
const BUNDLE_MAX: usize = 48 << 20;

/// Lines of each log.
const LOG_LINES: u32 = 5000;

/// The files so far, and what could not be had.
#[derive(Debug, Default)]
pub(super) struct Collected {
    files: Vec<File>,
    missing: Vec<(String, String)>,
}

// === impl Collected ===

impl Collected {
    /// Adds a file, or the reason why it is missing.
    pub(super) fn add(&mut self, path: &str, content: Result<String, String>) {
        match content {
            Ok(content) => self.files.push(File { path: path.to_owned(), content }),
            Err(why) => self.missing.push((path.to_owned(), why)),
        }
    }

    /// All files without secrets, within their bounds, and an index of them.
    pub(super) fn finish(self, scrub: &Scrub, made: Made) -> Vec<File> {
        let mut manifest = Manifest::new(made);
        let mut index = String::from("What is in this bundle, and what is not.\n\n");
        let mut used = 0;
        let mut files = Vec::new();
        for File { path, content } in self.files {
            let (path, content) = (scrub.name(&path), scrub.text(end_of(&content)));
            if used + content.len() > BUNDLE_MAX {
                let _never_fails = writeln!(index, "{path}: left out, the bundle is full");
                manifest.missing(path, "the bundle is full".to_owned());
                continue;
            }
            used += content.len();
            let _never_fails = writeln!(index, "{path}: {} bytes", content.len());
            manifest.file(&path, content.len());
            files.push(File { path, content });
        }
        for (path, why) in self.missing {
            let (path, why) = (scrub.name(&path), scrub.text(&why));
            let _never_fails = writeln!(index, "{path}: not there: {why}");
            manifest.missing(path, why);
        }
        files.insert(0, File { path: "manifest.json".to_owned(), content: manifest.to_json() });
        files.insert(0, File { path: "INDEX".to_owned(), content: index });
        files
    }
}

/// The end of a text that is too long, from the beginning of a line on.
fn end_of(text: &str) -> &str {
    let Some(cut) = text.len().checked_sub(FILE_MAX) else { return text };
    let end = &text[text.ceil_char_boundary(cut)..];
    end.find('\n').map_or(end, |at| &end[at + 1..])
}

/// Collects what the agent and the configuration say. Returns what nobody else is to know.
pub(super) async fn agent(context: &mut Context<'_, '_>, into: &mut Collected) -> Known {
    // The reader of the files has no terminal of this width and no colours.
    let (width, colour) = (context.console.width.take(), context.console.colour);
    context.console.colour = false;
    let config = context.load();
    let shown = config.as_ref().map(config_verb::effective_toml);
    into.add("config.toml", shown.map_err(|failure| failure.reason.clone()));
    let config = config.map(|loaded| loaded.config).unwrap_or_default();
    let mut known = known(&config);
    let client = context.connect().await;
    let reported = doctor::both_forms(context).await;
    let (text, document) = match reported {
        Ok((text, document)) => (Ok(text), Ok(document)),
        Err(failure) => (Err(failure.reason.clone()), Err(failure.reason)),
    };
    into.add("doctor.txt", text);
    into.add("doctor.json", document);
    let answers = match client {
        Ok(mut client) => ask(&mut client, context, &mut known, into).await,
        Err(failure) => Err(failure),
    };
    if let Err(failure) = answers {
        known.pid = known.pid.or(failure.silent);
        let why = [&[failure.reason][..], &failure.causes].concat().join(": ");
        into.add("status.json", Err(why.clone()));
        known.silent = Some(why);
    }
    (context.console.width, context.console.colour) = (width, colour);
    known
}

fn known(config: &Config) -> Known {
    let api = &config.api;
    let files = [&api.http_token_file, &api.http_admin_token_file];
    let read = files.into_iter().filter_map(|file| std::fs::read_to_string(file).ok());
    let lines =
        read.flat_map(|text| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>());
    let host = nix::unistd::gethostname().ok().map(|name| name.to_string_lossy().into_owned());
    Known {
        secrets: lines.collect(),
        machine: host.into_iter().chain([config.instance.id.clone()]).collect(),
        state_dir: config.agent.state_dir.clone(),
        log_dir: config.agent.log_dir.clone(),
        ..Known::default()
    }
}

async fn ask(
    client: &mut Client,
    context: &mut Context<'_, '_>,
    known: &mut Known,
    into: &mut Collected,
) -> Result<(), Failure> {
    let status = client::status(client).await?;
    let plugins: Vec<_> = status.plugins.iter().collect();
    let agent = status.agent.as_ref();
    known.plugins = plugins.iter().map(|plugin| plugin.name.clone()).collect();
    known.pid = agent.and_then(|agent| u32::try_from(agent.pid).ok());
    known.machine.extend(agent.map(|agent| agent.instance_id.clone()));
    let document =
        serde_json::to_string_pretty(&status::json::document(&plugins, agent, JsonForm::Object));
    into.add("status.json", document.map_err(|error| error.to_string()));
    into.add("status.txt", Ok(status::table::overview(&plugins, agent, context.console)));
    for name in &known.plugins {
        let request = ExplainRequest { name: name.clone(), config: true };
        let text = match client.explain(request).await {
            Ok(answer) => {
                let answer = answer.into_inner();
                let lines = explain::lines(name, &answer, context.console.now);
                let effective = status::table::effective(&answer, context.console);
                Ok(format!("{}\n\n{effective}", lines.join("\n")))
            }
            Err(error) => Err(error.message().to_owned()),
        };
        into.add(&format!("explain/{name}.txt"), text);
        into.add(&format!("logs/{name}.log"), log(client, name).await);
    }
    let asked = audit::newest(client, audit::Wanted::everything()).await;
    let lines = asked.map(|entries| entries.iter().map(audit::as_json).collect::<String>());
    into.add("audit.jsonl", lines.map_err(|failure| failure.reason));
    into.add("events.jsonl", history(client).await.map_err(|failure| failure.reason));
    Ok(())
}

/// The end of a plugin's log, as text.
async fn log(client: &mut Client, name: &str) -> Result<String, String> {
    let name = name.to_owned();
    let request = StreamLogsRequest { name, lines: LOG_LINES, ..StreamLogsRequest::default() };
    let mut chunks =
        client.stream_logs(request).await.map_err(|e| e.message().to_owned())?.into_inner();
    let mut bytes = Vec::new();
    while let Some(chunk) =
        client::next(&mut chunks, Patience::Soon).await.map_err(|failure| failure.reason)?
    {
        bytes.extend_from_slice(&chunk.data);
        if bytes.len() > 2 * FILE_MAX {
            bytes.drain(..FILE_MAX);
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// All recorded events, a line each.
async fn history(client: &mut Client) -> Result<String, Failure> {
    let request = StreamEventsRequest::default();
    let mut events = client.stream_events(request).await?.into_inner();
    let mut text = String::new();
    while let Some(event) = client::next(&mut events, Patience::Soon).await? {
        text.push_str(&events::as_json(&event));
        text.push('\n');
        if text.len() > 2 * FILE_MAX {
            text.drain(..text.ceil_char_boundary(FILE_MAX));
        }
    }
    Ok(text)
}
