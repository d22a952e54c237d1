//! The machine that was measured on.

use std::fmt;
use std::path::Path;
use std::process::Command;

/// What a reader has to know about it.
pub(crate) struct Machine {
    processor: String,
    cores: usize,
    memory_gib: u64,
    kernel: String,
    compiler: String,
    program: String,
}

impl Machine {
    /// Looks at this one.
    pub(crate) fn look(program: &Path) -> Self {
        let field = |file: &str, key: &str| {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(key));
            let value = line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()));
            value.unwrap_or_else(|| "unknown".to_owned())
        };
        let memory = field("/proc/meminfo", "MemTotal");
        let kib: u64 = memory.split(' ').next().and_then(|it| it.parse().ok()).unwrap_or(0);
        let size = std::fs::metadata(program).map_or(0, |metadata| metadata.len());
        let linked = if said("file", &["--brief", &program.to_string_lossy()]).contains("static") {
            "static"
        } else {
            "dynamic"
        };
        Self {
            processor: field("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            memory_gib: kib.div_ceil(1 << 20),
            kernel: said("uname", &["-sr"]),
            compiler: said(option_env!("RUSTC").unwrap_or("rustc"), &["--version"]),
            program: format!("{linked}, {size} bytes"),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { processor, cores, memory_gib, kernel, compiler, program } = self;
        write!(
            f,
            "Machine: {processor}, {cores} cores, {memory_gib} GiB, {kernel}, {compiler}. Program: {program}."
        )
    }
}

fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(
        |_| "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}
