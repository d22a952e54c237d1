//! The groups that may use the agent's own socket: whether they exist, have members, and differ.

use std::fs::File;
use std::io::Read;

use nix::unistd::{Gid, Group};

use super::check::{Finding, Host, Severity};

/// Most bytes of the list of users that are read.
const USERS_MAX: u64 = 4 << 20;

/// A group as this machine knows it.
struct Known {
    gid: u32,
    has_members: bool,
}

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let agent = &host.config.agent;
    let groups = [
        ("agent.socket_group", "look", &agent.socket_group),
        ("agent.admin_group", "act", &agent.admin_group),
    ];
    let mut users = String::new();
    if let Ok(file) = File::open("/etc/passwd") {
        // Users of a network are not in it; a finding about members says so.
        let _partial = file.take(USERS_MAX).read_to_string(&mut users);
    }
    findings(&groups, &|name| known(name, &users))
}

/// What is known of the configured groups. Pure.
fn findings(
    groups: &[(&str, &str, &String)],
    look_up: &dyn Fn(&str) -> Option<Known>,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut gids = Vec::new();
    for (key, may, name) in groups.iter().filter(|(_, _, name)| !name.is_empty()) {
        let Some(group) = look_up(name) else {
            found.push(Finding::new(
                Severity::Warning,
                format!("the group {name:?} does not exist"),
                format!("{key} names it, so nobody may {may} over agent.sock by membership"),
                format!("`groupadd {name}` and restart the service, or correct {key}"),
            ));
            continue;
        };
        gids.push(group.gid);
        if group.has_members {
            found.push(Finding::new(
                Severity::Note,
                format!("members of the group {name:?} may {may} over agent.sock"),
                format!("{key} names it"),
                format!("`getent group {name}` lists them; empty {key} to end it"),
            ));
        } else {
            // A service may have a group by its unit, so this need not be wrong.
            found.push(Finding::new(
                Severity::Note,
                format!("the group {name:?} has no members on this machine"),
                format!("{key} names it; users of a network and units with SupplementaryGroups= are not seen here"),
                format!("`usermod -aG {name} USER`, and log in again"),
            ));
        }
    }
    if let [one, other] = gids.as_slice()
        && one == other
    {
        found.push(Finding::new(
            Severity::Warning,
            "agent.socket_group and agent.admin_group are the same group",
            "members who are to look may act as well, and have any program run as root",
            "empty agent.socket_group, or name another group there",
        ));
    }
    found
}

fn known(name: &str, users: &str) -> Option<Known> {
    let group = match name.parse() {
        Ok(number) => Group::from_gid(Gid::from_raw(number)),
        Err(_) => Group::from_name(name),
    };
    let group = group.ok().flatten()?;
    let gid = group.gid.as_raw();
    let is_primary =
        |line: &str| line.split(':').nth(3).and_then(|it| it.parse().ok()) == Some(gid);
    let has_members = !group.mem.is_empty() || users.lines().any(is_primary);
    Some(Known { gid, has_members })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(looks: &str, acts: &str, expected: &[(Severity, &str)]) {
        let (looks, acts) = (looks.to_owned(), acts.to_owned());
        let groups = [("agent.socket_group", "look", &looks), ("agent.admin_group", "act", &acts)];
        let look_up = |name: &str| match name {
            "viewers" => Some(Known { gid: 20, has_members: true }),
            "operators" | "30" => Some(Known { gid: 30, has_members: true }),
            "empty" => Some(Known { gid: 40, has_members: false }),
            _ => None,
        };
        let found = findings(&groups, &look_up);
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (finding, (severity, words)) in found.iter().zip(expected) {
            assert_eq!(finding.severity, *severity, "{finding:?}");
            assert!(finding.what.contains(words), "{words}: {finding:?}");
        }
    }

    #[test]
    fn both_groups_are_shown_with_what_is_wrong_with_them() {
        use Severity::{Note, Warning};
        check("", "", &[]);
        check("viewers", "", &[(Note, "\"viewers\" may look")]);
        let both = [(Note, "\"viewers\" may look"), (Note, "\"operators\" may act")];
        check("viewers", "operators", &both);
        check("gone", "operators", &[(Warning, "\"gone\" does not exist"), (Note, "may act")]);
        check("", "empty", &[(Note, "\"empty\" has no members")]);
        let same = [(Note, "may look"), (Note, "may act"), (Warning, "are the same group")];
        check("operators", "30", &same);
    }

    #[test]
    fn the_primary_group_of_a_user_has_a_member() {
        let users = "root:x:0:0:root:/root:/bin/sh\nbroken\n";
        let root = known("root", users).expect("every machine has it");
        assert_eq!((root.gid, root.has_members), (0, true));
        assert!(known("no-such-group-here", users).is_none());
        assert_eq!(known("0", users).map(|group| group.gid), Some(0));
    }
}
