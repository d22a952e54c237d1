//! What processes use, in memory.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::fakes::fate::Decider;
use crate::fakes::{Answer, Shared};
use crate::model::id::{PluginName, Process};
use crate::ports::{MemoryBasis, MemoryUse, Meter, Usage};

/// A meter by which every process uses half a core and a mebibyte, of which half is resident.
pub struct FakeMeter(MeterHandle);

/// Reads the calls that a [`FakeMeter`] received.
#[derive(Clone)]
pub struct MeterHandle(Shared<Sweeps>);

struct Sweeps {
    since: Instant,
    sizes: Vec<usize>,
    hangs: bool,
    memory: BTreeMap<String, u64>,
    fate: Decider,
}

/// A meter that was not asked yet.
#[must_use]
pub fn meter() -> (FakeMeter, MeterHandle) {
    let sweeps = Sweeps {
        since: Instant::now(),
        sizes: Vec::new(),
        hangs: false,
        memory: BTreeMap::new(),
        fate: Decider::default(),
    };
    let handle = MeterHandle(Shared::new(sweeps));
    (FakeMeter(handle.clone()), handle)
}

// === impl MeterHandle ===

impl MeterHandle {
    /// How many plugins each sweep so far was about.
    #[must_use]
    pub fn sweeps(&self) -> Vec<usize> {
        self.0.with(|sweeps| sweeps.sizes.clone())
    }

    pub(super) fn fate(&self) -> Decider {
        self.0.with(|sweeps| sweeps.fate.clone())
    }

    /// A plugin uses this many bytes of memory from now on.
    pub fn uses(&self, name: &str, bytes: u64) {
        self.0.with(|sweeps| sweeps.memory.insert(name.to_owned(), bytes));
    }

    /// The next sweep never answers.
    pub fn hang_once(&self) {
        self.0.with(|sweeps| sweeps.hangs = true);
    }
}

// === impl FakeMeter ===

#[async_trait]
impl Meter for FakeMeter {
    async fn sample(&self, plugins: Vec<(PluginName, Process)>) -> BTreeMap<PluginName, Usage> {
        let (cpu_time, hangs, fate) = self.0.0.with(|sweeps| {
            sweeps.sizes.push(plugins.len());
            let cpu_time: Duration = sweeps.since.elapsed() / 2;
            (cpu_time, std::mem::take(&mut sweeps.hangs), sweeps.fate.get())
        });
        let hangs = hangs || fate.is_some_and(|f| f.answer("sample", "") != Answer::Succeed);
        if hangs {
            std::future::pending::<()>().await;
        }
        self.0.0.with(|sweeps| {
            let usage = |name: &PluginName| {
                let bytes = sweeps.memory.get(name.as_str()).copied().unwrap_or(1 << 20);
                let basis = MemoryBasis::WorkingSet;
                Usage { cpu_time, memory: MemoryUse { bytes, basis, resident: bytes / 2 } }
            };
            plugins.into_iter().map(|(name, _)| (name.clone(), usage(&name))).collect()
        })
    }
}
