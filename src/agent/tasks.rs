//! The tasks that run beside the actors: what the end of each means, and how each is ended.

use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::fault::Fault;

/// A task of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Serves the local socket.
    LocalApi,
    /// Serves the JSON command socket.
    CommandSocket,
    /// Serves pages, health and metrics over HTTP.
    Http,
    /// Keeps the connection to the control plane.
    Link,
    /// Reports the result of the start to the control plane.
    StartReport,
    /// Keeps the attributes of the metadata server current.
    Attributes,
    /// Cuts the logs of plugins.
    LogTrimming,
    /// Forwards the logs of plugins.
    LogForwarding,
    /// Keeps the service manager informed.
    ServiceManager,
    /// Reports what the store lost.
    LossReport,
    /// Reports the lines that the agent's own log left out.
    LogLossReport,
    /// Gives memory back after a burst of work.
    GivingMemoryBack,
    /// Waits for a state directory that cannot be used.
    StateDirectory,
    /// Follows when the client certificate ends.
    ClientCertificate,
    /// Renews the certificate that a fleet issued.
    Renewal,
}

/// What the end of a task means while the service runs.
enum Meaning {
    /// Nothing: its work is done or not necessary.
    Nothing,
    /// The service has to end.
    Fault(Fault),
    /// The service has to end, unless the task panicked: then the task gave no reason.
    FaultIfReturned(Fault),
}

/// How a task is ended.
enum Ending {
    /// It is aborted at its next await.
    Abort,
    /// The service told it to end, and waits for it: for this time, or for its own limit.
    Wait(Option<Duration>),
}

/// All tasks that were started and not ended.
#[derive(Default)]
pub(super) struct Tasks(Vec<(Task, JoinHandle<()>)>);

// === impl Task ===

impl Task {
    fn meaning(self) -> Meaning {
        match self {
            Self::LocalApi => Meaning::Fault(Fault::LocalSocket),
            Self::Link => Meaning::Fault(Fault::Link),
            Self::Attributes => Meaning::FaultIfReturned(Fault::AnotherMachine),
            Self::StateDirectory => Meaning::FaultIfReturned(Fault::StateDirectoryIsBack),
            Self::CommandSocket
            | Self::Http
            | Self::StartReport
            | Self::LogTrimming
            | Self::LogForwarding
            | Self::ServiceManager
            | Self::LossReport
            | Self::LogLossReport
            | Self::GivingMemoryBack
            | Self::ClientCertificate
            | Self::Renewal => Meaning::Nothing,
        }
    }

    fn ending(self) -> Ending {
        match self {
            Self::Link => Ending::Wait(Some(Duration::from_secs(3))),
            Self::LogForwarding => Ending::Wait(Some(Duration::from_secs(1))),
            Self::Http => Ending::Wait(None),
            Self::LocalApi
            | Self::CommandSocket
            | Self::StartReport
            | Self::Attributes
            | Self::LogTrimming
            | Self::ServiceManager
            | Self::LossReport
            | Self::LogLossReport
            | Self::GivingMemoryBack
            | Self::StateDirectory
            | Self::ClientCertificate
            | Self::Renewal => Ending::Abort,
        }
    }
}

// === impl Tasks ===

impl Tasks {
    /// Starts a task. Each is started once.
    pub(super) fn start(&mut self, task: Task, work: impl Future<Output = ()> + 'static) {
        self.0.push((task, actix_rt::spawn(work)));
    }

    /// Resolves when a necessary task has ended. Dropping the future loses nothing.
    pub(super) fn fault(&mut self) -> impl Future<Output = Fault> {
        std::future::poll_fn(|context| {
            let mut fault = None;
            self.0.retain_mut(|(task, handle)| {
                let meaning = task.meaning();
                if fault.is_some() || matches!(meaning, Meaning::Nothing) {
                    return true;
                }
                let Poll::Ready(result) = Pin::new(handle).poll(context) else { return true };
                match meaning {
                    Meaning::Nothing => {}
                    // A panic is an end like any other.
                    Meaning::Fault(meant) => fault = Some(meant),
                    Meaning::FaultIfReturned(meant) => fault = result.is_ok().then_some(meant),
                }
                false
            });
            fault.map_or(Poll::Pending, Poll::Ready)
        })
    }

    /// Ends a task; returns whether it existed. A task that has ended already is only removed.
    pub(super) async fn end(&mut self, task: Task) -> bool {
        let Some(at) = self.0.iter().position(|(of, _)| *of == task) else { return false };
        let (_, handle) = self.0.remove(at);
        match task.ending() {
            Ending::Abort => handle.abort(),
            // One that panicked has ended as well.
            Ending::Wait(None) => drop(handle.await),
            Ending::Wait(Some(within)) => drop(tokio::time::timeout(within, handle).await),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::{Instant, timeout};

    use super::*;

    async fn fault_of(tasks: &mut Tasks) -> Option<Fault> {
        timeout(Duration::from_secs(60), tasks.fault()).await.ok()
    }

    #[test]
    fn only_the_end_of_what_nothing_can_do_without_is_a_fault() {
        run(async {
            let mut tasks = Tasks::default();
            tasks.start(Task::Link, pending());
            tasks.start(Task::LossReport, ready(()));
            tasks.start(Task::Http, async { panic!("on purpose") });
            assert_eq!(fault_of(&mut tasks).await, None);
            tasks.start(Task::LocalApi, async { panic!("on purpose") });
            assert_eq!(fault_of(&mut tasks).await, Some(Fault::LocalSocket));
            assert!(!tasks.end(Task::LocalApi).await, "it has ended");
            assert!(tasks.end(Task::Http).await);
        });
    }

    #[test]
    fn attributes_that_panicked_do_not_make_another_machine() {
        run(async {
            let mut tasks = Tasks::default();
            tasks.start(Task::Attributes, async { panic!("on purpose") });
            assert_eq!(fault_of(&mut tasks).await, None);
            tasks.start(Task::Attributes, ready(()));
            assert_eq!(fault_of(&mut tasks).await, Some(Fault::AnotherMachine));
        });
    }

    #[test]
    fn a_link_that_does_not_end_is_waited_for_three_seconds() {
        run(async {
            let mut tasks = Tasks::default();
            tasks.start(Task::Link, pending());
            tasks.start(Task::LogTrimming, pending());
            let began = Instant::now();
            assert!(tasks.end(Task::LogTrimming).await);
            assert_eq!(began.elapsed(), Duration::ZERO);
            assert!(tasks.end(Task::Link).await);
            assert_eq!(began.elapsed().as_secs(), 3);
        });
    }

    fn run(test: impl Future<Output = ()>) {
        actix_rt::System::new().block_on(async {
            tokio::time::pause();
            test.await;
        });
    }
}
