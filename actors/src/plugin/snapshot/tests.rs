use std::time::Duration;

use proptest::prelude::*;

use super::spec::POINTS_MAX;
use super::*;
use crate::model::act::{Hold, LimitOverride};
use crate::model::facts::{Number, Scope, Value};
use crate::model::runs::{Mark, Marks, Outcome, Runs, Trigger};
use crate::model::spec::tests::{local_spec, spec};
use crate::model::spec::{
    Boot as Needed, Config, Enablement, Execution, Kind, Limits, MatchPolicy, OneShot, Operator,
    PluginSpec, Rule, Rules, Tries, Triggers,
};
use crate::plugin::event::Boot;
use crate::plugin::operation::Operation;
use crate::ports::Shortfall;
use crate::trace::Trace;

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<i32>().prop_map(|n| Value::Number(Number::new(f64::from(n) / 8.0).expect("finite"))),
        ".{0,9}".prop_map(|text| Value::text(&text)),
        any::<bool>().prop_map(Value::Bool),
    ];
    leaf.prop_recursive(3, 8, 3, |inner| {
        let key = "[a-z]{1,3}".prop_map(Arc::<str>::from);
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::List),
            proptest::collection::btree_map(key, inner, 0..3).prop_map(Value::Struct),
        ]
    })
}

fn any_rule() -> BoxedStrategy<Rule> {
    let scope = prop_oneof![Just(Scope::Os), Just(Scope::Instance), Just(Scope::Metadata)];
    let operator =
        prop_oneof![Just(Operator::Equal), Just(Operator::NotEqual), Just(Operator::Contains)];
    (scope, "[a-z/]{1,9}", operator, any_value())
        .prop_map(|(scope, attribute, operator, value)| Rule {
            scope,
            attribute: attribute.into(),
            operator,
            value,
        })
        .boxed()
}

fn any_execution() -> BoxedStrategy<Execution> {
    let interval = proptest::option::of((1u64..1_000_000).prop_map(Duration::from_secs));
    let one_shot = (any::<bool>(), any::<bool>(), interval, 1u64..86_400).prop_map(
        |(startup, firstboot, interval, timeout)| {
            let triggers = Triggers { startup, firstboot, interval };
            Kind::OneShot(OneShot { triggers, timeout: Duration::from_secs(timeout) })
        },
    );
    let kind = prop_oneof![Just(Kind::Daemon), one_shot];
    let enablement = || prop_oneof![Just(Enablement::Enabled), Just(Enablement::Disabled)];
    let policy = prop_oneof![Just(MatchPolicy::All), Just(MatchPolicy::Any)];
    let all = proptest::collection::vec(any_rule(), 0..3);
    let boot = prop_oneof![Just(Needed::Ordinary), Just(Needed::Critical)];
    (kind, enablement(), enablement(), policy, all, boot)
        .prop_map(|(kind, on_default, on_match, policy, all, boot)| Execution {
            kind,
            rules: Arc::new(Rules { on_default, on_match, policy, all }),
            boot,
        })
        .boxed()
}

fn any_spec() -> BoxedStrategy<Arc<PluginSpec>> {
    let config = prop_oneof![
        Just(None),
        ".{0,20}".prop_map(|text| Some(Config::Text(text.into()))),
        proptest::collection::vec(any::<u8>(), 0..20)
            .prop_map(|bytes| Some(Config::Struct(bytes.into()))),
    ];
    let limits = (proptest::option::of(any::<u64>()), proptest::option::of(any::<u32>()));
    let times = (1u32..100, 0u64..3_600_000);
    ("[1-4]", config, limits, times, 0usize..=POINTS_MAX, any_execution())
        .prop_map(
            |(
                revision,
                config,
                (memory_bytes, cpu_percent),
                (attempts, millis),
                points,
                execution,
            )| {
                let mut made = PluginSpec::clone(&spec("a", &revision));
                made.config = config;
                made.limits = Limits { memory_bytes, cpu_percent, tasks: None };
                made.start = Tries { attempts, timeout: Duration::from_millis(millis) };
                made.metrics.points = points;
                made.execution = execution;
                made.order_digest = (points % 2 == 0)
                    .then(|| crate::model::id::Sha256Digest::of(&points.to_be_bytes()));
                if points % 3 == 0 {
                    made.source = local_spec("a", &revision).source.clone();
                }
                Arc::new(made)
            },
        )
        .boxed()
}

