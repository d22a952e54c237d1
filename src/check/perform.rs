//! Which code tries what.

use guest_agent_actors::ports::Cause;

use super::bench::Bench;
use super::report::Verdict;
use super::trial::Trial;
use super::{life, machine};

/// Runs a trial, on a plugin that runs.
pub(super) async fn perform(trial: Trial, bench: &mut Bench) -> Result<Verdict, Cause> {
    if trial != Trial::Start {
        bench.ready().await?;
    }
    match trial {
        Trial::Start => life::start(bench).await,
        Trial::Health => life::health(bench).await,
        Trial::Question => life::question(bench).await,
        Trial::ApplyText => life::apply_text(bench).await,
        Trial::ApplyStructure => life::apply_structure(bench).await,
        Trial::ApplyNothing => life::apply_nothing(bench).await,
        Trial::ApplyGarbage => life::apply_garbage(bench).await,
        Trial::VmEvent => life::vm_event(bench).await,
        Trial::Stop => life::stop(bench).await,
        Trial::Adoption => life::adoption(bench).await,
        Trial::Kill => life::killed(bench).await,
        Trial::Pause => life::pause(bench).await,
        Trial::Restarts => life::restarts(bench).await,
        Trial::Memory => machine::memory(bench).await,
        Trial::Cpu => machine::cpu(bench).await,
        Trial::FullDisk => machine::full_disk(bench).await,
        Trial::ReadOnly => machine::read_only(bench).await,
        Trial::Environment => machine::environment(bench).await,
        Trial::HostSocket => machine::host_socket(bench).await,
        Trial::Unprivileged => machine::unprivileged(bench).await,
        Trial::Policy => machine::policy(bench).await,
        Trial::Removal => life::removal(bench).await,
    }
}
