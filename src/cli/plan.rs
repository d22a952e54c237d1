//! `plan`: what an install would do, without doing it.
//!
//! ```text
//! FILE ─► orders ─► preflight::CHECKS            this machine
//!              ├──► the agent's gate             whether its content would be admitted
//!              ├──► install::dry_run            its archive, unpacked elsewhere and thrown away
//!              └──► the agent's status, compare  the difference to what runs
//! ```
//!
//! `plan` gives no order and changes no file of the agent. It asks the admission plugin as the
//! installation would: about the ordered digest, whether or not the archive was checked. Where it
//! does not ask, the plan says why. It downloads an archive only with `--download`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use guest_agent_actors::error::Chain;
use guest_agent_actors::model::origin::Origin;
use guest_agent_actors::model::spec::{PluginSpec, Source};
use guest_agent_actors::plugin::event::Order;
use guest_agent_actors::ports::InstallError;
use guest_agent_actors::wire::{self, NamedOrder};
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{Action, ConfigurePlugin};
use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::local::{
    AdmissionVerdict, AskAdmissionRequest, ExplainRequest, Installation, PluginOrder, PluginStatus,
};
use prost::Message;
use schemars::JsonSchema;
use serde::Serialize;
use tonic::Code;

use super::client::{Client, Patience};
use super::console::{Console, Tone};
use super::context::Context;
use super::failure::Failure;
use super::format::{bytes, counted, one_line};
use super::json::NameOf;
use super::upload;
use super::{client, ends, order, submit};
use crate::display::values;
use crate::hostinfo::preflight::contents::Contents;
use crate::hostinfo::preflight::finding::{Finding, Severity};
use crate::hostinfo::preflight::{self, Candidate, Unfit};
use crate::install::dry_run;

pub(super) mod compare;
mod downgrade;

use compare::Difference;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent plan -f metrics.tar.gz
  guest-agent plan -f order.json --json")]
pub(super) struct Flags {
    /// A ConfigurePlugin or ConfigurePluginStates as JSON (- reads it from standard input), or an
    /// archive, bundle or directory made by `pack`
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Fetch archives that are not on this machine, to look inside
    #[arg(long)]
    download: bool,
}

/// The effect that one order would have. Field names never change.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct Planned {
    /// The plugin.
    pub(super) name: String,
    /// What the agent would do.
    #[schemars(extend("enum" = ["install", "upgrade", "reconcile", "apply", "remove", "nothing"]))]
    pub(super) action: &'static str,
    /// The revision that is ordered; empty where none is.
    pub(super) revision: String,
    /// The plugin as it is now.
    pub(super) running: Option<Running>,
    /// The changes, in words; `differences` has the values for programs.
    pub(super) changes: Vec<String>,
    /// The changes.
    pub(super) differences: Vec<Difference>,
    /// Whether it would be admitted.
    pub(super) admission: Admission,
    /// The content of the archive, if it was checked.
    pub(super) archive: Option<Contents>,
    /// Problems that would prevent the installation, and possible problems.
    pub(super) findings: Vec<Finding>,
}

/// What the admission plugin says of an order.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct Admission {
    /// Whether the admission plugin was asked.
    pub(super) asked: bool,
    /// Its decision; null without one.
    #[schemars(extend("enum" = ["admitted", "denied", null]))]
    pub(super) verdict: Option<&'static str>,
    /// Why it is denied, or was not asked; empty where it is admitted.
    pub(super) why: String,
}

