//! `guest-fleet agent`: what an operator does about one agent's identity.

use std::io::{self, Write};
use std::time::SystemTime;

use clap::{Args, Subcommand};
use schemars::JsonSchema;
use serde::Serialize;
use thiserror::Error;

use super::context::Output;
use super::print_json;
use crate::enroll::AgentId;
use crate::enroll::agents::{self, AgentError};
use crate::ledger::Ledger;

/// What is done about an agent.
#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Revoke an agent and every certificate it has; its streams end within seconds.
    Revoke(Options),
    /// Give an agent in quarantine its orders again, once a single machine has its identity.
    Release(Options),
}

/// The options of the verbs.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Id of the agent.
    id: AgentId,
}

/// Why a verb failed.
#[derive(Debug, Error)]
pub enum AgentVerbError {
    /// The record was not changed.
    #[error("the agent was not changed")]
    Agent(#[from] AgentError),
    /// The result cannot be printed.
    #[error("the result cannot be printed")]
    Print(#[from] io::Error),
}

/// What was done.
#[derive(JsonSchema, Serialize)]
pub(super) struct ChangedJson<'a> {
    /// Id of the agent.
    agent: &'a str,
    /// Whether it was otherwise before.
    has_changed: bool,
}

/// Runs a verb.
///
/// # Errors
/// See [`AgentVerbError`].
pub async fn run(
    verb: Verb,
    ledger: &dyn Ledger,
    output: Output,
    out: &mut dyn Write,
) -> Result<(), AgentVerbError> {
    let (options, has_changed, done, before) = match verb {
        Verb::Revoke(options) => {
            let has_changed = agents::revoke(ledger, &options.id, SystemTime::now()).await?;
            let done = "is revoked; its streams end within seconds, what it runs goes on";
            (options, has_changed, done, "was revoked already")
        }
        Verb::Release(options) => {
            let has_changed = agents::release(ledger, &options.id).await?;
            (options, has_changed, "gets orders again", "was not in quarantine")
        }
    };
    let agent = options.id.as_str();
    match output {
        Output::Json => print_json(out, &ChangedJson { agent, has_changed })?,
        Output::Text => writeln!(out, "{agent} {}", if has_changed { done } else { before })?,
    }
    Ok(())
}
