//! Work beside an actor that ends with whoever wants it.

use tokio::task::JoinHandle;

/// A task on the thread of the actors. Ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Task(JoinHandle<()>);

impl Task {
    /// Begins something, which goes on until it is done or this is dropped. Must be called by an actor.
    pub(crate) fn spawn(work: impl Future<Output = ()> + 'static) -> Self {
        Self(actix::spawn(work))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
