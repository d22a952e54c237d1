//! One virtual machine: its parts, its start and its end.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::initrd::Initrd;
use crate::harness::plugins;

/// What the machine says when every test inside it passed.
pub(crate) const ALL_PASSED: &str = "inside: all passed";

/// The hardware's help for virtual machines, where this machine has some.
const KVM: &str = "/dev/kvm";

/// Where a kernel is that `tests/vm/get-kernel` got, below the folder of build results.
const KERNEL: &str = "vm/vmlinuz";

/// What runs first inside.
const INIT: &str = include_str!("../../vm/init");

/// Runs an agent in a control group of its own, as a service manager does.
const SERVICE: &str = include_str!("../../vm/service");
const SERVICE_PATH: &str = "/sbin/guest-agent-as-a-service";

/// Certificate authorities, where most distributions have them.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// What busybox is called by inside.
const APPLETS: [&str; 24] = [
    "sh", "mount", "mkdir", "cat", "echo", "ip", "env", "setsid", "sleep", "head", "tail", "tr",
    "yes", "seq", "touch", "true", "dd", "sed", "ls", "rm", "kill", "reboot", "dmesg", "ps",
];

/// What a virtual machine needs of this one.
pub(crate) struct Tools {
    qemu: PathBuf,
    busybox: PathBuf,
    kernel: PathBuf,
}

/// A machine that does not run yet.
pub(crate) struct Machine {
    qemu: PathBuf,
    kernel: PathBuf,
    initrd: tempfile::NamedTempFile,
}

/// What became of it.
pub(crate) struct Ended {
    /// What it said.
    pub(crate) console: String,
    /// How it ended.
    pub(crate) how: String,
}

// === impl Tools ===

impl Tools {
    /// Finds them; if one is missing, says which.
    pub(crate) fn find() -> Result<Self, String> {
        if !cfg!(target_arch = "x86_64") {
            return Err("only machines of the kind x86_64 are known how to emulate".to_owned());
        }
        let kernel = match std::env::var_os("GUEST_AGENT_TEST_KERNEL") {
            Some(path) => PathBuf::from(path),
            None => target_folder().join(KERNEL),
        };
        if !kernel.is_file() {
            return Err(format!("no kernel {}; tests/vm/get-kernel gets one", kernel.display()));
        }
        Ok(Self { qemu: program("qemu-system-x86_64")?, busybox: program("busybox")?, kernel })
    }
}

/// Whether the processor runs virtual machines. The device alone does not say so: where it stands
/// for a hypervisor in software, it takes no kernel but one that was made for it.
pub(crate) fn has_hardware_help() -> bool {
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = processor.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let is_able = flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm");
    is_able && std::fs::File::options().read(true).write(true).open(KVM).is_ok()
}

/// The path of a program that can be run.
pub(crate) fn program(name: &str) -> Result<PathBuf, String> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut paths = std::env::split_paths(&folders).map(|folder| folder.join(name));
    paths.find(|path| path.is_file()).ok_or_else(|| format!("no program {name}"))
}

/// Where build results are.
pub(crate) fn target_folder() -> PathBuf {
    let agent = Path::new(env!("CARGO_BIN_EXE_guest-agent"));
    agent.ancestors().nth(2).expect("programs are in the folder of a profile").to_owned()
}

// === impl Machine ===

impl Machine {
    /// A machine that runs tests of this program and turns itself off.
    pub(crate) fn new(tools: &Tools, tests: &[&str]) -> Self {
        let mut initrd = Initrd::default();
        for folder in ["/proc", "/sys", "/dev", "/run", "/tmp", "/root", "/var/tmp"] {
            initrd.folder(Path::new(folder));
        }
        let this = std::env::current_exe().expect("this program has a path");
        let busybox = Path::new("/bin/busybox");
        initrd.program(busybox, &std::fs::read(&tools.busybox).expect("busybox can be read"));
        for applet in APPLETS {
            initrd.link(&Path::new("/bin").join(applet), "busybox");
        }
        initrd.copy_program(&this);
        initrd.copy_program(Path::new(env!("CARGO_BIN_EXE_guest-agent")));
        for example in plugins::PROGRAMS {
            initrd.copy_program(&plugins::program(example));
        }
        initrd.program(Path::new(SERVICE_PATH), SERVICE.as_bytes());
        // The HTTP client reads the authorities at its start, also where nothing is encrypted.
        if let Ok(authorities) = std::fs::read(AUTHORITIES) {
            initrd.program(Path::new(AUTHORITIES), &authorities);
        }
        let init = INIT
            .replace("@TESTS@", &format!("{} {}", this.display(), tests.join(" ")))
            .replace("@AGENT@", env!("CARGO_BIN_EXE_guest-agent"))
            .replace("@SERVICE@", SERVICE_PATH)
            .replace("@ALL_PASSED@", ALL_PASSED);
        initrd.program(Path::new("/init"), init.as_bytes());
        let file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
        std::fs::write(file.path(), initrd.finish()).expect("the initrd can be written");
        Self { qemu: tools.qemu.clone(), kernel: tools.kernel.clone(), initrd: file }
    }

    /// Runs it until it turns itself off, or its time is up.
    pub(crate) fn run(self, deadline: Duration) -> Ended {
        // The console is written to a file, so no process has to read it while the machine runs.
        let console = tempfile::NamedTempFile::new().expect("a temporary file can be made");
        let accelerator = if has_hardware_help() { "kvm" } else { "tcg,thread=multi" };
        let child = Command::new(&self.qemu)
            .args(["-machine", "q35", "-accel", accelerator, "-cpu", "max", "-smp", "2"])
            .args(["-m", "2048", "-nodefaults", "-no-user-config", "-display", "none"])
            // It has no disk, no network, and ends instead of starting again.
            .args(["-no-reboot", "-nic", "none"])
            .arg("-serial")
            .arg(format!("file:{}", console.path().display()))
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(self.initrd.path())
            .args(["-append", "console=ttyS0 loglevel=1 panic=-1 rdinit=/init"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = Running(child.expect("qemu can be run"));
        let how = child.wait(deadline);
        let bytes = std::fs::read(console.path()).unwrap_or_default();
        Ended { console: String::from_utf8_lossy(&bytes).replace('\r', ""), how }
    }
}

/// A child process, killed when this value is dropped.
struct Running(Child);

// === impl Running ===

impl Running {
    fn wait(&mut self, deadline: Duration) -> String {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().expect("a child can be waited for") {
                let mut complaints = String::new();
                let said = self.0.stderr.take();
                let _as_far_as_it_is_text = said.map(|mut it| it.read_to_string(&mut complaints));
                return format!("it ended after {:?} with {status} {complaints}", began.elapsed());
            }
            if began.elapsed() > deadline {
                return format!("it was turned off after {deadline:?}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended cannot be ended again.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
