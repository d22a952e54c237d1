//! How people steer a rollout: the buttons, and what each of them will do, with how many machines it
//! touches. Pure; [`super::deeds`] carries it out.

use guest_agent_proto::fleet_api::{Role, Rollout, RolloutProgress};

use super::pieces::{counted, one_line, revision};
use super::waves::{Reach, left, of_wave};

/// What is done with a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steer {
    Start,
    Approve,
    Pause,
    Resume,
    Halt,
    RollBack,
    Abort,
}

// === impl Steer ===

impl Steer {
    const ALL: [Self; 7] = [
        Self::Start,
        Self::Approve,
        Self::Pause,
        Self::Resume,
        Self::Halt,
        Self::RollBack,
        Self::Abort,
    ];

    /// Its word on the command line, in the API and in addresses.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Approve => "approve",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Halt => "halt",
            Self::RollBack => "rollback",
            Self::Abort => "abort",
        }
    }

    /// What a word stands for.
    pub(super) fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.word() == word)
    }

    /// What its button says.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Start => "Start",
            Self::Approve => "Approve the next wave",
            Self::Pause => "Pause",
            Self::Resume => "Resume",
            Self::Halt => "Halt",
            Self::RollBack => "Roll back",
            Self::Abort => "Abort",
        }
    }

    /// The least role that may.
    pub(super) const fn role(self) -> Role {
        match self {
            Self::Approve => Role::Approver,
            Self::Start
            | Self::Pause
            | Self::Resume
            | Self::Halt
            | Self::RollBack
            | Self::Abort => Role::Operator,
        }
    }

    /// What can be done with a rollout now.
    pub(super) fn suiting(rollout: &Rollout) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|one| rollout.verbs.iter().any(|verb| verb == one.word()))
    }

    /// Whether nobody can tell later why it was done, unless a person says so now.
    pub(super) fn needs_reason(self, rollout: &Rollout) -> bool {
        match self {
            Self::Halt => true,
            Self::Resume => rollout.state == "halted",
            _ => false,
        }
    }

    /// Whether it takes something away from machines, or keeps it from them.
    pub(super) const fn is_dangerous(self) -> bool {
        matches!(self, Self::RollBack | Self::Abort | Self::Halt)
    }

    /// How many machines it touches.
    pub(super) fn reach(self, rollout: &Rollout) -> Reach {
        let Some(progress) = &rollout.progress else {
            return match self {
                Self::Pause | Self::Abort => Reach::Exactly(0),
                _ => Reach::Unknown,
            };
        };
        match self {
            Self::Start => of_wave(rollout, 0),
            Self::Approve => of_wave(rollout, at(rollout.wave)),
            Self::Pause | Self::Abort => Reach::Exactly(0),
            Self::Halt => Reach::AtMost(progress.in_flight.into()),
            Self::Resume => Reach::AtMost(left(progress)),
            Self::RollBack => Reach::AtMost(having(progress)),
        }
    }

    /// What it will do, as sentences.
    pub(super) fn means(self, rollout: &Rollout) -> Vec<String> {
        let (to, from) = (revision(rollout.to.as_deref()), revision(rollout.from.as_deref()));
        let plugin = one_line(&rollout.plugin);
        let nobody = RolloutProgress::default();
        let progress = rollout.progress.as_ref().unwrap_or(&nobody);
        let under_way = counted(progress.in_flight.into(), "machine");
        let budget =
            format!("At most {} under way at one time.", counted(rollout.budget.into(), "machine"));
        let size = |at: usize| rollout.waves.get(at).map_or_else(String::new, |it| one_line(it));
        match self {
            Self::Start => vec![
                format!("Machines of the first wave ({}) are given {to} of {plugin}.", size(0)),
                budget,
            ],
            Self::Approve => vec![
                format!(
                    "Wave {} of {} ({}) begins: its machines are given {to} of {plugin}.",
                    rollout.wave + 1,
                    rollout.waves.len(),
                    size(at(rollout.wave))
                ),
                budget,
            ],
            Self::Pause => vec![
                format!("No other machine is given {to} of {plugin} until somebody resumes."),
                format!("{under_way} under way finish."),
            ],
            Self::Resume => {
                let mut means = vec![
                    format!(
                        "It goes on in wave {} of {}. Where nothing fails, {} more are given {to}.",
                        rollout.wave,
                        rollout.waves.len(),
                        counted(left(progress), "machine")
                    ),
                    budget,
                ];
                if rollout.state == "halted" {
                    means.push(
                        "What failed until now is counted no more, so a halt takes new failures."
                            .to_owned(),
                    );
                }
                means
            }
            Self::Halt => vec![
                format!(
                    "No order for {to} leaves any more. {under_way} under way may still finish."
                ),
                "A person has to resume it or roll it back.".to_owned(),
            ],
            Self::RollBack => vec![
                format!("Machines that were given {to} of {plugin} are given {from} again."),
                budget,
                "This cannot be stopped; a new rollout can follow it.".to_owned(),
            ],
            Self::Abort => vec![
                "The rollout ends where it is: nobody changes any more, in either direction."
                    .to_owned(),
                format!(
                    "{} keep {to}, and {} keep {from}.",
                    counted(progress.given.into(), "machine"),
                    counted(left(progress), "machine")
                ),
            ],
        }
    }

    /// The sentence on the rollout's page once it was done.
    pub(super) const fn done(self) -> &'static str {
        match self {
            Self::Start => "Started.",
            Self::Approve => "Approved.",
            Self::Pause => "Paused.",
            Self::Resume => "Resumed.",
            Self::Halt => "Halted.",
            Self::RollBack => "It rolls back now.",
            Self::Abort => "Aborted.",
        }
    }
}