/// The agent's status of a plugin.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct Running {
    /// The revision; empty where none is installed.
    pub(super) revision: String,
    /// Its state.
    #[schemars(with = "NameOf<StatusValue>")]
    pub(super) state: String,
    #[serde(skip)]
    pub(super) value: StatusValue,
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    // The folder with the members of a bundle, until they were checked.
    let mut scratch = None;
    let orders = match upload::open(&flags.file)? {
        None => submit::orders_in(&flags.file)?,
        Some(given) => {
            let failed = "cannot look into the bundle";
            let folder =
                tempfile::tempdir().map_err(|error| Failure::failed(failed).because(&error))?;
            let place = scratch.insert(folder).path().to_owned();
            let laid_out = tokio::task::spawn_blocking(move || upload::lay_out(given, &place));
            vec![laid_out.await.map_err(|error| Failure::failed(failed).because(&error))??]
        }
    };
    // This fails only if a provider is installed already, and that is the same one.
    drop(rustls::crypto::ring::default_provider().install_default());
    let mut agent = context.connect().await?;
    let config = context.load()?.config;
    let there = client::status(&mut agent).await?.plugins;
    let now = SystemTime::from((context.console.now)());
    let mut all = Vec::new();
    for order in &orders {
        let name = order.plugin.as_ref().map_or("", |plugin| &plugin.name);
        let status = there.iter().find(|plugin| plugin.name == name);
        let mut planned = difference(order, status);
        match spec_of(order) {
            Ok(Some(spec)) => {
                compare_with(&mut agent, &spec, &mut planned).await?;
                if let Some(status) = status {
                    let events = ends::events_of(&mut agent, name).await?;
                    let back = downgrade::finding(&planned.revision, status, &events);
                    planned.findings.extend(back);
                }
                if is_deployed(&planned) {
                    planned.admission = ask_about(&mut agent, order).await?;
                } else {
                    let why = "what is installed already is not asked about again";
                    planned.admission = Admission::not_asked(why);
                }
                let refused = planned.admission.refusal().map(str::to_owned);
                let about = Candidate {
                    config: &config,
                    spec: &spec,
                    contents: None,
                    refused: refused.as_deref(),
                    now,
                };
                look(&spec, about, flags.download, &mut planned).await;
            }
            // Nothing is installed.
            Ok(None) => {}
            Err(finding) => {
                planned.admission = Admission::not_asked("the agent would refuse the order");
                planned.findings.push(finding);
            }
        }
        all.push(planned);
    }
    drop(scratch);
    if context.global.json() {
        context.console.document(&all)?;
    } else {
        let text = as_text(&all, context.console);
        context.console.text(&text)?;
    }
    let is_wrong = |finding: &&Finding| finding.severity == Severity::Error;
    match all.iter().flat_map(|planned| &planned.findings).filter(is_wrong).count() {
        0 => Ok(()),
        1 => Err(Failure::failed("1 problem stands in the way")),
        count => Err(Failure::failed(format_args!("{count} problems stand in the way"))),
    }
}

/// The changes that an order would make. Pure.
pub(super) fn difference(order: &ConfigurePlugin, there: Option<&PluginStatus>) -> Planned {
    let plugin = order.plugin.clone().unwrap_or_default();
    let revision = plugin.revision_id;
    let there = there.filter(|status| !status.state.is_empty());
    let mut changes = Vec::new();
    let is_local = |status: &PluginStatus| values::installation(status) == Installation::Local;
    let is_reconfigured = |status: &PluginStatus| status.config_hash != order::config_hash(order);
    let action = match (order.action(), there) {
        (Action::Remove, None) => "nothing",
        (Action::Remove, Some(status)) => {
            changes.push(format!("deletes revision {} and the plugin's own data", status.revision));
            "remove"
        }
        (Action::Apply, None) => {
            changes.push("no plugin has this name".to_owned());
            "nothing"
        }
        (Action::Apply, Some(status)) if !is_reconfigured(status) => "nothing",
        (Action::Apply, Some(_)) => {
            changes.push("its configuration".to_owned());
            "apply"
        }
        (Action::Install | Action::Unspecified, None) => "install",
        (Action::Install | Action::Unspecified, Some(status)) => {
            if is_local(status) {
                changes.push(format!("replaces the local revision {}", status.revision));
            } else if status.revision.is_empty() {
                changes.push("it was ordered before and is not installed".to_owned());
            } else if status.revision != revision {
                changes.push(format!("revision {revision} replaces revision {}", status.revision));
            }
            if is_reconfigured(status) {
                changes.push("its configuration".to_owned());
            }
            match &status.pending {
                Some(pending) if pending.revision != revision => {
                    changes.push(format!("revision {} is no longer pending", pending.revision))
                }
                Some(_) | None => {}
            }
            if status.revision == revision && !is_local(status) {
                "reconcile"
            } else if status.revision.is_empty() {
                "install"
            } else {
                "upgrade"
            }
        }
    };
    let differences = compare::of_status(action, there, order);
    let running = there.map(|status| Running {
        revision: status.revision.clone(),
        state: status.state.clone(),
        value: values::state(status),
    });
    Planned {
        name: plugin.name,
        action,
        revision,
        running,
        changes,
        differences,
        admission: Admission::not_asked("nothing is to be installed"),
        archive: None,
        findings: Vec::new(),
    }
}

