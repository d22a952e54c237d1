//! The pages that can be asked for, with what is looked for on them.

use serde::Deserialize;

use super::agents::Wanted;
use super::pieces::query;

/// A page.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    /// What needs somebody now.
    Now,
    /// All rollouts.
    Rollouts,
    /// The rollout of this name.
    Rollout(String),
    /// A page of agents.
    Agents(Wanted),
    /// The agent of this id.
    Agent(String),
    /// All releases.
    Releases,
    /// All assignments.
    Assignments,
    /// All holds and windows.
    Holds,
    /// Join tokens, quarantine and archive.
    Enrolment,
    /// The audit record before this entry; from the newest where it is 0.
    Audit {
        /// Number of that entry.
        before: u64,
        /// Whether the whole record is to be checked.
        check: bool,
    },
    /// The control plane itself.
    System,
}

/// The query of a page. Each page takes from it what it knows.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    /// Which page, where the address is that of a stream.
    pub(super) page: String,
    /// A name, or an id.
    pub(super) of: String,
    /// What was done a moment ago.
    pub(super) done: String,
    select: String,
    plugin: String,
    state: String,
    archived: String,
    after: String,
    before: String,
    check: String,
}

// === impl Topic ===

impl Topic {
    /// The page of a word of an address.
    pub(super) fn of(page: &str, asked: Asked) -> Option<Self> {
        Some(match page {
            "now" => Self::Now,
            "rollouts" => Self::Rollouts,
            "rollout" => Self::Rollout(asked.of),
            "agents" => Self::Agents(Wanted {
                select: asked.select.trim().to_owned(),
                plugin: asked.plugin.trim().to_owned(),
                state: asked.state,
                archived: asked.archived == "yes",
                after: asked.after,
            }),
            "agent" => Self::Agent(asked.of),
            "releases" => Self::Releases,
            "assignments" => Self::Assignments,
            "holds" => Self::Holds,
            "enrolment" => Self::Enrolment,
            "audit" => Self::Audit {
                before: asked.before.parse().unwrap_or(0),
                check: asked.check == "yes",
            },
            "system" => Self::System,
            _ => return None,
        })
    }

    /// The address of what changes on it; `None` where nothing does.
    pub(super) fn live(&self) -> Option<String> {
        let simple = |page: &str| Some(format!("/console/live{}", query(&[("page", page)])));
        let of = |page: &str, of: &str| {
            Some(format!("/console/live{}", query(&[("page", page), ("of", of)])))
        };
        match self {
            Self::Now => simple("now"),
            Self::Rollouts => simple("rollouts"),
            Self::Rollout(name) => of("rollout", name),
            Self::Agents(wanted) => {
                Some(format!("/console/live{}", wanted.query(&[("page", "agents")])))
            }
            Self::Agent(id) => of("agent", id),
            Self::Releases => simple("releases"),
            Self::Assignments => simple("assignments"),
            Self::Holds => simple("holds"),
            Self::Enrolment => simple("enrolment"),
            // Older entries do not change, and a check is made once.
            Self::Audit { before: 0, check: false } => simple("audit"),
            Self::Audit { .. } => None,
            Self::System => simple("system"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_a_page_is_of_the_same_page() {
        let asked = Asked {
            of: "a b".to_owned(),
            select: " env = prod ".to_owned(),
            state: "failed".to_owned(),
            archived: "yes".to_owned(),
            ..Asked::default()
        };
        let pages = [
            "now",
            "rollouts",
            "rollout",
            "agents",
            "agent",
            "releases",
            "assignments",
            "holds",
            "enrolment",
            "audit",
            "system",
        ];
        for page in pages {
            let topic = Topic::of(page, asked.clone()).expect("a page");
            let live = topic.live().expect("it changes");
            assert!(live.contains(&format!("page={page}")), "{live}");
        }
        let agents = Topic::of("agents", asked).and_then(|it| it.live()).expect("it changes");
        assert!(agents.contains("select=env%20%3D%20prod&state=failed&archived=yes"), "{agents}");
        assert_eq!(Topic::of("secret", Asked::default()), None);
        assert_eq!(Topic::Audit { before: 7, check: false }.live(), None);
    }
}
