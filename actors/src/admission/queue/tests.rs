use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn gate() -> Gate {
    let command = AdmissionCommand::new(&["/bin/admit".to_owned(), "--token=hunter2".to_owned()]);
    Gate { command, timeout: Duration::from_secs(60) }
}

fn queue() -> AdmissionQueue {
    AdmissionQueue::new([3; 32], gate())
}

fn question(package: &str) -> Question {
    Question {
        package: package.into(),
        sha256: Sha256Digest::of(package.as_bytes()),
        metadata: vec![("revision", "1".to_owned())],
    }
}

fn asked(asker: u64, package: &str) -> Event {
    Event::Asked {
        asker: Asker(asker),
        service_url: "https://control".into(),
        question: question(package),
        at: SystemTime::UNIX_EPOCH,
    }
}

fn id_of(queue: &AdmissionQueue, package: &str) -> String {
    let sha256 = Sha256Digest::of(package.as_bytes());
    CheckId::of(&queue.salt, "https://control", package, sha256).as_str().to_owned()
}

fn resolved(queue: &AdmissionQueue, life: u64, package: &str, verdict: AdmissionVerdict) -> Event {
    Event::Resolved { life: ProcessRun(life), id: id_of(queue, package), verdict }
}

fn listed(life: u64) -> Event {
    Event::Listed { life: ProcessRun(life), protocol_version: 1 }
}

fn ended(life: u64) -> Event {
    Event::Ended { life: ProcessRun(life), how: "exited with code 3".into() }
}

/// A queue whose plugin process, run 1, has got these checks, from callers 0, 1, …
fn serving(packages: &[&str]) -> AdmissionQueue {
    let mut queue = queue();
    for (asker, package) in (0..).zip(packages) {
        drop(queue.step(asked(asker, package)));
    }
    drop(queue.step(listed(1)));
    queue
}

/// The answer that each caller got, as text.
fn told(effects: &[Effect]) -> BTreeMap<u64, String> {
    let told = effects.iter().filter_map(|effect| match effect {
        Effect::Tell { asker, verdict: AdmissionVerdict::Admitted } => {
            Some((asker.0, "ok".to_owned()))
        }
        Effect::Tell { asker, verdict: AdmissionVerdict::Closing } => {
            Some((asker.0, "closing".to_owned()))
        }
        Effect::Tell { asker, verdict: AdmissionVerdict::Denied(why) } => {
            Some((asker.0, why.to_string()))
        }
        _ => None,
    });
    told.collect()
}

fn offered(effects: &[Effect]) -> Vec<&str> {
    let offered = effects.iter().filter_map(|effect| match effect {
        Effect::Offer { offer, .. } => Some(&*offer.package),
        _ => None,
    });
    offered.collect()
}

fn launches(effects: &[Effect]) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::Launch { .. })).count()
}

fn ends(effects: &[Effect]) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::End { .. })).count()
}

#[test]
fn without_a_plugin_everything_is_admitted() {
    let mut queue = AdmissionQueue::new([0; 32], Gate::default());
    assert_eq!(told(&queue.step(asked(0, "a")))[&0], "ok");
    assert_eq!(queue.deadline(), None);
}

#[test]
fn the_first_question_starts_a_plugin_and_the_stream_brings_all_of_them_in_order() {
    let mut queue = queue();
    assert_eq!(launches(&queue.step(asked(0, "z"))), 1);
    assert_eq!(launches(&queue.step(asked(1, "a"))), 0);
    assert_eq!(queue.deadline(), Some((Wait::Connect(ProcessRun(1)), CONNECT_WAIT)));
    let effects = queue.step(listed(1));
    assert_eq!(effects[0], Effect::AnswerList(Ok(())));
    assert_eq!(offered(&effects), ["z", "a"]);
    assert_eq!(offered(&queue.step(asked(2, "m"))), ["m"], "what comes later is offered at once");
    assert_eq!(queue.deadline(), None);
}

