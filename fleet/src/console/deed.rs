//! What people do beside steering rollouts: with agents, holds, tokens and assignments. Each has a page that
//! says what will happen to how many machines, and asks. Pure; [`super::deeds`] carries it out.

use guest_agent_proto::fleet_api::{Agent, Role};
use maud::{Markup, html};

use super::pieces::{one_line, page_of, query};
use super::role::May;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// Leaves an agent out of every count.
    Archive,
    /// Counts it again.
    Unarchive,
    /// Gives one in quarantine its orders again.
    ReleaseAgent,
    /// Revokes an agent and its certificates.
    RevokeAgent,
    /// Ends a hold.
    EndHold,
    /// Has the orders of an assignment that failed given again.
    Retry,
    /// Revokes a join token.
    RevokeToken,
}

// === impl Deed ===

impl Deed {
    const ALL: [Self; 7] = [
        Self::Archive,
        Self::Unarchive,
        Self::ReleaseAgent,
        Self::RevokeAgent,
        Self::EndHold,
        Self::Retry,
        Self::RevokeToken,
    ];

    /// Its word in addresses.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Archive => "archive",
            Self::Unarchive => "unarchive",
            Self::ReleaseAgent => "release-agent",
            Self::RevokeAgent => "revoke-agent",
            Self::EndHold => "end-hold",
            Self::Retry => "retry",
            Self::RevokeToken => "revoke-token",
        }
    }

    /// What a word stands for.
    pub(super) fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|deed| deed.word() == word)
    }

    /// What its button says.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Archive => "Archive",
            Self::Unarchive => "Count again",
            Self::ReleaseAgent => "Release from quarantine",
            Self::RevokeAgent | Self::RevokeToken => "Revoke",
            Self::EndHold => "Release",
            Self::Retry => "Try again",
        }
    }

    /// The least role that may.
    pub(super) const fn role(self) -> Role {
        match self {
            Self::EndHold | Self::Retry | Self::Archive | Self::Unarchive => Role::Operator,
            Self::ReleaseAgent | Self::RevokeAgent | Self::RevokeToken => Role::Admin,
        }
    }

    /// Whether it takes something away for good.
    pub(super) const fn is_dangerous(self) -> bool {
        matches!(self, Self::RevokeAgent | Self::RevokeToken)
    }

    /// What makes sense for an agent as it is.
    pub(super) fn of_agent(agent: &Agent) -> Vec<Self> {
        let mut deeds = Vec::new();
        if agent.quarantine.is_some() {
            deeds.push(Self::ReleaseAgent);
        }
        deeds.push(if agent.archived.is_some() { Self::Unarchive } else { Self::Archive });
        if agent.revoked.is_none() {
            deeds.push(Self::RevokeAgent);
        }
        deeds
    }

    /// The command that does the same.
    pub(super) fn command(self, of: &str) -> String {
        let of = super::pieces::shell(of);
        match self {
            Self::Archive => format!("guest-fleet agent archive {of}"),
            Self::Unarchive => format!("guest-fleet agent unarchive {of}"),
            Self::ReleaseAgent => format!("guest-fleet agent release {of}"),
            Self::RevokeAgent => format!("guest-fleet agent revoke {of}"),
            Self::EndHold => format!("guest-fleet release {of}"),
            Self::Retry => format!("guest-fleet retry {of}"),
            Self::RevokeToken => format!("guest-fleet token revoke {of}"),
        }
    }

    /// What it will do, as sentences.
    pub(super) fn means(self, of: &str) -> Vec<String> {
        let of = one_line(of);
        let sentences: &[&str] = match self {
            Self::Archive => &[
                "is left out of every count and gets no orders until it connects again.",
                "Nothing on the machine changes.",
            ],
            Self::Unarchive => &["is counted again, though it has not connected."],
            Self::ReleaseAgent => &[
                "gets its orders again.",
                "Do this once a single machine has its identity: where two still use it, it comes back into quarantine.",
            ],
            Self::RevokeAgent => &[
                "and every certificate that it has are revoked; its streams end within seconds.",
                "What it runs keeps running. To come back, it has to enrol anew.",
            ],
            Self::EndHold => &["ends, and changes that waited for it are ordered at once."],
            Self::Retry => {
                &["is tried again by the machines on which it failed or that went back."]
            }
            Self::RevokeToken => &["enrols nobody any more; the agents that it enrolled stay."],
        };
        let mut sentences = sentences.iter().map(|it| (*it).to_owned());
        let first = sentences.next().map(|first| format!("{of} {first}"));
        first.into_iter().chain(sentences).collect()
    }

    /// The page that is shown once it was done.
    pub(super) fn back(self, of: &str) -> String {
        match self {
            Self::Archive | Self::Unarchive | Self::ReleaseAgent | Self::RevokeAgent => {
                page_of("agent", of)
            }
            Self::EndHold => "/console/holds".to_owned(),
            Self::Retry => "/console/assignments".to_owned(),
            Self::RevokeToken => "/console/enrolment".to_owned(),
        }
    }

    /// Where the page that asks is.
    pub(super) fn address(self, of: &str) -> String {
        format!("/console/do/{}{}", self.word(), query(&[("of", of)]))
    }
}

/// The buttons of what can be done with something, for those who may. Each leads to a page that asks.
pub(super) fn buttons(deeds: &[Deed], of: &str, may: &May) -> Markup {
    let deeds: Vec<&Deed> = deeds.iter().filter(|deed| may.act_as(deed.role())).collect();
    html! {
        @if !deeds.is_empty() {
            div class="actions" {
                @for deed in deeds {
                    a class=(if deed.is_dangerous() { "button danger" } else { "button" })
                        href=(deed.address(of)) aria-label={ (deed.name()) " " (one_line(of)) } { (deed.name()) "…" }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_deed_says_what_it_means_and_has_a_word_of_its_own() {
        for deed in Deed::ALL {
            assert_eq!(Deed::named(deed.word()), Some(deed));
            let means = deed.means("x\ny");
            assert!(means[0].starts_with("x y "), "{means:?}");
            assert!(means.iter().all(|it| it.ends_with('.')), "{means:?}");
            assert!(deed.command("x").starts_with("guest-fleet "));
            assert!(deed.back("x").starts_with("/console/"));
        }
        assert_eq!(Deed::named("paint"), None);
    }

    #[test]
    fn what_can_be_done_follows_from_what_an_agent_is() {
        let agent = Agent { quarantine: Some("two machines".to_owned()), ..Agent::default() };
        assert_eq!(Deed::of_agent(&agent), [Deed::ReleaseAgent, Deed::Archive, Deed::RevokeAgent]);
        let at = Some(prost_types::Timestamp::default());
        let agent = Agent { archived: at, revoked: at, ..Agent::default() };
        assert_eq!(Deed::of_agent(&agent), [Deed::Unarchive]);
    }
}