/// Whether the last installation or start of the plugin failed. An order then begins anew.
fn has_failed(now: &Running) -> bool {
    values::has_failed(now.value)
}

/// Whether the installation would ask the admission plugin. The agent does not ask again about a
/// revision that runs.
fn is_deployed(planned: &Planned) -> bool {
    match planned.action {
        "install" | "upgrade" => true,
        "reconcile" => planned.running.as_ref().is_some_and(has_failed),
        _ => false,
    }
}

/// Adds to the plan how the plugin would be run in another way than now.
async fn compare_with(
    agent: &mut Client,
    spec: &PluginSpec,
    planned: &mut Planned,
) -> Result<(), Failure> {
    let Some(running) = planned.running.clone().filter(|now| !now.revision.is_empty()) else {
        return Ok(());
    };
    let Some(current) = order_of(agent, &planned.name).await? else {
        let unknown = "its arguments and limits were not compared: the agent does not report them";
        planned.changes.push(unknown.to_owned());
        return Ok(());
    };
    planned.changes.extend(compare::changes(&current, spec));
    planned.differences.extend(compare::differences(&current, spec));
    if planned.action == "reconcile" && !has_failed(&running) {
        planned.findings.extend(compare::other_content(&current, spec));
    }
    Ok(())
}

/// The order by which a plugin runs. An agent of an earlier version does not report it, and a
/// plugin may have gone meanwhile.
async fn order_of(agent: &mut Client, name: &str) -> Result<Option<PluginOrder>, Failure> {
    match agent.explain(ExplainRequest { name: name.to_owned(), config: false }).await {
        Ok(answer) => Ok(answer.into_inner().order),
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(status.into()),
    }
}

/// Asks the agent's admission plugin about the order.
async fn ask_about(agent: &mut Client, order: &ConfigurePlugin) -> Result<Admission, Failure> {
    let request = AskAdmissionRequest { order: Some(order.clone()) };
    let mut answer = match agent.ask_admission(request).await {
        Ok(answer) => answer.into_inner(),
        // Who may only look has the rest of the plan.
        Err(status) if status.code() == Code::PermissionDenied => {
            return Ok(Admission::not_asked(status.message()));
        }
        Err(status) => return Err(status.into()),
    };
    let asked = |verdict, why| Admission { asked: true, verdict, why };
    // The agent itself reports a plugin that takes too long.
    let Some(answer) = client::next(&mut answer, Patience::Forever).await? else {
        return Ok(asked(None, "the agent ended without an answer".to_owned()));
    };
    Ok(match values::admission(&answer) {
        AdmissionVerdict::Open => Admission::not_asked("the agent has no admission plugin"),
        AdmissionVerdict::Admitted => asked(Some("admitted"), String::new()),
        AdmissionVerdict::Denied => asked(Some("denied"), answer.reason),
        AdmissionVerdict::Closing | AdmissionVerdict::Unspecified => asked(None, answer.reason),
    })
}

// === impl Admission ===

impl Admission {
    fn not_asked(why: &str) -> Self {
        Self { asked: false, verdict: None, why: why.to_owned() }
    }

    /// Why the order would not be installed.
    fn refusal(&self) -> Option<&str> {
        (self.asked && self.verdict != Some("admitted")).then_some(self.why.as_str())
    }

    fn in_words(&self) -> String {
        let verdict = match (self.asked, self.verdict) {
            (false, _) => "not asked",
            (true, Some(verdict)) => verdict,
            (true, None) => "undecided",
        };
        if self.why.is_empty() { verdict.to_owned() } else { format!("{verdict}: {}", self.why) }
    }
}