#[test]
fn askers_of_the_same_share_one_check_and_its_answer_is_remembered() {
    let mut queue = serving(&["a"]);
    assert!(queue.step(asked(1, "a")).is_empty(), "nothing is offered twice");
    let effects = queue.step(resolved(&queue, 1, "a", AdmissionVerdict::Admitted));
    assert_eq!(told(&effects), BTreeMap::from([(0, "ok".into()), (1, "ok".into())]));
    let effects = queue.step(asked(2, "a"));
    assert_eq!((told(&effects)[&2].as_str(), effects.len()), ("ok", 1));
    // Also when the plugin that gave the answer has ended.
    drop(queue.step(ended(1)));
    assert_eq!(told(&queue.step(asked(3, "a")))[&3], "ok");
}

#[test]
fn the_first_answer_wins_and_unknown_ids_do_no_harm() {
    let mut queue = serving(&["a"]);
    let unknown = Event::Resolved {
        life: ProcessRun(1),
        id: "x".into(),
        verdict: AdmissionVerdict::Admitted,
    };
    assert!(queue.step(unknown).is_empty());
    let no = AdmissionVerdict::Denied("no".into());
    assert_eq!(told(&queue.step(resolved(&queue, 1, "a", no)))[&0], "no");
    assert!(queue.step(resolved(&queue, 1, "a", AdmissionVerdict::Admitted)).is_empty());
    assert_eq!(told(&queue.step(asked(1, "a")))[&1], "no", "a denial is remembered too");
}

#[test]
fn a_plugin_that_ends_denies_what_it_was_told_of_and_the_next_one_is_asked_later() {
    let mut queue = serving(&["a", "b"]);
    drop(queue.step(resolved(&queue, 1, "a", AdmissionVerdict::Admitted)));
    let effects = queue.step(ended(1));
    assert_eq!(told(&effects)[&1], "the admission plugin ended: exited with code 3");
    let Some((Wait::Retry, pause)) = queue.deadline() else { panic!("no pause") };
    assert!(pause > Duration::ZERO && pause <= PAUSES.max);
    assert_eq!(launches(&queue.step(asked(2, "b"))), 0, "not before the pause is over");
    assert_eq!(launches(&queue.step(Event::DeadlinePassed(Wait::Retry))), 1);
    assert_eq!(offered(&queue.step(listed(2))), ["b"]);
    assert!(
        queue.step(resolved(&queue, 1, "b", AdmissionVerdict::Admitted)).is_empty(),
        "an old ticket"
    );
}

#[test]
fn a_plugin_is_not_started_when_nobody_asks() {
    let mut queue = serving(&["a"]);
    drop(queue.step(ended(1)));
    assert!(queue.step(Event::DeadlinePassed(Wait::Retry)).is_empty());
    assert_eq!(queue.deadline(), None);
    assert_eq!(launches(&queue.step(asked(1, "a"))), 1);
}

#[test]
fn pauses_grow_until_a_plugin_answers() {
    let mut queue = queue();
    let mut pauses = Vec::new();
    for life in 1..=12 {
        drop(queue.step(asked(life, "a")));
        drop(queue.step(Event::DeadlinePassed(Wait::Retry)));
        drop(queue.step(ended(life)));
        pauses.push(queue.deadline().expect("a pause").1);
    }
    assert!(pauses[0] <= PAUSES.initial && pauses[11] >= PAUSES.max / 2, "{pauses:?}");
    drop(queue.step(asked(99, "a")));
    drop(queue.step(Event::DeadlinePassed(Wait::Retry)));
    drop(queue.step(listed(13)));
    drop(queue.step(resolved(&queue, 13, "a", AdmissionVerdict::Admitted)));
    drop(queue.step(ended(13)));
    assert!(queue.deadline().expect("a pause").1 <= PAUSES.initial);
}

