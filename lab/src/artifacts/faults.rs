//! Faults and counters of one artifact, for tests and game days. All faults are off by default.

use std::time::Duration;

/// The faults of the requests for one artifact. The default injects none.
#[derive(Clone, Debug, Default)]
pub struct ArtifactFaults {
    /// Answers some requests with a status and no artifact.
    pub status: Option<StatusFault>,
    /// Closes the connection early in some answers, though Content-Length promised more.
    pub truncate: Option<CutOff>,
    /// Stops sending in some answers and keeps the connection open.
    pub stall: Option<CutOff>,
    /// Sends no faster than this.
    pub bytes_per_second: Option<u64>,
    /// Waits before the headers are sent.
    pub header_delay: Duration,
}

/// Answers the next `requests` requests with `status`.
#[derive(Clone, Copy, Debug)]
pub struct StatusFault {
    /// HTTP status, 200 to 599; another number is answered as 500.
    pub status: u16,
    /// How many requests are left.
    pub requests: u32,
}

/// Interrupts the bodies of the next `requests` answers after `after_bytes` bytes of body.
#[derive(Clone, Copy, Debug)]
pub struct CutOff {
    /// Bytes of body that are still sent, whatever range the client wants. A client that keeps
    /// reading gets all of them.
    pub after_bytes: u64,
    /// How many answers are left.
    pub requests: u32,
}

/// The request counters of one artifact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArtifactCounters {
    /// All requests, including those that were answered with a fault.
    pub requests: u64,
    /// Answers with a part (206).
    pub partial: u64,
    /// Answers that the artifact has not changed (304).
    pub not_modified: u64,
    /// Answers with an injected status.
    pub faults: u64,
    /// Bytes of bodies handed to the transport.
    pub bytes: u64,
}

/// The faults of one request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestFaults {
    pub(super) status: Option<u16>,
    pub(super) truncate_after: Option<u64>,
    pub(super) stall_after: Option<u64>,
    pub(super) bytes_per_second: Option<u64>,
    pub(super) header_delay: Duration,
}

// === impl ArtifactFaults ===

impl ArtifactFaults {
    /// Takes the faults for the next request.
    pub(super) fn next_request(&mut self) -> RequestFaults {
        let status = take(&mut self.status, |fault| &mut fault.requests).map(|f| f.status);
        if status.is_some() {
            // The other faults wait for a request that gets the artifact.
            return RequestFaults {
                status,
                header_delay: self.header_delay,
                ..RequestFaults::default()
            };
        }
        RequestFaults {
            status,
            truncate_after: take(&mut self.truncate, |f| &mut f.requests).map(|f| f.after_bytes),
            stall_after: take(&mut self.stall, |f| &mut f.requests).map(|f| f.after_bytes),
            bytes_per_second: self.bytes_per_second,
            header_delay: self.header_delay,
        }
    }
}

/// Counts a fault down; `None` when it is used up.
fn take<F: Copy>(fault: &mut Option<F>, left: impl Fn(&mut F) -> &mut u32) -> Option<F> {
    let current = fault.as_mut()?;
    let count = left(current);
    if *count == 0 {
        *fault = None;
        return None;
    }
    *count -= 1;
    *fault
}
