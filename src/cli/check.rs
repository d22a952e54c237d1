//! `check`: whether a plugin keeps to the contract, before anybody installs it.
//!
//! A folder is built and packed as its `plugin.toml` says; an archive or a bundle is taken as it is.

use std::path::{Path, PathBuf};
use std::time::Duration;

use guest_agent_actors::model::spec::ArtifactUrl;
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;

use super::console::{Console, Tone};
use super::context::Context;
use super::failure::Failure;
use super::services::Services;
use super::{order, submit, upload};
use crate::check::record::{self, Record};
use crate::check::report::{Finding, Report};
use crate::check::{self, Options, Trial};
use crate::config::parse_duration;
use crate::dev::signals::Signals;
use crate::install::file_of;
use crate::install::trust;
use crate::install::trust::sign::SigningKey;
use crate::manifest::package::{Wanted, file_url};
use crate::manifest::{ANY_ARCHITECTURE, FILE, PluginManifest, build};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent check .
  guest-agent check metrics.tar.gz --junit check.xml
  guest-agent check metrics.tar.gz --sign-key release.key
  guest-agent check . --only stop --only removal")]
pub(super) struct Flags {
    /// A plugin's directory, which is built and packed first; or an archive with the order that
    /// `pack` wrote beside it, or a bundle
    path: PathBuf,
    /// Write the report as JUnit XML, too
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Run this check and no other but `start`; may be repeated
    #[arg(long, value_enum, value_name = "CHECK", hide_possible_values = true)]
    only: Vec<Trial>,
    /// Leave this check out; may be repeated
    #[arg(long, value_enum, value_name = "CHECK", hide_possible_values = true)]
    skip: Vec<Trial>,
    /// How long the plugin is paused
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pause: Duration,
    /// Write the record that `plan --require-check` reads to FILE [default: beside an archive, as
    /// ARCHIVE.check.json]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["only", "skip"])]
    record: Option<PathBuf>,
    /// Sign the record with this key, as FILE.minisig; `keygen` makes one
    #[arg(long, value_name = "KEY", conflicts_with_all = ["only", "skip"])]
    sign_key: Option<PathBuf>,
}

/// What is to be checked.
struct Candidate {
    order: ConfigurePlugin,
    /// Where the record of an archive is kept; `None` for sources, whose archive is thrown away.
    record: Option<PathBuf>,
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    // Who gives up leaves nothing behind: the agent of the check is a process of its own.
    let mut signals = Signals::new()
        .map_err(|error| Failure::failed("failed to listen for signals").because(&error))?;
    // What is packed here is there until the end.
    let scratch = tempfile::tempdir()
        .map_err(|error| Failure::failed("failed to make a temporary folder").because(&error))?;
    let key = flags.sign_key.as_deref().map(SigningKey::read).transpose();
    let key =
        key.map_err(|error| Failure::failed("the record cannot be signed").because(&error))?;
    let Candidate { order, record } = candidate(&flags.path, scratch.path(), context.services)?;
    if key.is_some() && record.is_none() && flags.record.is_none() {
        return Err(Failure::usage(
            "there is no record to sign: the archive of a directory is not kept",
        )
        .hint("name the record with --record, or check the archive that `pack` made"));
    }
    let sha256 = order.plugin.as_ref().map(|plugin| plugin.checksum.clone()).unwrap_or_default();
    let is_whole = flags.only.is_empty() && flags.skip.is_empty();
    let options = Options { order, only: flags.only, skip: flags.skip, pause: flags.pause };
    let is_json = context.global.json();
    let console = context.console;
    let mut unprintable = None;
    let heard = |finding: &Finding| {
        if !is_json && let Err(error) = tell(console, finding) {
            unprintable.get_or_insert(error);
        }
    };
    let report = check::check(options, heard, signals.come())
        .await
        .map_err(|error| Failure::failed("the check itself failed").because(&*error))?;
    let Some(report) = report else {
        return Err(Failure::failed("interrupted; the agent and the plugin were stopped"));
    };
    if let Some(error) = unprintable {
        return Err(error.into());
    }
    if let Some(file) = &flags.junit {
        std::fs::write(file, report.junit()).map_err(|error| {
            Failure::failed(format_args!("failed to write {}", file.display())).because(&error)
        })?;
    }
    // A record of some checks alone would take the place of one of all.
    if is_whole && let Some(file) = flags.record.as_ref().or(record.as_ref()) {
        let kept = keep(&Record::of(&report, &sha256, (console.now)()), file, key.as_ref());
        match kept {
            Err(failure) if flags.record.is_some() || key.is_some() => return Err(failure),
            Err(failure) => {
                let why = failure.causes.join(": ");
                writeln!(
                    console.err,
                    "guest-agent: {}: {why}; name another file with --record",
                    failure.reason
                )?;
            }
            Ok(()) => {}
        }
    }
    if is_json {
        console.document(&report)?;
    } else {
        console.line(&summary(&report))?;
    }
    if report.passed {
        return Ok(());
    }
    let failed = report.checks.iter().filter(|finding| finding.result == "failed");
    let names: Vec<_> = failed.map(|finding| finding.check).collect();
    Err(Failure::failed(format_args!("the plugin does not pass: {}", names.join(", "))))
}