#[test]
fn a_plugin_that_never_connects_denies_all_who_wait() {
    let mut queue = queue();
    drop(queue.step(asked(0, "a")));
    let effects = queue.step(Event::DeadlinePassed(Wait::Connect(ProcessRun(1))));
    assert!(told(&effects)[&0].contains("within 30s"), "{effects:?}");
    assert_eq!(ends(&effects), 1);
    assert!(matches!(queue.step(listed(1))[0], Effect::AnswerList(Err(_))), "too late");
}

#[test]
fn a_plugin_that_cannot_be_started_denies_with_the_reason() {
    let mut queue = queue();
    drop(queue.step(asked(0, "a")));
    let how = "there is no such file".into();
    let effects = queue.step(Event::Ended { life: ProcessRun(1), how });
    assert!(told(&effects)[&0].contains("there is no such file"), "{effects:?}");
}

#[test]
fn another_version_is_refused_and_denies_all_who_wait() {
    let mut queue = queue();
    drop(queue.step(asked(0, "a")));
    let effects = queue.step(Event::Listed { life: ProcessRun(1), protocol_version: 2 });
    assert!(matches!(effects[0], Effect::AnswerList(Err(_))));
    assert!(told(&effects)[&0].contains("version 2"), "{effects:?}");
    assert_eq!(ends(&effects), 1);
}

#[test]
fn a_second_list_is_refused_and_the_first_goes_on() {
    let mut queue = serving(&["a"]);
    let effects = queue.step(listed(1));
    assert!(matches!(&effects[..], [Effect::AnswerList(Err(_))]), "{effects:?}");
    assert_eq!(told(&queue.step(resolved(&queue, 1, "a", AdmissionVerdict::Admitted)))[&0], "ok");
}

#[test]
fn the_exit_status_of_one_that_hung_up_is_waited_for_a_moment() {
    let mut with_status = serving(&["a"]);
    assert!(with_status.step(Event::HungUp { life: ProcessRun(1) }).is_empty());
    assert_eq!(with_status.deadline(), Some((Wait::Exit(ProcessRun(1)), EXIT_WAIT)));
    assert!(told(&with_status.step(ended(1)))[&0].contains("code 3"));

    let mut without = serving(&["a"]);
    drop(without.step(Event::HungUp { life: ProcessRun(1) }));
    drop(without.step(asked(1, "b")));
    let effects = without.step(Event::DeadlinePassed(Wait::Exit(ProcessRun(1))));
    let told = told(&effects);
    assert!(told[&0].contains("closed its connection"), "{told:?}");
    assert_eq!((told.len(), ends(&effects)), (1, 1), "what it was not told of waits for the next");
}

#[test]
fn who_waits_too_long_is_denied_and_a_plugin_that_answers_nobody_is_replaced() {
    let mut queue = serving(&["a", "b"]);
    drop(queue.step(resolved(&queue, 1, "a", AdmissionVerdict::Admitted)));
    let late = |asker| Event::DeadlinePassed(Wait::Answer(Asker(asker)));
    let effects = queue.step(late(1));
    assert!(told(&effects)[&1].contains("within 60s"), "{effects:?}");
    assert_eq!(ends(&effects), 0, "it answered another one meanwhile");
    drop(queue.step(asked(2, "c")));
    drop(queue.step(asked(3, "d")));
    let effects = queue.step(late(2));
    assert_eq!((told(&effects).len(), ends(&effects)), (1, 1));
    assert_eq!(launches(&queue.step(Event::DeadlinePassed(Wait::Retry))), 1);
    assert_eq!(offered(&queue.step(listed(2))), ["d"], "who still waits asks the next one");
}

