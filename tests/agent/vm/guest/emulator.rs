//! A whole machine, with a kernel of its own.
//!
//! Its disk is never written: what it changes is in a file of the emulator's own, and stays for as
//! long as the emulator runs, so also when the machine is started again.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use super::{Answer, BEAT, Door, PATIENCE};
use crate::vm::machine::program;

/// An emulator that runs. It ends with this.
pub(super) struct Emulator {
    qemu: Child,
    shell: BufReader<UnixStream>,
    commands: u64,
}

// === impl Emulator ===

impl Emulator {
    /// Starts a machine of the image in `image`; everything else of it is in `folder`.
    pub(super) async fn start(
        image: &Path,
        folder: &Path,
        payload: &Path,
        doors: &[Door],
        is_emulated: bool,
    ) -> Self {
        let path = |name: &str| folder.join(name).display().to_string();
        let image = |name: &str| image.join(name).display().to_string();
        // Emulated, a plain processor: version 7.2 of the emulator returns from `cmpxchg16b` with
        // broken flags.
        let (accelerator, processor) =
            if is_emulated { ("tcg,thread=multi", "Nehalem,-cx16") } else { ("kvm", "max") };
        let busybox = program("busybox").unwrap();
        let lead = |Door { address, port, outside }: &Door| {
            let relay = format!("{} nc 127.0.0.1 {outside}", busybox.display());
            format!(",guestfwd=tcp:{address}:{port}-cmd:{relay}")
        };
        let doors: String = doors.iter().map(lead).collect();
        let complaints = std::fs::File::create(path("complaints")).unwrap();
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-machine", "q35", "-accel", accelerator, "-cpu", processor, "-smp", "2"])
            .args(["-m", "1024", "-nodefaults", "-no-user-config", "-display", "none"])
            .arg("-kernel")
            .arg(image("vmlinuz"))
            .arg("-initrd")
            .arg(image("initrd"))
            .args(["-append", "console=ttyS0 root=/dev/vda rw net.ifnames=0 panic=-1"])
            .arg("-drive")
            .arg(format!("file={},format=raw,if=virtio,snapshot=on", image("disk")))
            .arg("-drive")
            .arg(format!("file={},format=raw,if=virtio,readonly=on", payload.display()))
            .arg("-serial")
            .arg(format!("file:{}", path("console")))
            .arg("-chardev")
            .arg(format!("socket,id=shell,path={},server=on,wait=off", path("shell")))
            .args(["-device", "virtio-serial", "-device", "virtserialport,chardev=shell,name=test"])
            .arg("-netdev")
            .arg(format!(
                "user,id=net,restrict=on,net=169.254.169.0/24,host=169.254.169.2,dns=169.254.169.3{doors}"
            ))
            .args(["-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-rng-pci"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(complaints)
            .kill_on_drop(true);
        let mut qemu = command.spawn().unwrap();
        let deadline = Instant::now() + PATIENCE;
        let shell = loop {
            if let Ok(stream) = UnixStream::connect(path("shell")).await {
                break BufReader::new(stream);
            }
            let complaints = std::fs::read_to_string(path("complaints")).unwrap_or_default();
            assert!(
                qemu.try_wait().unwrap().is_none(),
                "the emulator does not start: {complaints}"
            );
            assert!(Instant::now() < deadline, "the emulator has no serial port: {complaints}");
            tokio::time::sleep(BEAT).await;
        };
        Self { qemu, shell, commands: 0 }
    }

    /// Runs a command, unless the emulator does not run.
    pub(super) async fn run(&mut self, command: &str, deadline: Duration) -> Option<Answer> {
        self.commands += 1;
        let number = self.commands.to_string();
        let line = format!("{number} {} {}\n", deadline.as_secs(), STANDARD.encode(command));
        self.shell.write_all(line.as_bytes()).await.ok()?;
        // Longer than the deadline inside, so that it is the one that ends a command.
        let answer = tokio::time::timeout(deadline + BEAT * 10, async {
            let mut line = String::new();
            loop {
                line.clear();
                if self.shell.read_line(&mut line).await.ok()? == 0 {
                    return None;
                }
                // An answer that came too late is not the one to this command.
                let mut words = line.split_whitespace();
                if words.next() == Some(&number) {
                    let code = words.next()?.parse().ok()?;
                    let said = STANDARD.decode(words.next().unwrap_or_default()).ok()?;
                    return Some((code, String::from_utf8_lossy(&said).into_owned()));
                }
            }
        });
        answer.await.ok().flatten()
    }

    /// The emulator itself, which ends when the machine turns itself off.
    pub(super) fn process(&mut self) -> &mut Child {
        &mut self.qemu
    }
}