fn any_process() -> impl Strategy<Value = Process> {
    (any::<u32>(), any::<u64>(), "[a-z]{0,5}").prop_map(|(pid, start_ticks, boot)| Process {
        pid,
        start_ticks,
        boot: BootId(boot.into()),
    })
}

fn any_reason() -> impl Strategy<Value = Arc<str>> {
    ".{0,30}".prop_map(Arc::from)
}

fn any_then() -> impl Strategy<Value = Then> {
    prop_oneof![
        Just(Then::Start),
        Just(Then::Swap),
        any_reason().prop_map(|reason| Then::Return { reason }),
        any_reason().prop_map(|reason| Then::BackOff { reason }),
        any_reason().prop_map(|reason| Then::Rest { reason }),
        Just(Then::Remove),
        any_reason().prop_map(|reason| Then::Fail { reason }),
        any_reason().prop_map(|reason| Then::Disable { reason }),
    ]
}

fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    "[a-z/]{1,20}".prop_map(|path| Endpoint::unix(&path))
}

fn any_change(attempt: Attempt) -> impl Strategy<Value = Change> {
    let config = || proptest::option::of(".{0,9}".prop_map(|text| Config::Text(text.into())));
    let due = || any::<bool>().prop_map(|is_due| if is_due { Due::Yes } else { Due::No });
    let answers = (due(), due()).prop_map(|(install, apply)| Owed { install, apply });
    let newer = (config(), due()).prop_map(|(config, limits)| Newer { config, limits });
    let newer = proptest::option::of(newer);
    prop_oneof![
        Just(Change::None),
        config().prop_map(move |config| Change::Limiting { attempt, config }),
        (config(), answers, newer).prop_map(move |(config, answers, newer)| Change::Applying {
            attempt,
            config,
            answers,
            newer
        }),
    ]
}

/// Every phase. What is in flight has the state's own number, which is what a record remembers.
fn any_phase(attempt: Attempt) -> impl Strategy<Value = Phase> {
    let process = || proptest::option::of(any_process());
    prop_oneof![
        Just(Phase::Installing { attempt }),
        any_reason().prop_map(|reason| Phase::InstallFailed { reason }),
        (1u32..9, process()).prop_map(move |(tries, process)| Phase::Starting {
            attempt,
            tries,
            process
        }),
        (1u32..9, any_reason()).prop_map(|(tries, reason)| Phase::Pausing { tries, reason }),
        (any_process(), any_endpoint(), any_change(attempt))
            .prop_map(|(process, endpoint, change)| Phase::Running { process, endpoint, change }),
        (any_reason(), prop_oneof![Just(Pause::AfterCrash), Just(Pause::AfterShutdown)])
            .prop_map(|(reason, pause)| Phase::BackingOff { reason, pause }),
        (process(), proptest::option::of(any_endpoint()), any_then()).prop_map(
            move |(process, endpoint, then)| Phase::Stopping {
                attempt,
                target: Target { process, endpoint },
                then
            }
        ),
        prop_oneof![Just(Resume::Start), Just(Resume::Swap)]
            .prop_map(|then| Phase::Stopped { then }),
        any_reason().prop_map(|reason| Phase::Crashed { reason }),
        (0u32..9).prop_map(move |failures| Phase::Removing { attempt, failures }),
        Just(Phase::Gone),
        (any_process(), 1..=EXECUTION_SLICES)
            .prop_map(|(process, slices_left)| Phase::Executing { process, slices_left }),
        Just(Phase::Idle),
        any_reason().prop_map(|reason| Phase::Disabled { reason }),
    ]
}

fn any_hold() -> impl Strategy<Value = Hold> {
    let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    (".{0,9}", 0u64..1 << 32, proptest::option::of(0u64..1 << 32)).prop_map(
        move |(by, since, until)| Hold { by: by.into(), since: at(since), until: until.map(at) },
    )
}

fn any_override() -> impl Strategy<Value = LimitOverride> {
    let limits = (any::<Option<u64>>(), any::<Option<u32>>(), any::<Option<u64>>());
    (limits, ".{0,9}", 0u64..1 << 32).prop_map(|(limits, by, since)| {
        let (memory_bytes, cpu_percent, tasks) = limits;
        let since = SystemTime::UNIX_EPOCH + Duration::from_secs(since);
        LimitOverride { limits: Limits { memory_bytes, cpu_percent, tasks }, by: by.into(), since }
    })
}