/// Writes a record, and its signature.
fn keep(record: &Record, file: &Path, key: Option<&SigningKey>) -> Result<(), Failure> {
    let failed = |path: &Path, error: &dyn std::error::Error| {
        Failure::failed(format_args!("failed to write {}", path.display())).cause(error)
    };
    let text = serde_json::to_string_pretty(record).map_err(|error| failed(file, &error))?;
    let signature_file = with_suffix(file, trust::SUFFIX);
    // A signature of the record before would be a wrong one.
    match std::fs::remove_file(&signature_file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(failed(&signature_file, &error));
        }
        Ok(()) | Err(_) => {}
    }
    std::fs::write(file, text + "\n").map_err(|error| failed(file, &error))?;
    let Some(key) = key else { return Ok(()) };
    let unsigned = |error: &(dyn std::error::Error + 'static)| {
        Failure::failed(format_args!("failed to sign {}", file.display())).because(error)
    };
    let name = record.plugin.parse().map_err(|error| unsigned(&error))?;
    let revision = record.revision.parse().map_err(|error| unsigned(&error))?;
    let signature = key.sign(file, &name, &revision).map_err(|error| unsigned(&error))?;
    std::fs::write(&signature_file, signature).map_err(|error| failed(&signature_file, &error))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The order that installs what is to be checked, and where the record of it is kept.
fn candidate(path: &Path, scratch: &Path, services: &Services<'_>) -> Result<Candidate, Failure> {
    if let Some(bundle) = upload::open(path)? {
        let order = upload::lay_out(bundle, scratch)?;
        return Ok(Candidate { order, record: Some(with_suffix(path, record::SUFFIX)) });
    }
    let has_manifest = path.join(FILE).exists();
    let is_sources = path.is_dir() && (has_manifest || order::read(path).is_err());
    if !is_sources {
        let mut orders = submit::orders_in(path)?;
        return match (orders.pop(), orders.is_empty()) {
            (Some(order), true) => {
                let url = order.plugin.as_ref().map_or("", |plugin| &plugin.gcs_signed_url);
                let archive = file_of(&ArtifactUrl::new(url));
                let record = archive.map(|archive| with_suffix(&archive, record::SUFFIX));
                Ok(Candidate { order, record })
            }
            _ => Err(Failure::usage(format_args!("{} has several orders", path.display()))
                .hint("check one plugin at a time")),
        };
    }
    let manifest = PluginManifest::find(path)?;
    let architecture = match &manifest {
        None => ANY_ARCHITECTURE.to_owned(),
        Some(manifest) => {
            let architecture = manifest.architecture_here().ok_or_else(|| {
                Failure::failed("plugin.toml does not name the architecture of this machine")
                    .hint("add it to architectures")
            })?;
            build::build(manifest, &architecture).map_err(|error| Failure::of(&error))?;
            architecture
        }
    };
    let wanted = Wanted::of(path, manifest);
    let archive = scratch.join("archive.tar.gz");
    let package = wanted.pack(&architecture, &archive, &*services.pack)?;
    let revision = wanted.revision(std::slice::from_ref(&package));
    let order = wanted.order(&package, &revision, &file_url(&archive)?)?;
    let order = order::decode(&order)
        .map_err(|error| Failure::failed("it makes no order").because(&error))?;
    Ok(Candidate { order, record: None })
}

/// Prints a finding: a line where all is well; what, why and the fix where it is not.
fn tell(console: &mut Console<'_>, finding: &Finding) -> std::io::Result<()> {
    let tone = match finding.result {
        "passed" => Tone::Good,
        "failed" => Tone::Bad,
        "warned" => Tone::Busy,
        _ => Tone::Quiet,
    };
    let result = console.paint(tone, &format!("{:<7}", finding.result));
    console.text(&format!(
        "{result}  {:<15}  {}\n",
        finding.check,
        super::format::one_line(&finding.what)
    ))?;
    if let Some(fix) = &finding.fix {
        console.text(&format!("{:27}why: {}\n{:27}fix: {fix}\n", "", finding.why, ""))?;
    }
    Ok(())
}

fn summary(report: &Report) -> String {
    let count = |result: &str| report.checks.iter().filter(|it| it.result == result).count();
    format!(
        "{} {}: {} passed, {} failed, {} warned, {} skipped",
        report.plugin,
        report.revision,
        count("passed"),
        count("failed"),
        count("warned"),
        count("skipped")
    )
}
