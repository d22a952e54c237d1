//! Who watches which bucket.

use tokio::sync::watch;

use crate::Bucket;

/// A counter per bucket, which goes up when the bucket may have changed.
#[derive(Debug)]
pub(super) struct Watchers {
    senders: [watch::Sender<u64>; Bucket::ALL.len()],
}

// === impl Watchers ===

impl Watchers {
    pub(super) fn new() -> Self {
        Self { senders: std::array::from_fn(|_| watch::Sender::new(0)) }
    }

    pub(super) fn watch(&self, bucket: Bucket) -> watch::Receiver<u64> {
        self.of(bucket).subscribe()
    }

    /// Whether anybody watches any bucket.
    pub(super) fn any(&self) -> bool {
        self.senders.iter().any(|it| it.receiver_count() > 0)
    }

    /// The bucket may have changed.
    pub(super) fn changed(&self, bucket: Bucket) {
        self.of(bucket).send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Another process wrote, and nobody knows where.
    pub(super) fn changed_elsewhere(&self) {
        for bucket in Bucket::ALL {
            self.changed(bucket);
        }
    }

    fn of(&self, bucket: Bucket) -> &watch::Sender<u64> {
        let at = match bucket {
            Bucket::Configuration => 0,
            Bucket::Agents => 1,
            Bucket::Journal => 2,
            Bucket::Reports => 3,
            Bucket::Index => 4,
        };
        &self.senders[at]
    }
}