fn any_held_order() -> impl Strategy<Value = HeldOrder> {
    let of = || "[1-4]".prop_map(|it| it.parse().expect("a revision"));
    prop_oneof![
        any_spec().prop_map(HeldOrder::Install),
        of().prop_map(|of| HeldOrder::Remove { of }),
        (proptest::option::of(".{0,9}".prop_map(|text| Config::Text(text.into()))), of())
            .prop_map(|(config, of)| HeldOrder::Apply { config, of }),
    ]
}

fn any_next(attempt: Attempt) -> impl Strategy<Value = Next> {
    let at = prop_oneof![Just(FailedAt::Install), Just(FailedAt::Run)];
    prop_oneof![
        Just(Next::Nothing),
        any_spec().prop_map(move |spec| Next::Preparing { spec, attempt }),
        any_spec().prop_map(|spec| Next::Ready { spec }),
        any_spec().prop_map(|spec| Next::AfterRemoval { spec }),
        ("[1-4]", at, any_reason(), proptest::option::of(any_reason())).prop_map(
            |(revision, at, reason, dismissed)| Next::Failed {
                revision: revision.parse().expect("a revision"),
                at,
                reason,
                dismissed,
            }
        ),
    ]
}

fn any_cause() -> impl Strategy<Value = ExitCause> {
    prop_oneof![
        any::<i32>().prop_map(ExitCause::Exited),
        any::<i32>().prop_map(ExitCause::Signaled),
        any::<Option<u64>>().prop_map(|peak| ExitCause::OutOfMemory { peak }),
        any::<Option<u64>>().prop_map(|peak| ExitCause::OverMemoryLimit { peak }),
        Just(ExitCause::Unknown),
    ]
}

fn any_time() -> impl Strategy<Value = Option<SystemTime>> {
    let nanos = (0u64..4_000_000_000, 0u32..1_000_000_000);
    proptest::option::of(nanos.prop_map(|(s, n)| SystemTime::UNIX_EPOCH + Duration::new(s, n)))
}

fn any_due() -> impl Strategy<Value = Due> {
    prop_oneof![Just(Due::No), Just(Due::Yes)]
}

fn any_mark<T: Clone + std::fmt::Debug + 'static>(
    of: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<Mark<T>> {
    prop_oneof![Just(Mark::Never), Just(Mark::Counted), of.prop_map(Mark::Of)].boxed()
}

fn any_runs() -> BoxedStrategy<Runs> {
    let last = prop_oneof![
        Just(Outcome::None),
        Just(Outcome::Completed),
        any_reason().prop_map(|reason| Outcome::Failed { reason }),
    ];
    let startup = any_mark("[a-z]{0,5}".prop_map(|boot| BootId(boot.into())));
    let firstboot = any_mark("[a-z]{0,5}".prop_map(Arc::<str>::from));
    let trigger = proptest::option::of(proptest::sample::select(&Trigger::ALL[..]));
    (startup, firstboot, any_mark(any::<u64>()), any::<u64>(), any_due(), last, trigger)
        .prop_map(|(startup, firstboot, interval, total, unfinished, last, trigger)| Runs {
            marks: Marks { startup, firstboot, interval },
            total,
            unfinished,
            last,
            trigger,
        })
        .boxed()
}

