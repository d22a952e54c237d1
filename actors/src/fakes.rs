//! A `(fake, handle)` pair for every port: the actors get the fake, the handle scripts its answers
//! and reads the calls that it received. And [`Harness`], which wires all actors on fakes as the
//! real agent does and can crash them.
//!
//! What outlives an agent (records, files, processes, the control plane) is behind the handles, so
//! a second agent on the same fakes finds what the first one left. Every wait is on tokio's clock:
//! under paused time a day passes in milliseconds.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::ports::Cause;

use fate::Decider;

mod admission;
mod answers;
mod counters;
mod facts;
mod fate;
mod harness;
mod installer;
mod launcher;
mod link;
mod local;
mod machine;
mod meter;
mod pauses;
mod prober;
mod rpc;
mod storage;
mod sweeper;
mod view;
mod windows;

pub use admission::{AdmissionHandle, Answers, FakeAdmission, admission};
pub use answers::{Answer, Delivery, Reply};
pub use counters::{CountersHandle, FakeCounters, counters};
pub use facts::{FactsHandle, FakeFacts, facts};
pub use fate::{Asked, Committing, Fact, Fate};
pub use harness::{Harness, World};
pub use installer::{FakeInstaller, InstallerHandle, installer};
pub use launcher::{FakeLauncher, LauncherHandle, launcher};
pub use link::{FakeLink, Heard, LinkHandle, link};
pub use local::{FakeLocal, LocalHandle, local};
pub use machine::{ClockHandle, CountedIds, FakeClock, FakeMachine, MachineHandle, clock, machine};
pub use meter::{FakeMeter, MeterHandle, meter};
pub use pauses::{FakePauses, PausesHandle, pauses};
pub use prober::{FakeProber, ProberHandle, prober};
pub use rpc::{FakeRpc, RpcHandle, rpc};
pub use storage::{CrashPoint, FakeStorage, StorageHandle, storage};
pub use sweeper::{FakeSweeper, SweeperHandle, sweeper};
pub use view::sample_view;
pub use windows::{FakeWindows, WindowsHandle, windows};

/// A value that fakes and handles share, and that can be waited on. Who waits is woken in the order in which the
/// waits began: a simulated life has to follow from its seed.
pub(crate) struct Shared<T> {
    value: Arc<Mutex<T>>,
    moved: Arc<Notify>,
}

/// Answers to come, per operation and plugin; [`Answer::Succeed`] when the script has no answer.
#[derive(Default)]
pub(crate) struct Script {
    once: BTreeMap<(&'static str, String), VecDeque<Answer>>,
    always: BTreeMap<(&'static str, String), Answer>,
    releases: BTreeMap<(&'static str, String), u64>,
    fate: Decider,
}

// === impl Shared ===

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), moved: self.moved.clone() }
    }
}

impl<T> Shared<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Arc::new(Mutex::new(value)), moved: Arc::default() }
    }

    /// Reads or changes the value.
    pub(crate) fn with<R>(&self, look: impl FnOnce(&mut T) -> R) -> R {
        let seen = look(&mut self.value.lock().unwrap_or_else(PoisonError::into_inner));
        self.moved.notify_waiters();
        seen
    }

    /// Waits until `look` sees what it looks for.
    pub(crate) async fn until<R>(&self, mut look: impl FnMut(&mut T) -> Option<R>) -> R {
        loop {
            // It sees what moves from now on, also before it is awaited.
            let moved = self.moved.notified();
            let seen = look(&mut self.value.lock().unwrap_or_else(PoisonError::into_inner));
            if let Some(seen) = seen {
                return seen;
            }
            moved.await;
        }
    }
}

impl Shared<Script> {
    pub(crate) fn script(&self, what: &'static str, name: &str, answers: &[Answer]) {
        self.with(|script| {
            let queue = script.once.entry((what, name.to_owned())).or_default();
            queue.extend(answers.iter().cloned());
        });
    }

    pub(crate) fn always(&self, what: &'static str, name: &str, answer: Answer) {
        self.with(|script| script.always.insert((what, name.to_owned()), answer));
    }

    pub(crate) fn fate(&self) -> Decider {
        self.with(|script| script.fate.clone())
    }

    pub(crate) fn release(&self, what: &'static str, name: &str) {
        self.with(|script| *script.releases.entry((what, name.to_owned())).or_default() += 1);
    }

    /// Carries the next answer out.
    pub(crate) async fn answer(&self, what: &'static str, name: &str) -> Result<(), Cause> {
        let key = (what, name.to_owned());
        let (answer, releases, fate) = self.with(|script| {
            let once = script.once.get_mut(&key).and_then(VecDeque::pop_front);
            let answer = once.or_else(|| script.always.get(&key).cloned());
            (answer, script.releases.get(&key).copied().unwrap_or_default(), script.fate.get())
        });
        let answer = answer.or_else(|| Some(fate?.answer(what, name)));
        match answer.unwrap_or(Answer::Succeed) {
            Answer::Succeed => Ok(()),
            Answer::Fail(reason) => Err(reason.into()),
            Answer::Late(delay) => {
                tokio::time::sleep(delay).await;
                Ok(())
            }
            Answer::LateFail(delay, reason) => {
                tokio::time::sleep(delay).await;
                Err(reason.into())
            }
            Answer::Never => std::future::pending().await,
            Answer::Held => {
                self.until(|script| {
                    let now = script.releases.get(&key).copied().unwrap_or_default();
                    (now > releases).then_some(())
                })
                .await;
                Ok(())
            }
            Answer::Panic => panic!("the script made the fake panic at {what} of {name}"),
        }
    }
}
