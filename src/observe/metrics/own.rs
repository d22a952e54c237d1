//! Resources that the agent itself uses, and those of its machine.

use std::time::Duration;

use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

/// The values that can be measured.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Own {
    pub(super) process: Option<Process>,
    pub(super) machine: Option<Machine>,
    /// Average over a minute.
    pub(super) load: Option<f64>,
}

/// The agent's own process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    pub(super) cpu_time: Duration,
    pub(super) memory_bytes: u64,
    pub(super) descriptors: Option<usize>,
    pub(super) descriptors_max: Option<usize>,
}

/// The memory of the machine, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) memory: u64,
    pub(super) available: u64,
}

// === impl Own ===

impl Own {
    /// Reads a few files in `/proc`.
    pub(super) fn measure() -> Self {
        let load = System::load_average().ok().map(|load| load.one);
        let Ok(mut system) = System::new() else { return Self { load, ..Self::default() } };
        system.refresh_memory();
        let pid = Pid::from_u32(std::process::id());
        let kind = ProcessRefreshKind::nothing().with_cpu().with_memory();
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), false, kind);
        let process = system.process(pid).map(|process| Process {
            cpu_time: Duration::from_millis(process.accumulated_cpu_time()),
            memory_bytes: process.memory(),
            descriptors: process.open_files(),
            descriptors_max: process.open_files_limit(),
        });
        let (memory, available) = (system.total_memory(), system.available_memory());
        Self { process, machine: Some(Machine { memory, available }), load }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_and_its_machine_can_be_measured() {
        let own = Own::measure();
        let process = own.process.expect("this process");
        assert!(process.memory_bytes > 100_000, "{process:?}");
        assert!(process.descriptors.expect("a number") >= 3, "{process:?}");
        assert!(process.descriptors_max >= process.descriptors, "{process:?}");
        let machine = own.machine.expect("this machine");
        assert!(machine.memory >= machine.available && machine.available > 0, "{machine:?}");
        assert!(own.load.expect("a load") >= 0.0);
    }
}