fn any_story() -> impl Strategy<Value = TransitionLog> {
    let moves = proptest::collection::vec((any_time(), ".{0,9}", ".{0,9}"), 0..9);
    let shortfall = ("[a-z]{1,9}", ".{0,400}", ".{0,9}");
    let shortfalls = proptest::collection::vec(shortfall, 0..20);
    let operation =
        proptest::option::of(("[ -~]{0,9}", proptest::option::of(any::<u64>()), ".{0,9}"));
    let operation = operation.prop_map(|operation| {
        let (id, order, why) = operation?;
        let trace = Trace::of_message(&id, None, SystemTime::UNIX_EPOCH);
        let mut operation = Operation::new(Arc::new(trace), order.map(Generation), "1");
        operation.failed("2", &why);
        Some(operation)
    });
    let crashes = (proptest::collection::vec((any_time(), 0u64..1 << 40), 0..9), "[a-z ]{1,9}");
    let times = (any_time(), any_time());
    let all = (moves, ".{0,30}", shortfalls, operation, crashes, times);
    all.prop_map(|(moves, output, shortfalls, operation, crashes, (changed_at, failed_at))| {
        let mut story =
            TransitionLog { operation, changed_at, failed_at, ..TransitionLog::default() };
        for (at, ran) in crashes.0 {
            let at = at.unwrap_or(SystemTime::UNIX_EPOCH);
            story.crashed(at, Duration::from_millis(ran), &crashes.1);
        }
        let unenforced = shortfalls.iter().map(|(what, why, fix)| Shortfall::new(what, why, fix));
        story.unenforced = unenforced.collect();
        for (at, state, why) in moves {
            story.moved(at.unwrap_or(SystemTime::UNIX_EPOCH), &state, &why);
        }
        story.wrote(&output);
        if !output.is_empty() {
            story.failed(SystemTime::UNIX_EPOCH, "kind", &output);
        }
        story
    })
}

fn any_state() -> impl Strategy<Value = State> {
    let trial = || {
        let parts = (any_spec(), 1..=PROBATION_SLICES, proptest::option::of("[a-z ]{0,9}"));
        proptest::option::of(parts.prop_map(|(last_good, slices_left, taken_back)| {
            let taken_back = taken_back.map(Into::into);
            Trial { last_good, slices_left, taken_back }
        }))
    };
    let standing = prop_oneof![Just(Standing::Unproven), Just(Standing::Proven)];
    (any::<u64>(), any::<u64>()).prop_flat_map(move |(attempt, generation)| {
        let attempt = Attempt(attempt);
        let parts = (any_spec(), any_phase(attempt), any_next(attempt), trial(), any_runs());
        let apply_of = proptest::option::of("[1-4]")
            .prop_map(|it| it.map(|it| it.parse().expect("a revision")));
        let owed = (any_due(), any_due(), apply_of, standing.clone());
        let local = proptest::option::of(("[1-4]").prop_map(|n| local_spec("a", &n)));
        let restarts = (any::<u32>(), any::<u32>(), proptest::option::of(any_cause()));
        let shutdown = prop_oneof![Just(Shutdown::NotTaken), Just(Shutdown::Taken)];
        let by = || ".{0,9}".prop_map(Arc::<str>::from);
        let left = ("[1-4]", by()).prop_map(|(revision, by)| Left {
            revision: revision.parse().expect("a revision"),
            by,
        });
        let person = (
            proptest::option::of(by()),
            proptest::option::of(left),
            proptest::option::of((any_hold(), proptest::option::of(any_held_order()))),
            proptest::option::of(any_override()),
        );
        let person = person.prop_map(|(stopped, left, hold, limits)| {
            let (hold, held_order) = hold.unzip();
            Person { stopped, left, limits, hold, held_order: held_order.flatten() }
        });
        let people = (person, proptest::option::of(any_spec()));
        (parts, owed, restarts, local, (shutdown, "[a-z ]{0,9}", people, any::<bool>())).prop_map(
            move |(
                (spec, phase, next, trial, runs),
                (install, apply, apply_of, standing),
                restarts,
                local,
                (shutdown, trouble, (person, former), limits_due),
            )| {
                let runs_now = matches!(phase, Phase::Running { .. });
                let is_removed = matches!(
                    phase,
                    Phase::Stopping { then: Then::Remove, .. } | Phase::Removing { .. }
                );
                State {
                    name: spec.name.clone(),
                    generation: Generation(generation),
                    spec,
                    phase,
                    next,
                    trial,
                    standing,
                    owed: Owed { install, apply },
                    apply_of,
                    attempt,
                    restarts: Restarts { total: restarts.0, in_a_row: restarts.1 },
                    last_exit: restarts.2,
                    runs,
                    local,
                    // Only a process that runs has taken it.
                    shutdown: if runs_now { shutdown } else { Shutdown::NotTaken },
                    former,
                    person,
                    limiting: limits_due.then_some(attempt),
                    removal_trouble: is_removed.then(|| trouble.into()),
                }
            },
        )
    })
}

