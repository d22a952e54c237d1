//! The machine of a played agent, and the time of day.

use std::time::SystemTime;

use async_trait::async_trait;
use guest_agent_actors::model::id::BootId;
use guest_agent_actors::ports::{Clock, Machine, OsFacts};

/// A machine that is named like its agent, and never restarts.
pub(super) struct PlayedMachine(String);

/// The time of day.
pub(super) struct WallClock;

// === impl PlayedMachine ===

impl PlayedMachine {
    pub(super) fn new(id: &str) -> Self {
        Self(id.to_owned())
    }

    pub(super) fn boot_of(id: &str) -> BootId {
        BootId(format!("boot-of-{id}").into())
    }
}

#[async_trait]
impl Machine for PlayedMachine {
    fn boot_id(&self) -> BootId {
        Self::boot_of(&self.0)
    }

    fn instance_id(&self) -> String {
        self.0.clone()
    }

    fn host_name(&self) -> String {
        self.0.clone()
    }

    async fn os(&self) -> OsFacts {
        OsFacts {
            kind: "linux".to_owned(),
            short_name: "played".to_owned(),
            long_name: "Played Linux 1".to_owned(),
            version: "1".to_owned(),
            architecture: "x86_64".to_owned(),
            kernel_release: "6.18.0".to_owned(),
            kernel_version: "#1".to_owned(),
        }
    }
}

impl Clock for WallClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}
