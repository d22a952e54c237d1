//! `doctor`: shows what is wrong on this machine, and how to correct it.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::SystemTime;

use guest_agent_actors::model::id::PluginName;
use guest_agent_proto::local::{
    ClearQuarantineRequest, ExamineRequest, ForgetPluginRequest, SweepRequest, SweepResponse,
};

use super::client::{self, Client};
use super::console::{Console, Tone};
use super::context::Context;
use super::failure::{Exit, Failure};
use super::format::one_line;
use crate::config::{self, Config, ConfigError};
use crate::doctor::{self, Agent, Finding, Host};

pub(super) mod bundle;
pub(super) mod document;
mod text;

use text::{as_lines, verdict};

/// The fix where the agent ended its answer, or did not end it.
const TRY_AGAIN: &str = "try again; where it stays so, keep the agent's log and start it afresh with \
                         `systemctl restart guest-agent`, which no plugin notices";

/// The fix where the caller may not look.
const AS_ROOT: &str = "run it as root: sudo guest-agent doctor";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent doctor
  guest-agent doctor --sweep
  guest-agent doctor --forget old-plugin
  guest-agent doctor --bundle guest-agent-support.tar.gz
  guest-agent doctor --json | jq .findings")]
pub(super) struct Flags {
    /// List the files that nothing refers to, without deleting any
    #[arg(long, conflicts_with = "clear_quarantine")]
    sweep: bool,
    /// Forget the records that were set aside
    #[arg(long)]
    clear_quarantine: bool,
    /// End the processes of a plugin that the agent does not know, and delete its files and data
    #[arg(long, value_name = "NAME", conflicts_with_all = ["sweep", "clear_quarantine"])]
    forget: Vec<PluginName>,
    /// Judge the machine that a support bundle is of, instead of this one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sweep", "clear_quarantine", "forget"])]
    bundle: Option<PathBuf>,
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    if let Some(file) = &flags.bundle {
        return bundle::run(file, context).await;
    }
    if flags.sweep {
        let mut client = context.connect().await?;
        let report = client.sweep(SweepRequest { delete: false }).await?.into_inner();
        return rehearsed(&report, context);
    }
    if flags.clear_quarantine {
        let mut client = context.connect().await?;
        let answer = client.clear_quarantine(ClearQuarantineRequest {}).await?.into_inner();
        if context.global.json() {
            context.console.document(&document::Cleared { records: answer.records })?;
        } else {
            context.console.line(&format!("{} records forgotten", answer.records))?;
        }
        return Ok(());
    }
    if !flags.forget.is_empty() {
        let mut client = context.connect().await?;
        for name in &flags.forget {
            client.forget_plugin(ForgetPluginRequest { name: name.to_string() }).await?;
            if !context.global.json() {
                let line =
                    format!("{name} is being removed; `guest-agent status` shows it until then");
                context.console.line(&line)?;
            }
        }
        if context.global.json() {
            let forgotten: Vec<_> = flags.forget.iter().map(PluginName::as_str).collect();
            context.console.document(&document::Forgotten { forgotten })?;
        }
        return Ok(());
    }
    let examined = Examined::now(&context).await?;
    let (host, findings) = (examined.host(), examined.findings());
    if context.global.json() {
        context.console.document(&document::Examination::of(&host, &findings))?;
    } else {
        let text = as_text(&host, &findings, context.console);
        context.console.text(&text)?;
    }
    let is_partial = document::unseen(&findings).next().is_some();
    verdict(&findings, is_partial, AS_ROOT)
}

async fn ask(client: &mut Client) -> Result<Agent, Failure> {
    let itself = match client.examine(ExamineRequest {}).await {
        Ok(answer) => Box::new(answer.into_inner()),
        Err(status) if status.code() == tonic::Code::PermissionDenied => {
            return Ok(Agent::Hidden { reason: status.message().to_owned() });
        }
        Err(status) => return Err(status.into()),
    };
    let leftovers = client.sweep(SweepRequest { delete: false }).await;
    let leftovers =
        leftovers.map(tonic::Response::into_inner).map_err(|status| status.message().to_owned());
    let plugins = client::status(client).await?.plugins;
    Ok(Agent::Answers { itself, leftovers, plugins })
}