/// The revisions a state must not forget: what it is about, and what it is to become or to return
/// to.
fn revisions(state: &State) -> Vec<String> {
    let next = match &state.next {
        Next::Preparing { spec, .. } | Next::Ready { spec } | Next::AfterRemoval { spec } => {
            Some(spec)
        }
        Next::Nothing | Next::Failed { .. } => None,
    };
    let trial = state.trial.as_ref().map(|trial| &trial.last_good);
    let all = [Some(&state.spec), next, trial].into_iter().flatten();
    all.map(|spec| format!("{:?}", (&spec.revision, &spec.config))).collect()
}

/// Whether the plugin returned to files that came with the machine and were replaced there: others
/// have their place.
fn found_replaced(before: &State, after: &State) -> bool {
    let replaced = |trial: &Trial| {
        let local = before.local.as_ref().filter(|_| trial.last_good.is_local());
        local.is_some_and(|local| !local.has_files_of(&trial.last_good) && after.spec == *local)
    };
    after.trial.is_none() && before.trial.as_ref().is_some_and(replaced)
}

proptest! {
    #[test]
    fn law_a_record_gives_back_what_was_recorded(
        state in any_state(), last_exit_at in any_time(), started_at in any_time(), story in any_story()
    ) {
        let snapshot = Snapshot { state, last_exit_at, started_at, story };
        prop_assert_eq!(Snapshot::decode(&snapshot.encode()).unwrap(), snapshot);
    }

    #[test]
    fn law_recovery_from_a_record_is_recovery_from_the_state_and_loses_no_spec(
        state in any_state(), same_boot in any::<bool>(), process in proptest::option::of(any_process())
    ) {
        let boot = if same_boot { Boot::Same } else { Boot::New };
        let snapshot = Snapshot::of(state);
        let decoded = Snapshot::decode(&snapshot.encode()).unwrap();
        let found = Found { boot, process };
        let recovered = recover(&decoded, found.clone());
        prop_assert_eq!(&recovered, &recover(&snapshot, found));
        let mut before = revisions(&snapshot.state);
        // The way back may have been ordered already, with a configuration of its own.
        let returned = recovered.next.trial.is_none()
            && snapshot
                .state
                .trial
                .as_ref()
                .is_some_and(|t| t.last_good.revision == recovered.next.spec.revision);
        if returned || found_replaced(&snapshot.state, &recovered.next) {
            // What crashed on probation while no agent ran is given up, as ever.
            before.remove(0);
        }
        if found_replaced(&snapshot.state, &recovered.next) {
            // It stands last, and its files are gone.
            before.pop();
        }
        let mut after = revisions(&recovered.next);
        // A handed-over configuration may have become the spec's own; its revision is the same.
        after.extend(recovered.next.trial.iter().map(|t| t.last_good.revision.to_string()));
        let kept = |wanted: &String| {
            let revision = wanted.split(',').next().unwrap_or_default();
            after.iter().any(|have| have.starts_with(revision))
        };
        prop_assert!(before.iter().all(kept), "{:?} became {:?}", before, after);
    }

    /// What stands beside a revision is less than the snapshot, and as much after it came back.
    #[test]
    fn law_a_record_beside_a_revision_gives_back_the_plugin_and_nothing_under_way(
        state in any_state(), started_at in any_time(), last_exit_at in any_time()
    ) {
        let times = (started_at, last_exit_at);
        let removal = matches!(
            state.phase,
            Phase::Removing { .. } | Phase::Gone | Phase::Stopping { then: Then::Remove, .. }
        );
        match Beside::of(&state, times) {
            Beside::Keep(record) => {
                let back = Snapshot::decode(&record).unwrap();
                prop_assert_eq!(&back.state.spec, &state.spec);
                prop_assert_eq!(back.state.generation, state.generation);
                prop_assert_eq!((back.started_at, back.last_exit_at), times);
                prop_assert_eq!(back.state.process(), state.process());
                prop_assert_eq!(&back.state.next, &Next::Nothing);
                prop_assert!(back.state.trial.is_none() && back.state.owed == Owed::default());
                prop_assert_eq!(Beside::of(&back.state, times), Beside::Keep(record));
            }
            Beside::KeepFirst(record) => {
                let back = Snapshot::decode(&record).unwrap();
                prop_assert_eq!(&back.state.spec, &state.spec);
                prop_assert!(back.state.process().is_none(), "it is started anew");
            }
            Beside::Delete => prop_assert!(removal),
            Beside::Unchanged => prop_assert!(!removal || state.spec.is_local()),
        }
    }

    #[test]
    fn law_arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        drop(Snapshot::decode(&bytes));
    }

    #[test]
    fn law_a_damaged_record_never_panics_nor_acts_for_another_plugin(
        state in any_state(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let snapshot = Snapshot::of(state);
        let mut bytes = snapshot.encode();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len() + 1).max(bytes.len() / 2));
        if let Ok(decoded) = Snapshot::decode(&bytes) {
            prop_assert_eq!(&decoded.state.name, &decoded.state.spec.name);
            let policy = crate::plugin::state::Policy::default();
            let found = Found { boot: Boot::Same, process: None };
            drop(recover(&decoded, found).next.deadlines(&policy));
        }
    }
}

