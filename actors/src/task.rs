//! Work beside an actor that ends with whoever wants it.

use actix::WeakAddr;
use actix::prelude::*;
use tokio::task::JoinHandle;

/// A task on the thread of the actors. Ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Task(JoinHandle<()>);

/// To an actor: a task of it panicked. What such an actor would do without it nobody knows, so it ends as if it had
/// panicked itself.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Panicked;

/// Tells of a panic as long as it lives.
struct Alarm<A: Actor<Context = Context<A>> + Handler<Panicked>>(WeakAddr<A>);

impl Task {
    /// Begins something for an actor, which goes on until it is done or this is dropped. Must be called by an actor.
    pub(crate) fn spawn<A>(actor: &Addr<A>, work: impl Future<Output = ()> + 'static) -> Self
    where
        A: Actor<Context = Context<A>> + Handler<Panicked>,
    {
        let alarm = Alarm(actor.downgrade());
        Self(actix::spawn(async move {
            let _alarm = alarm;
            work.await;
        }))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<A: Actor<Context = Context<A>> + Handler<Panicked>> Drop for Alarm<A> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(actor) = self.0.upgrade()
        {
            actor.do_send(Panicked);
        }
    }
}
