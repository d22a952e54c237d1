//! A ledger whose operations are counted and timed.

use std::sync::Arc;

use guest_fleet_ledger::{Answer, Call, Layer, Layered, Ledger, SharedLedger};
use tokio::time::Instant;

use crate::telemetry::figures::Figures;

/// Passes every call on to a ledger and counts it.
pub struct ObservedLedger {
    inner: SharedLedger,
    figures: Arc<Figures>,
}

// === impl ObservedLedger ===

impl ObservedLedger {
    /// Counts what this ledger is asked.
    #[must_use]
    pub fn new(inner: SharedLedger, figures: Arc<Figures>) -> Arc<Layered<Self>> {
        Arc::new(Layered(Self { inner, figures }))
    }
}

impl Layer for ObservedLedger {
    fn below(&self) -> &dyn Ledger {
        &*self.inner
    }

    async fn pass<A: Answer>(&self, call: Call<'_>, answer: impl Future<Output = A> + Send) -> A {
        let began = Instant::now();
        let answer = answer.await;
        self.figures.operation(call.verb, began.elapsed(), answer.failure());
        answer
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use guest_fleet_ledger::{Bucket, Failure, MemoryLedger, Revision, Verb, Write, WriteError};

    use super::*;

    fn observed() -> Arc<Layered<ObservedLedger>> {
        ObservedLedger::new(Arc::new(MemoryLedger::default()), Arc::default())
    }

    async fn make() -> (SharedLedger, ()) {
        (observed(), ())
    }

    guest_fleet_ledger::ledger_laws!(laws, make);

    #[tokio::test]
    async fn operations_and_their_failures_are_counted_by_verb() {
        let ledger = observed();
        let write = |expected| Write {
            key: "k".to_owned(),
            expected,
            value: Some(Bytes::from_static(b"v")),
        };
        ledger.write(Bucket::Agents, vec![write(Revision::ABSENT)]).await.expect("written");
        let again = ledger.write(Bucket::Agents, vec![write(Revision::ABSENT)]).await;
        assert!(matches!(again, Err(WriteError::Conflict { .. })));
        ledger.get(Bucket::Agents, "k").await.expect("read").expect("a record");
        let counted = ledger.figures.now();
        assert_eq!(counted.ledger[&Verb::Write].took.count(), 2);
        assert_eq!(counted.ledger[&Verb::Write].failed[&Failure::Conflict], 1);
        assert_eq!(counted.ledger[&Verb::Get].took.count(), 1);
        assert!(counted.ledger[&Verb::Get].failed.is_empty());
    }
}