fn rehearsed(report: &SweepResponse, context: Context<'_, '_>) -> Result<(), Failure> {
    let console = context.console;
    if context.global.json() {
        return Ok(console.document(&document::Sweep::from(report))?);
    }
    if report.items.is_empty() {
        console.line("nothing to sweep")?;
    }
    for item in &report.items {
        let (fate, path, why) = (&item.fate, one_line(&item.path), one_line(&item.why));
        console.line(&format!("{fate:<12}  {path}  ({why})"))?;
    }
    if report.unfinished {
        console.line("there is more; this is what one run looks at")?;
    }
    Ok(())
}

/// The findings as text and as a document.
pub(super) async fn both_forms(context: &Context<'_, '_>) -> Result<(String, String), Failure> {
    let examined = Examined::now(context).await?;
    let (host, findings) = (examined.host(), examined.findings());
    let document = serde_json::to_string_pretty(&document::Examination::of(&host, &findings));
    let document = document.map_err(|error| Failure::of(&error))?;
    Ok((as_text(&host, &findings, context.console), document + "\n"))
}

/// What the checks look at.
struct Examined {
    config: Config,
    /// The note that the configuration could not be read.
    unread: Option<Finding>,
    agent: Agent,
    now: SystemTime,
}

// === impl Examined ===

impl Examined {
    async fn now(context: &Context<'_, '_>) -> Result<Self, Failure> {
        let (config, unread) = readable_config(context)?;
        let agent = match context.connect().await {
            Ok(mut client) => ask(&mut client).await,
            Err(failure) => Err(failure),
        };
        let agent = match agent {
            Ok(agent) => agent,
            Err(failure) if failure.is_forbidden() => Agent::Hidden { reason: in_one(&failure) },
            // The other checks need no agent.
            Err(failure) if matches!(failure.exit, Exit::Unreachable | Exit::TimedOut) => {
                Agent::Silent {
                    reason: in_one(&failure),
                    process: failure.silent,
                    hint: failure.hint.unwrap_or_else(|| TRY_AGAIN.to_owned()),
                }
            }
            Err(failure) => return Err(failure),
        };
        let now = SystemTime::from((context.console.now)());
        Ok(Self { config, unread, agent, now })
    }

    fn host(&self) -> Host<'_> {
        Host { config: &self.config, agent: &self.agent, now: self.now }
    }

    fn findings(&self) -> Vec<Finding> {
        let mut findings = doctor::examine(&self.host());
        findings.extend(self.unread.clone());
        findings
    }
}

/// A failure with all its causes.
fn in_one(failure: &Failure) -> String {
    let causes = failure.causes.iter().map(String::as_str);
    std::iter::once(&*failure.reason).chain(causes).collect::<Vec<_>>().join(": ")
}

/// The configuration; the defaults with a note where the caller may not read it.
fn readable_config(context: &Context<'_, '_>) -> Result<(Config, Option<Finding>), Failure> {
    match config::load(context.environment, &context.sources()) {
        Ok(loaded) => Ok((loaded.config, None)),
        Err(ConfigError::Read { path, source }) if source.kind() == ErrorKind::PermissionDenied => {
            let why = format!("{}: {source}; its defaults were taken instead", path.display());
            Ok((Config::default(), Some(doctor::not_looked_at("the configuration", why))))
        }
        Err(error) => Err(error.into()),
    }
}

/// What was checked, in words.
fn checked(host: &Host<'_>) -> String {
    let plugins = match host.agent {
        Agent::Answers { plugins, .. } => plugins.len(),
        Agent::Hidden { .. } | Agent::Silent { .. } => 0,
    };
    let words = doctor::CHECKS.iter().map(|check| match check.about {
        "plugins" => format!("plugins ({plugins})"),
        about => about.to_owned(),
    });
    words.collect::<Vec<_>>().join(", ")
}

fn as_text(host: &Host<'_>, findings: &[Finding], console: &Console<'_>) -> String {
    let unseen: Vec<&str> = document::unseen(findings).collect();
    let mut text = as_lines(findings, &unseen, console);
    let line = format!("checked: {}", checked(host));
    text.push_str(&[&console.paint(Tone::Quiet, &line), "\n"].concat());
    text
}