/// Where the wave after this one, which is counted from 1, is in the list.
fn at(wave: u64) -> usize {
    usize::try_from(wave).unwrap_or(usize::MAX)
}

/// How many were given the new release and are not back.
fn having(progress: &RolloutProgress) -> u64 {
    let back = progress.stands.iter().filter(|one| one.stand == "back");
    let back = back.map(|one| one.agents).fold(0, u32::saturating_add);
    progress.given.saturating_sub(back).into()
}

#[cfg(test)]
mod tests {
    use guest_agent_proto::fleet_api::Stand;

    use super::*;

    fn rollout(state: &str) -> Rollout {
        Rollout {
            state: state.to_owned(),
            plugin: "monitor".to_owned(),
            from: Some("1.0".to_owned()),
            to: Some("1.1".to_owned()),
            waves: ["1", "4", "100%"].map(str::to_owned).to_vec(),
            wave: 2,
            budget: 10,
            progress: Some(RolloutProgress {
                targets: 50,
                given: 5,
                in_flight: 2,
                stands: vec![Stand { agents: 1, stand: "back".to_owned() }],
                ..RolloutProgress::default()
            }),
            ..Rollout::default()
        }
    }

    #[test]
    fn each_button_says_how_many_machines_it_touches() {
        let rollout = rollout("waiting for approval");
        let reach = |steer: Steer| steer.reach(&rollout).short();
        assert_eq!(reach(Steer::Approve), "45 machines");
        assert_eq!(reach(Steer::Pause), "no machine");
        assert_eq!(reach(Steer::Halt), "≤ 2 machines");
        assert_eq!(reach(Steer::Resume), "≤ 45 machines");
        assert_eq!(reach(Steer::RollBack), "≤ 4 machines");
    }

    #[test]
    fn every_verb_says_what_it_means_and_has_a_word_of_its_own() {
        for steer in Steer::ALL {
            assert_eq!(Steer::named(steer.word()), Some(steer));
            let means = steer.means(&rollout("halted"));
            assert!(means.len() > 1 && means.iter().all(|it| it.ends_with('.')), "{means:?}");
            assert!(!steer.means(&Rollout::default()).is_empty(), "of one that nobody counted");
        }
        assert_eq!(Steer::named("paint"), None);
    }

    #[test]
    fn the_verbs_are_those_of_the_core() {
        use guest_fleet_core::rollout::{Cause, Stage, State};
        let states = [
            State::Draft,
            State::Running(Stage::Approval),
            State::Paused(Stage::Reaching),
            State::Halted(Cause::Restored),
        ];
        for verb in states.iter().flat_map(State::verbs) {
            assert!(Steer::named(verb).is_some(), "{verb} has no button");
        }
    }

    #[test]
    fn only_what_the_api_names_is_offered() {
        let mut rollout = rollout("halted");
        rollout.verbs = vec!["resume".to_owned(), "later".to_owned()];
        assert_eq!(Steer::suiting(&rollout).collect::<Vec<_>>(), [Steer::Resume]);
        assert!(Steer::Resume.needs_reason(&rollout));
    }
}
