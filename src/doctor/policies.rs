//! Whether the policies of plugins can be enforced on this machine.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

use crate::config::Policy;
use crate::config::policy::{DEFAULTS, Seccomp};
use crate::process::sandbox::{self, Host as Machine, LANDLOCK_WHOLE};

use super::check::{Finding, Host, Severity};

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let policies = &host.config.policies;
    let named = policies
        .named
        .iter()
        .map(|(name, own)| (name.as_str().to_owned(), own, own.over(&policies.defaults)));
    let defaults = (DEFAULTS.to_owned(), &policies.defaults, policies.defaults.clone());
    let machine = Machine::look();
    // The agent may run as another user than the one who runs this check: it runs as the owner of
    // its state.
    let agent = std::fs::metadata(&host.config.agent.state_dir).map(|stat| stat.uid());
    let agent_is_root = agent.unwrap_or(0) == 0;
    let mut findings = Vec::new();
    let mut walled = BTreeSet::new();
    let mut filtered = BTreeSet::new();
    for (name, own, whole) in std::iter::once(defaults).chain(named) {
        if own.user.is_some() || own.group.is_some() {
            findings.extend(accounts(&name, &whole, &machine, agent_is_root));
        }
        findings.extend(paths(&name, own));
        if sandbox::keeps_to_files(&whole) {
            walled.insert(name.clone());
        }
        if whole.seccomp == Some(Seccomp::Default) {
            filtered.insert(name);
        }
    }
    findings.extend(landlock(&walled, machine.landlock));
    let filters = machine.seccomp && sandbox::seccomp_is_supported();
    if !filters && !filtered.is_empty() {
        findings.push(Finding::new(
            Severity::Warning,
            format!(
                "the kernel does not filter system calls, as {} should have it",
                tables(&filtered)
            ),
            "it was built without seccomp, or the agent has no profile for this processor",
            "use a kernel with CONFIG_SECCOMP_FILTER, or remove seccomp from the policy",
        ));
    }
    findings
}

fn accounts(
    name: &str,
    policy: &Policy,
    machine: &Machine,
    agent_is_root: bool,
) -> Option<Finding> {
    let resolved = sandbox::resolve(policy.user.as_ref(), policy.group.as_ref(), machine);
    match resolved {
        Err(error) => Some(Finding::new(
            Severity::Error,
            format!("the policy {} cannot be followed", table(name)),
            error.to_string(),
            format!("create the account (`useradd --system`), or correct {}", table(name)),
        )),
        Ok(_) if !agent_is_root => Some(Finding::new(
            Severity::Warning,
            format!("the user and group of {} are not enforced", table(name)),
            "the agent does not run as root, so its plugins run as the same user as the agent",
            "run the agent as root, or remove user and group from the policy",
        )),
        Ok(_) => None,
    }
}

/// Paths that are not there cannot be used by the plugin, also when they are made later.
fn paths(name: &str, own: &Policy) -> Vec<Finding> {
    let lists =
        [("read_only_paths", &own.read_only_paths), ("read_write_paths", &own.read_write_paths)];
    let all = lists.iter().flat_map(|(key, paths)| paths.iter().flatten().map(move |it| (key, it)));
    let absent = all.filter(|(_, path)| path.try_exists().is_ok_and(|there| !there));
    absent
        .map(|(key, path)| {
            let what = format!("{} of {}, does not exist", path.display(), table(name));
            let why = format!("{key} opens only paths that exist when the plugin starts");
            let fix = format!("make {} and restart the plugin, or remove it", path.display());
            Finding::new(Severity::Note, what, why, fix)
        })
        .collect()
}

fn landlock(walled: &BTreeSet<String>, version: u32) -> Option<Finding> {
    if walled.is_empty() || version >= LANDLOCK_WHOLE {
        return None;
    }
    let tables = tables(walled);
    Some(match version {
        0 => Finding::new(
            Severity::Warning,
            format!("the kernel has no Landlock, which {tables} would need"),
            "the access of plugins to files is not restricted",
            "use a kernel from 5.13 on, with landlock in its lsm= parameter",
        ),
        version => Finding::new(
            Severity::Warning,
            format!("Landlock of this kernel has version {version}, {tables} needs a later one"),
            format!(
                "before version {LANDLOCK_WHOLE}, a plugin can truncate files that it may only read"
            ),
            "use a kernel from 6.2 on",
        ),
    })
}

fn table(name: &str) -> String {
    format!("[plugins.{name}]")
}

fn tables(names: &BTreeSet<String>) -> String {
    names.iter().map(|name| table(name)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::config::policy::Account;
    use crate::doctor::Agent;

    fn examine(config: &Config) -> Vec<Finding> {
        let agent = Agent::Silent { reason: String::new(), hint: String::new(), process: None };
        check(&Host { config, agent: &agent, now: std::time::SystemTime::UNIX_EPOCH })
    }

    #[test]
    fn a_policy_of_a_user_who_does_not_exist_is_found_and_others_are_not() {
        let mut config = Config::default();
        assert_eq!(examine(&config), []);
        let name = |text: &str| text.parse().expect("a name");
        let user = |user: &str| {
            let user = Some(Account::parse(user).expect("a name"));
            Policy { user, ..Policy::default() }
        };
        config.policies.named.insert(name("good"), user("root"));
        assert_eq!(examine(&config), []);
        config.policies.named.insert(name("bad"), user("no-such-user"));
        let findings = examine(&config);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].severity, Severity::Error);
        assert!(findings[0].what.contains("[plugins.bad]"), "{findings:?}");
        assert!(findings[0].why.contains("no-such-user"), "{findings:?}");
    }

    #[test]
    fn a_path_that_is_not_there_is_a_note() {
        let mut config = Config::default();
        config.policies.defaults.read_only_paths = Some(vec!["/".into(), "/not/there".into()]);
        let notes: Vec<_> = examine(&config).into_iter().filter(|it| !it.is_problem()).collect();
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].what.contains("/not/there"));
    }

    #[test]
    fn an_old_landlock_is_found_where_it_is_needed() {
        let walled: BTreeSet<_> = ["p".to_owned()].into();
        assert_eq!(landlock(&BTreeSet::new(), 0), None);
        assert_eq!(landlock(&walled, LANDLOCK_WHOLE), None);
        let none = landlock(&walled, 0).expect("a finding");
        assert!(none.what.contains("no Landlock") && none.what.contains("[plugins.p]"), "{none:?}");
        let old = landlock(&walled, 1).expect("a finding");
        assert!(old.what.contains("version 1") && old.why.contains("truncate"), "{old:?}");
    }
}
