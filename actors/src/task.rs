//! A task that works for an actor and ends when its handle is dropped.

use actix::WeakAddr;
use actix::prelude::*;
use tokio::task::JoinHandle;

/// A task on the thread of the actors. Ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Task(JoinHandle<()>);

/// To an actor: one of its tasks panicked. The actor cannot work without it, so it ends as if it
/// had panicked itself.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Panicked;

/// Sends [`Panicked`] to the actor when it is dropped during a panic.
struct Alarm<A: Actor<Context = Context<A>> + Handler<Panicked>>(WeakAddr<A>);

impl Task {
    /// Starts a task for an actor. It runs until it is done or the handle is dropped. Must be
    /// called by an actor.
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
