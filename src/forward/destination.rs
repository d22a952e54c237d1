//! Where records go: what every destination can do.

use super::record::Record;

/// Takes records.
pub(super) trait Destination {
    /// Sends records in this order, with a deadline of its own. One call runs at a time.
    fn send(&mut self, records: &[Record]) -> impl Future<Output = Sent>;
}

/// What became of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    /// How many records, from the first on, need not be sent again.
    pub(super) done: usize,
    /// How many of those the destination refused for good.
    pub(super) refused: u64,
    /// Why it refused them.
    pub(super) refusal: Option<String>,
    /// Why it has not taken the others, and what helps. They are sent again.
    pub(super) failure: Option<String>,
}

/// Stands in for a destination that cannot be made before the agent starts again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nowhere;

impl Destination for Nowhere {
    async fn send(&mut self, _: &[Record]) -> Sent {
        let why = "the agent was started without telemetry.otlp_endpoint, which it takes up when it \
                   starts; `systemctl restart guest-agent`, which leaves plugins running";
        Sent { failure: Some(why.to_owned()), ..Sent::default() }
    }
}