/// Checks what is to be installed against this machine.
async fn look(
    spec: &Arc<PluginSpec>,
    about: Candidate<'_>,
    may_download: bool,
    planned: &mut Planned,
) {
    match &spec.source {
        Source::Local(_) => {}
        Source::Archive(artifact) => {
            let url = artifact.url.to_string();
            if may_download || url.starts_with("file:") {
                match dry_run(about.config, spec).await {
                    Ok(contents) => planned.archive = Some(contents),
                    Err(error) => planned.findings.extend(of_rehearsal(error)),
                }
            } else {
                planned.findings.push(Finding::new(
                    Severity::Note,
                    "the archive was not checked",
                    format!("it would have to be downloaded from {url}"),
                    "`plan --download` fetches it to look inside, and throws it away",
                ));
            }
        }
    }
    let candidate = Candidate { contents: planned.archive.as_ref(), ..about };
    let found = preflight::CHECKS.iter().flat_map(|check| (check.run)(&candidate));
    planned.findings.extend(found.collect::<Vec<_>>());
    planned.findings.sort_by_key(|finding| finding.severity);
}

/// What the agent would make of an order: a plugin to install, nothing to install, or a refusal.
fn spec_of(order: &ConfigurePlugin) -> Result<Option<Arc<PluginSpec>>, Finding> {
    let refused = |why: String| {
        let fix = "correct the order";
        Finding::new(Severity::Error, "the agent would refuse the order", why, fix)
    };
    let bytes = ConfigurePluginStates { configure_plugins: vec![order.clone()] }.encode_to_vec();
    let decoded = wire::decode_orders(&bytes, Origin::Local);
    match decoded.map_err(|error| refused(Chain(&error).to_string()))?.pop() {
        Some(Ok(NamedOrder { order: Order::Install(spec), .. })) => Ok(Some(spec)),
        Some(Ok(_)) | None => Ok(None),
        Some(Err(refusal)) => Err(refused(refusal.reason)),
    }
}

/// Why a dry run failed. Preflight findings have their own texts.
fn of_rehearsal(error: InstallError) -> Vec<Finding> {
    match error.cause.downcast::<Unfit>() {
        Ok(unfit) => unfit.0,
        Err(cause) => {
            let step = error.step;
            let why = Chain(&*cause).to_string();
            let fix =
                "correct the archive or the order; `guest-agent pack` makes archives that fit";
            let what = format!("the agent would fail to {step}");
            vec![Finding::new(Severity::Error, what, why, fix)]
        }
    }
}

pub(super) fn as_text(all: &[Planned], console: &Console<'_>) -> String {
    let mut text = String::new();
    for planned in all {
        let Planned { name, action, revision, .. } = planned;
        let (name, revision) = (one_line(name), one_line(revision));
        text.push_str(format!("{name}: {action} {revision}").trim_end());
        text.push('\n');
        let mut line = |label: &str, fact: &str| {
            text.push_str(&["  ", label, ": ", &one_line(fact), "\n"].concat());
        };
        let now = planned.running.as_ref().map_or_else(
            || "not there".to_owned(),
            |running| format!("{} {}", running.revision, running.state).trim_start().to_owned(),
        );
        line("now", &now);
        for change in &planned.changes {
            line("change", change);
        }
        line("admission", &planned.admission.in_words());
        if let Some(found) = &planned.archive {
            let (packed, unpacked) = (bytes(found.archive_bytes), bytes(found.bytes));
            let files = counted(found.files, "file");
            line("archive", &format!("{packed}; {unpacked} in {files} unpacked"));
        }
        for finding in &planned.findings {
            let (word, tone) = match finding.severity {
                Severity::Error => ("error", Tone::Bad),
                Severity::Warning => ("warning", Tone::Busy),
                Severity::Note => ("note", Tone::Quiet),
            };
            line(&console.paint(tone, word), &finding.what);
            line("  why", &finding.why);
            line("  fix", &finding.fix);
        }
    }
    text
}
