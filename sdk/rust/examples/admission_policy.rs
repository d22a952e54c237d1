//! An admission plugin with a policy file: it denies content that the file does not allow.
//!
//! ```toml
//! [admission]
//! command = ["/usr/lib/guest-agent/admission_policy", "/etc/guest-agent/policy"]
//! ```
//!
//! Each line of the file is a rule; the first one that fits decides, and content without a fitting
//! rule is denied:
//!
//! ```text
//! # comment
//! deny  bad-plugin
//! allow backup 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
//! allow metrics *
//! ```

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use guest_agent_plugin::admission::{self, Check, Denial, Severity};

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: admission_policy FILE");
        return ExitCode::FAILURE;
    };
    let path: Arc<Path> = path.into();
    admission::run("admission_policy 1.0", move |check| decide(Arc::clone(&path), check))
}

async fn decide(path: Arc<Path>, check: Check) -> Result<(), Denial> {
    // Read for every check, so that a change counts at once. The agent remembers earlier answers
    // until it reads its configuration again (SIGHUP).
    let rules = std::fs::read_to_string(&path)
        .map_err(|error| Denial::new(format!("{} cannot be read: {error}", path.display())))?;
    let verdict = judge(&rules, &check.package, &check.sha256);
    let severity = if verdict.is_ok() { Severity::Info } else { Severity::Warning };
    let revision = check.metadata(&["revision"]).await?;
    let revision = revision.first().map(|it| String::from_utf8_lossy(&it.value).into_owned());
    let said = match &verdict {
        Ok(()) => "allowed".to_owned(),
        Err(reason) => format!("denied: {reason}"),
    };
    let what = format!("{} {}", check.package, revision.unwrap_or_default());
    check.log(severity, format!("{what}: {said}")).await;
    verdict.map_err(Denial::new)
}

/// The decision of the first rule that fits.
fn judge(rules: &str, package: &str, sha256: &str) -> Result<(), String> {
    for (number, line) in rules.lines().enumerate() {
        let rule: Vec<&str> =
            line.split('#').next().unwrap_or_default().split_whitespace().collect();
        let (verb, name, digest) = match rule[..] {
            [] => continue,
            [verb, name] => (verb, name, "*"),
            [verb, name, digest] => (verb, name, digest),
            _ => return Err(format!("line {} of the policy is not a rule", number + 1)),
        };
        let fits = |pattern: &str, text: &str| pattern == "*" || pattern.eq_ignore_ascii_case(text);
        match verb {
            "allow" | "deny" if !(fits(name, package) && fits(digest, sha256)) => {}
            "allow" => return Ok(()),
            "deny" => return Err(format!("line {} of the policy denies it", number + 1)),
            _ => return Err(format!("line {} of the policy is not a rule", number + 1)),
        }
    }
    Err("no line of the policy allows it".to_owned())
}

#[cfg(test)]
mod tests {
    use super::judge;

    #[test]
    fn the_first_rule_that_fits_decides_and_nothing_fits_by_itself() {
        let rules = "# all\ndeny bad\nallow one abc # pinned\nallow many\n";
        assert!(judge(rules, "many", "x").is_ok() && judge(rules, "one", "ABC").is_ok());
        for (package, digest) in [("bad", "x"), ("one", "x"), ("other", "abc")] {
            assert!(judge(rules, package, digest).is_err(), "{package} {digest}");
        }
        assert!(judge("alow many", "many", "x").is_err(), "a mistake allows nothing");
        assert!(judge("allow a b c", "a", "b").is_err());
    }
}
