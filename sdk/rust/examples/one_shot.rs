//! A whole one-shot plugin on one page: it counts its runs, and does what its configuration says.
//!
//! guest-agent launches it when it is installed and by its triggers; to try it by hand:
//!
//! ```text
//! cargo run -p guest-agent-plugin --example one_shot
//! ```

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use guest_agent_plugin::{PluginError, RunContext, run_once};
use serde::Deserialize;

/// The configuration, as JSON: `{"greeting": "hello", "sleep_seconds": 0, "fail": "a reason"}`.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    greeting: String,
    sleep_seconds: f64,
    fail: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { greeting: "hello".to_owned(), sleep_seconds: 0.0, fail: None }
    }
}

fn main() -> ExitCode {
    run_once(work)
}

fn work(run: RunContext) -> Result<(), PluginError> {
    let settings = match &run.config {
        None => Settings::default(),
        Some(config) => {
            config.parse().map_err(|error| PluginError::bad_config(error.to_string()))?
        }
    };
    // Files in the plugin's own directory are still there in the next run.
    let counter = run.state_directory.join("runs");
    let runs =
        fs::read_to_string(&counter).ok().and_then(|text| text.parse().ok()).unwrap_or(0u32) + 1;
    fs::write(&counter, runs.to_string())?;
    // The report to the control plane holds the last lines of stdout and stderr.
    println!("{}, this is run {runs}", settings.greeting);
    if let Ok(pause) = Duration::try_from_secs_f64(settings.sleep_seconds) {
        std::thread::sleep(pause);
    }
    match settings.fail {
        Some(reason) => Err(PluginError::failed(reason)),
        None => Ok(()),
    }
}