#[test]
fn an_asker_that_went_away_is_not_told_and_its_check_is_forgotten() {
    let mut queue = serving(&["a"]);
    drop(queue.step(asked(1, "a")));
    drop(queue.step(Event::Forgotten { asker: Asker(0) }));
    assert_eq!(queue.open(), 1, "another one waits for it");
    drop(queue.step(Event::Forgotten { asker: Asker(1) }));
    assert_eq!(queue.open(), 0);
    assert!(queue.step(resolved(&queue, 1, "a", AdmissionVerdict::Admitted)).is_empty());
    assert_eq!(offered(&queue.step(asked(2, "a"))), ["a"], "asked anew");
}

#[test]
fn new_settings_forget_answers_and_another_command_takes_over() {
    let mut queue = serving(&["a", "b"]);
    drop(queue.step(resolved(&queue, 1, "a", AdmissionVerdict::Denied("no".into()))));
    assert!(queue.step(Event::Reconfigured(gate())).is_empty(), "the same plugin keeps serving");
    assert_eq!(offered(&queue.step(asked(2, "a"))), ["a"], "asked anew");
    let command = AdmissionCommand::new(&["/bin/other".to_owned()]);
    let effects = queue.step(Event::Reconfigured(Gate { command, ..gate() }));
    assert_eq!((ends(&effects), launches(&effects)), (1, 1));
    assert_eq!(offered(&queue.step(listed(2))), ["b", "a"]);
    let effects = queue.step(Event::Reconfigured(Gate::default()));
    assert_eq!(told(&effects), BTreeMap::from([(1, "ok".into()), (2, "ok".into())]));
    assert_eq!((ends(&effects), queue.deadline()), (1, None));
}

#[test]
fn a_desk_that_closes_decides_nothing_any_more() {
    let mut queue = serving(&["a"]);
    let effects = queue.step(Event::Closed);
    assert_eq!(told(&effects)[&0], "closing");
    assert_eq!(ends(&effects), 1);
    assert_eq!(told(&queue.step(asked(1, "b")))[&1], "closing");
    assert!(queue.step(ended(1)).is_empty());
    assert_eq!(queue.deadline(), None);
}

#[test]
fn what_is_known_of_a_package_is_told_with_the_newest_first() {
    let mut queue = serving(&["a"]);
    let mut again = question("a");
    again.metadata = vec![("revision", "2".to_owned())];
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    let service_url = "https://control".into();
    drop(queue.step(Event::Asked { asker: Asker(1), service_url, question: again, at }));
    let known = queue.describe("https://control", "a", Sha256Digest::of(b"a"));
    let values: Vec<_> = known.iter().map(|entry| entry.value.as_str()).collect();
    assert_eq!(values, ["2", "1"]);
    assert!(queue.describe("https://control", "a", Sha256Digest::of(b"other")).is_empty());
}

#[test]
fn a_command_shows_no_argument() {
    assert!(!format!("{:?}", queue()).contains("hunter2"));
}

