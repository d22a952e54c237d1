//! The gate: nothing is deployed that the admission plugin did not admit.

use std::time::Duration;

use guest_agent_actors::admission::Gate;
use guest_agent_actors::fakes::{Answers, Harness};
use guest_agent_actors::messages::Submission;
use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::model::spec::Source;
use guest_agent_actors::model::view::Reported;
use guest_agent_actors::ports::AdmissionCommand;

use super::local::{manifest, rescan};
use super::support::*;

fn gate() -> Gate {
    let command = AdmissionCommand::new(&["/bin/admit".to_owned()]);
    Gate { command, timeout: Duration::from_secs(60) }
}

/// An agent whose gate is guarded.
async fn guarded(answers: Answers) -> Harness {
    let mut agent = Harness::asleep();
    agent.settings.gate = gate();
    agent.world.admission.set_answers(answers);
    agent.wake().await;
    agent.connect().await;
    agent
}

fn asked(agent: &Harness) -> Vec<String> {
    assert!(agent.world.admission.mistakes().is_empty(), "{:?}", agent.world.admission.mistakes());
    agent.world.admission.asked().into_iter().map(|(package, _)| package).collect()
}

#[tokio::test(start_paused = true)]
async fn what_is_admitted_is_installed_and_asked_about_once() {
    let mut agent = guarded(Answers::Admit).await;
    order(&agent, "1", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
    assert_eq!(asked(&agent), ["a"]);
    // What runs is not asked about again: not when it crashes, not when the agent does.
    let exit = guest_agent_actors::model::exit::ExitCause::Exited(1);
    assert!(agent.world.launcher.exit("a", exit));
    agent.pass(MINUTE).await;
    until_runs(&agent, "a", "1").await;
    agent.world.admission.set_answers(Answers::Deny("never again".to_owned()));
    agent.crash_and_wake().await;
    until_runs(&agent, "a", "1").await;
    assert_eq!(asked(&agent), ["a"]);
    assert_eq!(agent.world.admission.launched().1, 0, "nobody needs it in the second life");
}

#[tokio::test(start_paused = true)]
async fn what_is_denied_is_never_fetched_and_the_reason_is_told() {
    let agent = guarded(Answers::Deny("not on the list".to_owned())).await;
    order(&agent, "1", &[install("a", "1")]).await;
    until_told(&agent, "a", &[1, 8]).await;
    let details = &told(&agent.world, "a")[1].details;
    assert!(details.contains("not on the list (PERMISSION_DENIED)"), "{details}");
    let view = agent.view("a").await.unwrap();
    assert_eq!(view.state, Reported::InstallFailed);
    assert!(format!("{:?}", view.reason).contains("not on the list"), "{view:?}");
    assert!(agent.world.installer.downloaded().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_that_is_denied_leaves_the_old_revision_alone() {
    let agent = guarded(Answers::Admit).await;
    order(&agent, "1", &[install("a", "1")]).await;
    until_runs(&agent, "a", "1").await;
    let process = agent.world.launcher.alive("a");
    agent.world.admission.set_answers(Answers::Deny("no".to_owned()));
    order(&agent, "2", &[install("a", "2")]).await;
    until_told(&agent, "a", &[1, 4, 3, 1, 8]).await;
    assert_eq!(agent.world.launcher.alive("a"), process);
    assert_eq!(agent.world.installer.on_disk("a"), ["1"]);
}

#[tokio::test(start_paused = true)]
async fn the_gate_fails_closed() {
    let cases = [
        (Answers::Silent, "did not answer within 60s"),
        (Answers::Unconnected, "did not call ListAdmissions within 30s"),
        (Answers::Unstartable("no such file".to_owned()), "no such file"),
    ];
    for (answers, reason) in cases {
        let agent = guarded(answers).await;
        order(&agent, "1", &[install("a", "1")]).await;
        agent
            .until("it is denied", 2 * MINUTE, |_, listed| {
                is(listed, "a", "1", Reported::InstallFailed)
            })
            .await;
        until_told(&agent, "a", &[1, 8]).await;
        let details = &told(&agent.world, "a")[1].details;
        assert!(details.contains(reason), "{reason}: {details}");
        assert!(agent.world.installer.downloaded().is_empty());
        // A better plugin is started by itself, and asked.
        agent.world.admission.set_answers(Answers::Admit);
        order(&agent, "2", &[install("a", "1")]).await;
        agent.until("it runs", MINUTE, |_, listed| runs(listed, "a", "1")).await;
        assert!(agent.world.admission.mistakes().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_ends_denies_what_waits_and_the_next_one_is_asked() {
    let agent = guarded(Answers::EndAtSecond("exited with code 7".to_owned())).await;
    order(&agent, "1", &[install("a", "1")]).await;
    order(&agent, "2", &[install("b", "1")]).await;
    until_told(&agent, "b", &[1, 8]).await;
    until_told(&agent, "a", &[1, 8]).await;
    assert!(told(&agent.world, "b")[1].details.contains("code 7"));
    agent.world.admission.set_answers(Answers::Admit);
    order(&agent, "3", &[install("c", "1")]).await;
    agent.until("it runs", MINUTE, |_, listed| runs(listed, "c", "1")).await;
    assert_eq!(agent.world.admission.launched(), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn an_installation_that_is_given_up_takes_its_question_back() {
    let agent = guarded(Answers::Silent).await;
    order(&agent, "1", &[install("a", "1")]).await;
    agent.until("it is asked", SOON, |world, _| !world.admission.asked().is_empty()).await;
    order(&agent, "2", &[remove("a")]).await;
    agent.until("it is gone", SOON, |_, listed| listed.is_empty()).await;
    agent.pass(2 * MINUTE).await;
    assert_eq!(agent.world.admission.launched(), (1, 1), "nobody waits, so nobody hangs");
    until_told(&agent, "a", &[1, 8, 2, 5]).await;
}

/// Reads the settings again, which forgets what was answered so far.
async fn use_gate(agent: &Harness, gate: Gate) {
    let (policy, health) = (agent.settings.policy.clone(), agent.settings.health);
    agent
        .run(|system| {
            system.reconfigure(policy, health, gate);
            async {}
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_gate_is_opened_and_closed_while_the_agent_runs() {
    let agent = guarded(Answers::Silent).await;
    order(&agent, "1", &[install("a", "1")]).await;
    agent.until("it is asked", SOON, |world, _| !world.admission.asked().is_empty()).await;
    use_gate(&agent, Gate::default()).await;
    until_runs(&agent, "a", "1").await;
    agent.world.admission.set_answers(Answers::Deny("no".to_owned()));
    use_gate(&agent, gate()).await;
    order(&agent, "2", &[install("b", "1")]).await;
    until_told(&agent, "b", &[1, 8]).await;
    // An answer counts until the settings are read again.
    agent.world.admission.set_answers(Answers::Admit);
    order(&agent, "3", &[install("b", "1")]).await;
    until_told(&agent, "b", &[1, 8, 1, 8]).await;
    use_gate(&agent, gate()).await;
    order(&agent, "4", &[install("b", "1")]).await;
    until_runs(&agent, "b", "1").await;
}

/// An agent whose gate is guarded, and that runs a plugin which came with the machine.
async fn guarded_local() -> Harness {
    let mut agent = Harness::asleep();
    agent.settings.gate = gate();
    agent.world.local.put(manifest("a", "image"));
    agent.wake().await;
    agent.connect().await;
    until_runs(&agent, "a", "image").await;
    until_told(&agent, "a", &[1, 4, 3]).await;
    agent
}

/// The same manifest, and another entry point, which is on the disk already.
fn replace(agent: &Harness, by: &[u8]) {
    let sha256 = Sha256Digest::of(by);
    let mut spec = manifest("a", "image");
    let Source::Local(files) = &mut spec.source else { panic!("{spec:?}") };
    files.sha256 = sha256;
    agent.world.installer.replace("a", sha256);
    agent.world.local.put(spec);
}

#[tokio::test(start_paused = true)]
async fn a_local_plugin_whose_files_are_replaced_is_asked_about_again() {
    let agent = guarded_local().await;
    let process = agent.world.launcher.alive("a");
    agent.world.admission.set_answers(Answers::Deny("not this one".to_owned()));
    replace(&agent, b"second");
    rescan(&agent).await;
    until_told(&agent, "a", &[1, 4, 3, 1, 8]).await;
    assert!(told(&agent.world, "a")[4].details.contains("not this one"));
    assert_eq!(asked(&agent), ["a", "a"]);
    assert_eq!(agent.world.launcher.alive("a"), process, "what runs goes on");
    // It cannot be started again as what it was, and not as what it is now.
    assert!(agent.world.launcher.exit("a", guest_agent_actors::model::exit::ExitCause::Exited(1)));
    agent.pass(HOUR).await;
    assert!(agent.world.launcher.alive("a").is_empty());
    let view = agent.view("a").await.unwrap();
    let why = format!("{:?}", view.reason);
    assert!(why.contains("entry point was replaced") && why.contains("not this one"), "{why}");
    // What was admitted is back.
    replace(&agent, b"image");
    rescan(&agent).await;
    until_runs(&agent, "a", "image").await;
}

/// Where a manifest names no revision, other files have another one.
#[tokio::test(start_paused = true)]
async fn a_restart_asks_again_about_replaced_files_that_have_another_revision() {
    let agent = guarded_local().await;
    agent.world.admission.set_answers(Answers::Deny("not this one".to_owned()));
    let sha256 = Sha256Digest::of(b"second");
    let mut spec = manifest("a", &sha256.to_string());
    let Source::Local(files) = &mut spec.source else { panic!("{spec:?}") };
    files.sha256 = sha256;
    agent.world.installer.replace("a", sha256);
    agent.world.local.put(spec);
    rescan(&agent).await;
    until_told(&agent, "a", &[1, 4, 3, 1, 8]).await;
    until_runs(&agent, "a", "image").await;
    agent.world.admission.set_answers(Answers::Admit);
    use_gate(&agent, gate()).await;
    agent.submit(Submission::Restart("a".parse().unwrap())).await.unwrap();
    until_runs(&agent, "a", &sha256.to_string()).await;
    until_told(&agent, "a", &[1, 4, 3, 1, 8, 1, 6, 4, 3]).await;
}

#[tokio::test(start_paused = true)]
async fn replaced_files_that_are_admitted_run_and_so_do_all_where_nobody_decides() {
    let agent = guarded_local().await;
    replace(&agent, b"second");
    rescan(&agent).await;
    until_told(&agent, "a", &[1, 4, 3, 1, 6, 4, 3]).await;
    assert_eq!(asked(&agent), ["a", "a"]);
    // The agent got no notice, and asks the admission plugin anyway.
    agent.world.installer.replace("a", Sha256Digest::of(b"third"));
    assert!(agent.world.launcher.exit("a", guest_agent_actors::model::exit::ExitCause::Exited(1)));
    agent.pass(MINUTE).await;
    until_runs(&agent, "a", "image").await;
    assert_eq!(asked(&agent), ["a", "a", "a"]);

    let mut open = Harness::asleep();
    open.world.local.put(manifest("a", "image"));
    open.world.installer.replace("a", Sha256Digest::of(b"another"));
    open.wake().await;
    until_runs(&open, "a", "image").await;
    assert_eq!(open.world.admission.launched(), (0, 0));
}
