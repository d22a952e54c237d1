//! A plugin to be shown.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::model::history::History;
use crate::model::id::{Generation, Sha256Digest};
use crate::model::runs::Runs;
use crate::model::spec::{
    Artifact, ArtifactUrl, EntryPoint, Execution, Limits, MetricsPolicy, PluginSpec, Source, Tries,
};
use crate::model::view::{Activity, Outlook, PluginView, Reported};
use crate::ports::Unenforced;

/// What a running plugin of this name and revision looks like.
///
/// # Panics
/// When `name` is not a valid plugin name or `revision` not a valid revision.
#[must_use]
pub fn sample_view(name: &str, revision: &str) -> PluginView {
    let tries = Tries { attempts: 1, timeout: Duration::from_secs(30) };
    let spec = Arc::new(PluginSpec {
        name: name.parse().expect("a name"),
        revision: revision.parse().expect("a revision"),
        source: Source::Archive(Artifact {
            url: ArtifactUrl::new("https://store.example/a.tar.gz?signature=secret"),
            sha256: Sha256Digest::of(revision.as_bytes()),
        }),
        entry_point: EntryPoint::parse("bin/plugin").expect("a path"),
        arguments: Vec::new(),
        limits: Limits::default(),
        download: tries,
        start: tries,
        stop_timeout: Duration::from_secs(30),
        metrics: MetricsPolicy { interval: Duration::from_secs(10), points: 60 },
        backoff_factor: 2,
        config: None,
        execution: Execution::default(),
        order_digest: None,
    });
    PluginView {
        name: spec.name.clone(),
        revision: spec.revision.clone(),
        state: Reported::Running,
        reason: "".into(),
        pending: None,
        generation: Generation(1),
        activity: Activity::Settled,
        pid: Some(1),
        endpoint: None,
        config_hash: None,
        restarts: 0,
        last_exit: None,
        started_at: None,
        health: None,
        progress: None,
        metrics: spec.metrics,
        current: Some(spec.clone()),
        runs: Runs::default(),
        last_output: "".into(),
        unenforced: Unenforced::default(),
        spec,
        history: History::default(),
        limits: Limits::default(),
        limit_override: None,
        stopped: None,
        held: None,
        left: None,
        on_trial: false,
        way_back: None,
        needed: BTreeSet::new(),
        outlook: Outlook::default(),
    }
}