fn record() -> rec::PluginRecord {
    let state = crate::plugin::machine::begin(Generation(1), spec("a", "1")).next;
    let bytes = Snapshot::of(state).encode();
    rec::PluginRecord::decode(&*bytes).unwrap()
}

#[track_caller]
fn refused(expected: &str, change: impl FnOnce(&mut rec::PluginRecord)) {
    let mut record = record();
    change(&mut record);
    let error = Snapshot::decode(&record.encode_to_vec()).unwrap_err();
    let text = crate::error::Chain(&error).to_string();
    assert!(text.contains(expected), "{text:?} does not say {expected:?}");
    assert!(!text.contains("secret"), "{text}");
}

#[test]
fn a_record_that_nothing_is_wrong_with_is_taken() {
    assert!(Snapshot::decode(&record().encode_to_vec()).is_ok());
}

#[test]
fn a_record_of_another_version_is_refused() {
    refused("version 2", |record| record.version = 2);
    refused("version 0", |record| record.version = 0);
}

#[test]
fn a_record_without_its_parts_is_refused() {
    refused("spec", |record| record.spec = None);
    refused("phase", |record| record.phase = None);
    refused("plugin name", |record| record.name = String::new());
    refused("checksum", |record| record.spec.as_mut().unwrap().sha256.truncate(31));
    refused("stop timeout", |record| record.spec.as_mut().unwrap().stop_timeout = None);
    refused("path", |record| record.spec.as_mut().unwrap().entry_point = "../sh".to_owned());
    refused("process", |record| {
        let running = rec::phase::Running::default();
        record.phase = Some(rec::Phase { phase: Some(rec::phase::Phase::Running(running)) });
    });
}

#[test]
fn a_record_with_impossible_numbers_is_refused() {
    let eternity = Some(prost_types::Duration { seconds: i64::MAX, nanos: 0 });
    refused("download timeout", |r| r.spec.as_mut().unwrap().download_timeout = eternity);
    refused("start timeout", |r| r.spec.as_mut().unwrap().start_timeout = eternity);
    let negative = Some(prost_types::Duration { seconds: -1, nanos: 0 });
    refused("metrics interval", |r| r.spec.as_mut().unwrap().metrics_interval = negative);
    refused("number of metrics", |r| r.spec.as_mut().unwrap().metrics_points = u64::MAX);
}

#[test]
fn a_record_that_mixes_plugins_is_refused() {
    refused("record of b", |record| record.name = "b".to_owned());
    refused("revision of c", |record| {
        let mut other = record.spec.clone().unwrap();
        other.name = "c".to_owned();
        record.next = Some(rec::Next { next: Some(rec::next::Next::Ready(other)) });
    });
    refused("revision of c", |record| {
        let mut other = record.spec.clone().unwrap();
        other.name = "c".to_owned();
        record.trial =
            Some(rec::Trial { last_good: Some(other), slices_left: 1, taken_back: None });
    });
}

#[test]
fn probation_in_a_record_is_never_longer_than_a_whole_one() {
    let mut record = record();
    let last_good = record.spec.clone();
    record.trial = Some(rec::Trial { last_good, slices_left: u32::MAX, taken_back: None });
    let snapshot = Snapshot::decode(&record.encode_to_vec()).unwrap();
    assert_eq!(snapshot.state.trial.unwrap().slices_left, PROBATION_SLICES);
}
