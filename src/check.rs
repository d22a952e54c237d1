//! `check`: whether a plugin keeps to the contract, also while things around it fail.
//!
//! ```text
//! order ─► Bench: a private agent, the plugin in it ─► Trial, one after another ─► Finding ─► Report
//!                                                        life: calls, stops, crashes, restarts
//!                                                        machine: limits, disks, users, policies
//! ```
//!
//! Everything goes through the agent that machines run: its launcher, its watcher and its state machine. What this
//! machine cannot do is skipped and says so; a trial that only tells something is not required.

use std::time::{Duration, Instant};

use guest_agent_actors::ports::Cause;
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;

mod bench;
mod life;
mod machine;
mod perform;
pub mod record;
pub mod report;
mod trial;

use bench::Bench;
use perform::perform;
use report::{Finding, Report, Verdict};
pub use trial::Trial;

/// What is checked, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The order that installs the plugin, from an archive on this machine.
    pub order: ConfigurePlugin,
    /// The trials to run; all where it is empty.
    pub only: Vec<Trial>,
    /// The trials to leave out.
    pub skip: Vec<Trial>,
    /// How long the plugin is paused.
    pub pause: Duration,
}

/// Runs the trials, and hands each finding over when it is there. `None` where it was interrupted.
///
/// # Errors
/// The agent itself failed, so that nothing can be said of the plugin.
pub async fn check(
    options: Options,
    heard: impl FnMut(&Finding),
    interrupted: impl Future<Output = ()>,
) -> Result<Option<Report>, Cause> {
    let mut bench = Bench::new(options.order.clone(), options.pause).await?;
    let (plugin, revision) = (bench.name().to_owned(), bench.revision().to_owned());
    // The agent and its plugin end in every case, and a mount with the trial that made it.
    let findings = tokio::select! {
        findings = trials(&mut bench, &options, heard) => Some(findings),
        () = interrupted => None,
    };
    bench.end().await;
    Ok(findings.transpose()?.map(|findings| Report::new(plugin, revision, findings)))
}

async fn trials(
    bench: &mut Bench,
    options: &Options,
    mut heard: impl FnMut(&Finding),
) -> Result<Vec<Finding>, Cause> {
    let mut findings = Vec::new();
    let wanted = |trial: &Trial| {
        (options.only.is_empty() || options.only.contains(trial)) && !options.skip.contains(trial)
    };
    let mut is_startable = true;
    for trial in Trial::ALL {
        // Everything else needs a plugin that was installed.
        if !wanted(&trial) && trial != Trial::Start {
            continue;
        }
        let begun = Instant::now();
        let verdict = if !is_startable {
            Verdict::skipped("the plugin does not start")
        } else if bench.is_one_shot() && !trial.is_for_one_shots() {
            Verdict::skipped("a plugin that runs to completion serves nothing")
        } else {
            perform(trial, bench).await?
        };
        if trial == Trial::Start {
            is_startable = !matches!(verdict, Verdict::Failed { .. });
        }
        let finding = Finding::new(trial, verdict, begun.elapsed());
        heard(&finding);
        findings.push(finding);
    }
    Ok(findings)
}