/// The possible inputs, with the runs and packages that exist.
#[derive(Clone, Debug)]
enum Step {
    Ask(u8),
    Forget(u64),
    List(u64, i32),
    Resolve(u64, u8, bool),
    HangUp(u64),
    End(u64),
    Connect(u64),
    Exit(u64),
    Retry,
    Late(u64),
    Reconfigure(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let (life, asker, package) = (1u64..6, 0u64..40, 0u8..5);
    prop_oneof![
        6 => package.clone().prop_map(Step::Ask),
        1 => asker.clone().prop_map(Step::Forget),
        4 => (life.clone(), prop_oneof![4 => Just(1), 1 => Just(2)])
            .prop_map(|(life, version)| Step::List(life, version)),
        5 => (life.clone(), package, any::<bool>())
            .prop_map(|(life, package, ok)| Step::Resolve(life, package, ok)),
        1 => life.clone().prop_map(Step::HangUp),
        2 => life.clone().prop_map(Step::End),
        1 => life.clone().prop_map(Step::Connect),
        1 => life.prop_map(Step::Exit),
        2 => Just(Step::Retry),
        1 => asker.prop_map(Step::Late),
        1 => (0u8..3).prop_map(Step::Reconfigure),
    ]
}

proptest! {
    #[test]
    fn law_every_asker_is_told_once_and_only_what_was_said(
        steps in prop::collection::vec(step(), 0..120)
    ) {
        let mut queue = queue();
        let mut next = 0;
        let mut waiting: BTreeMap<u64, String> = BTreeMap::new();
        let mut lives: BTreeSet<ProcessRun> = BTreeSet::new();
        let mut offers: BTreeSet<(ProcessRun, String)> = BTreeSet::new();
        let mut admitted: BTreeSet<String> = BTreeSet::new();
        let mut open_gate = false;
        for step in steps.into_iter().chain([Step::Reconfigure(9)]) {
            let before = queue.life();
            let event = match step {
                Step::Ask(package) => {
                    let package = format!("p{package}");
                    waiting.insert(next, package.clone());
                    next += 1;
                    asked(next - 1, &package)
                }
                Step::Forget(asker) => {
                    waiting.remove(&asker);
                    Event::Forgotten { asker: Asker(asker) }
                }
                Step::List(life, protocol_version) => {
                    Event::Listed { life: ProcessRun(life), protocol_version }
                }
                Step::Resolve(life, package, ok) => {
                    let package = format!("p{package}");
                    let told = offers.contains(&(ProcessRun(life), package.clone()));
                    if ok && before == Some(ProcessRun(life)) && told {
                        admitted.insert(package.clone());
                    }
                    let verdict =
                        if ok { AdmissionVerdict::Admitted } else { AdmissionVerdict::Denied("no".into()) };
                    resolved(&queue, life, &package, verdict)
                }
                Step::HangUp(life) => Event::HungUp { life: ProcessRun(life) },
                Step::End(life) => {
                    lives.remove(&ProcessRun(life));
                    ended(life)
                }
                Step::Connect(life) => Event::DeadlinePassed(Wait::Connect(ProcessRun(life))),
                Step::Exit(life) => Event::DeadlinePassed(Wait::Exit(ProcessRun(life))),
                Step::Retry => Event::DeadlinePassed(Wait::Retry),
                Step::Late(asker) => Event::DeadlinePassed(Wait::Answer(Asker(asker))),
                Step::Reconfigure(9) => Event::Closed,
                Step::Reconfigure(which) => {
                    open_gate = which == 0;
                    let command = AdmissionCommand::new(&[format!("/bin/{which}")]);
                    Event::Reconfigured(if open_gate {
                        Gate::default()
                    } else {
                        Gate { command, ..gate() }
                    })
                }
            };
            for effect in queue.step(event) {
                match effect {
                    Effect::Tell { asker, verdict } => {
                        let package = waiting.remove(&asker.0);
                        let package = package.expect("told once, and only who waits");
                        let said = open_gate || admitted.contains(&package);
                        prop_assert!(verdict != AdmissionVerdict::Admitted || said, "{package}");
                    }
                    Effect::Launch { life, .. } => {
                        prop_assert!(lives.insert(life), "one life of each number");
                        prop_assert_eq!(queue.life(), Some(life));
                    }
                    Effect::Offer { life, offer } => {
                        prop_assert_eq!(queue.life(), Some(life));
                        offers.insert((life, offer.package.to_string()));
                    }
                    Effect::End { life, .. } => {
                        prop_assert!(before == Some(life), "only the present one is let go");
                    }
                    Effect::AnswerList(_) => {}
                }
            }
            prop_assert_eq!(queue.askers.len(), waiting.len());
            let is_served =
                queue.deadline().is_some() || matches!(queue.plugin, Plugin::Serving(..));
            prop_assert!(queue.open() == 0 || is_served, "what waits is waited for");
            prop_assert!(queue.open() <= waiting.len());
        }
        prop_assert!(waiting.is_empty(), "every asker gets an answer when the agent closes");
    }
}
