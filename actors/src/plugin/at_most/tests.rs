use std::sync::Arc;

use super::*;
use crate::fakes::sample_view;
use crate::model::id::{Attempt, BootId, Endpoint, Generation, Process};
use crate::model::spec::PluginSpec;
use crate::plugin::state::Trial;

const PROBATION: Duration = Duration::from_secs(30);

fn view() -> PluginView {
    sample_view("web", "1")
}

fn spec(revision: &str) -> Arc<PluginSpec> {
    sample_view("web", revision).spec
}

fn running(revision: &str) -> State {
    let process = Process { pid: 7, start_ticks: 1, boot: BootId("boot".into()) };
    let endpoint = Endpoint::from_stored("/run/web.sock");
    let phase = Phase::Running { process, endpoint, change: Change::None };
    State::of(Generation(1), spec(revision), phase)
}

#[track_caller]
fn check(order: &Order, now: Option<&PluginView>, steps: &[Duration]) {
    assert_eq!(at_most(order, now, &Policy::default()), steps.iter().sum());
}

fn installs() -> Duration {
    takes::install(&spec("2"))
}

fn stops() -> Duration {
    takes::stop(&spec("2"))
}

fn starts() -> Duration {
    takes::start(&spec("2"), &RestartPolicy::default())
}

#[test]
fn an_order_takes_as_long_as_its_steps() {
    let (view, install) = (view(), Order::Install(spec("2")));
    let by = || Arc::from("root");
    check(&install, None, &[installs(), starts()]);
    let upgrade = [installs(), stops(), starts(), PROBATION, stops(), starts()];
    check(&install, Some(&view), &upgrade);
    let again = Order::Install(spec("1"));
    check(&again, Some(&view), &[LIMITS_WAIT, APPLY_WAIT, stops(), starts()]);
    check(&Order::Remove, Some(&view), &[stops(), REMOVE_WAIT]);
    check(&Order::Apply(None), Some(&view), &[APPLY_WAIT, stops(), starts()]);
    check(&Order::Restart, Some(&view), &[stops(), starts()]);
    check(&Order::Asked(Act::Stop(by())), Some(&view), &[stops()]);
    let failed = PluginView { state: Reported::InstallFailed, ..view.clone() };
    check(&Order::Restart, Some(&failed), &[installs(), stops(), starts()]);
}

#[test]
fn work_under_way_is_waited_for() {
    let mut state = running("1");
    let idle = outlook(&state, &Policy::default(), None);
    assert_eq!(idle, Outlook::default());
    state.next = Next::Preparing { spec: spec("2"), attempt: Attempt(3) };
    let busy = outlook(&state, &Policy::default(), None);
    let trial = PROBATION + stops() + starts();
    assert_eq!(busy.under_way, installs() + stops() + starts() + trial);
    let view = PluginView { outlook: busy, ..view() };
    check(&Order::Asked(Act::Stop("root".into())), Some(&view), &[busy.under_way, stops()]);
}

#[test]
fn a_start_takes_all_its_attempts_and_the_pauses_between_them() {
    let one = spec("1");
    let mut thrice = PluginSpec::clone(&one);
    thrice.start.attempts = 3;
    let restart = RestartPolicy::default();
    let pauses = takes::pause(&one, 1, &restart) + takes::pause(&one, 2, &restart);
    assert_eq!(takes::start(&thrice, &restart), takes::launch(&one) * 3 + pauses);
}

#[test]
fn a_trial_ends_after_the_parts_of_its_window_that_are_left() {
    let now = SystemTime::UNIX_EPOCH;
    let slice = PROBATION / PROBATION_SLICES;
    let mut state = running("2");
    state.trial = Some(Trial::against(spec("1")));
    let ends =
        |state: &State, slice_ends| outlook(state, &Policy::default(), slice_ends).trial_ends;
    assert_eq!(ends(&state, Some(now + slice)), Some(now + PROBATION));
    assert_eq!(ends(&state, None), None, "its window has not begun");
    let last = Some(Trial { slices_left: 1, ..Trial::against(spec("1")) });
    let late = State { trial: last, ..state.clone() };
    assert_eq!(ends(&late, Some(now + slice)), Some(now + slice));
    assert_eq!(ends(&running("2"), Some(now + slice)), None, "it has no trial");
    let outlook = outlook(&state, &Policy::default(), None);
    let back = stops() + starts();
    assert_eq!((outlook.way_back, outlook.under_way), (back, PROBATION + back));
}

#[test]
fn a_pause_before_a_start_is_waited_for() {
    let policy = Policy::default();
    for (pause, longest) in
        [(Pause::AfterCrash, policy.restart.max), (Pause::AfterShutdown, SHUTDOWN_WAIT)]
    {
        let phase = Phase::BackingOff { reason: "it ended".into(), pause };
        let state = State { phase, ..running("1") };
        assert_eq!(outlook(&state, &policy, None).under_way, longest + starts());
    }
}
