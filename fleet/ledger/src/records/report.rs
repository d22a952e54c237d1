//! What an agent reported last. Key: the agent's id, in the bucket of reports. The gateway writes it
//! when it differs from the one before.

pub use super::generated::{ReportRecord, ReportedHold, ReportedPlugin};

// === impl ReportRecord ===

versioned!(ReportRecord: 1);
