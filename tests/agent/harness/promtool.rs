//! Prometheus' own tool, where it is installed or `tests/alerts/get-promtool` got it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// The program; `None` where it is not installed.
fn program() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let agent = std::path::Path::new(env!("CARGO_BIN_EXE_guest-agent"));
    let target = agent.ancestors().nth(2).map(|target| target.join("promtool"));
    let mut paths = std::env::split_paths(&folders).chain(target).map(|it| it.join("promtool"));
    paths.find(|path| path.is_file())
}

/// Whether promtool is installed. Prints a line where it is not.
pub(crate) fn is_here(what_for: &str) -> bool {
    let is_here = program().is_some();
    if !is_here {
        println!("SKIPPED: {what_for}: no promtool here; tests/alerts/get-promtool gets it");
    }
    is_here
}

/// Carries tests of a file of rules out. They stay in the target folder for people to look at.
pub(crate) fn test_rules(name: &str, rules: &Path, interval: &str, tests: &[Value]) {
    let document = json!({
        "rule_files": [rules],
        "evaluation_interval": interval,
        "tests": tests,
    });
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("alerts");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(format!("{name}.json"));
    // JSON is YAML.
    std::fs::write(&path, document.to_string()).unwrap();
    check(&["test", "rules", &path.display().to_string()], "");
}

/// Runs it with this input; the test fails with its words if it does. Without the tool, says that
/// nothing was checked.
pub(crate) fn check(arguments: &[&str], input: &str) {
    if !is_here(&format!("promtool {}", arguments.join(" "))) {
        return;
    }
    let mut command = Command::new(program().unwrap());
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tool = command.spawn().unwrap();
    tool.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let said = tool.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert!(said.status.success(), "promtool {arguments:?}: {out}{err}");
}
