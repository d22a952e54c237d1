//! The control plane and the servers around the virtual machine, and the questions asked inside it.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use guest_agent_lab::{ArtifactServer, ControlPlane, MetadataServer, ServerTls};
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use serde_json::Value;

use crate::harness::archive::{Compression, Tarball, publish};
use crate::harness::{Archive, ArchiveSpec, RESOURCE, listing, orders};
use crate::transport::certificates;
use crate::vm::guest::{Debian, Door, Guest, PATIENCE};
use crate::vm::initrd::stripped;
use crate::vm::machine::target_folder;

/// Where the control plane is for the machine.
const CONTROL_PLANE: &str = "169.254.169.100";

/// Where archives are.
const ARCHIVES: &str = "169.254.169.101";

/// Where the metadata server is for every virtual machine of this kind.
const METADATA: &str = "169.254.169.254";

/// Names the package to install; without it the newest one below the folder of build results is
/// taken.
const PACKAGE: &str = "GUEST_AGENT_TEST_PACKAGE";

/// What `web` does with every Apply: notes the configuration, and whether the network
/// still works.
const NOTE: &str = "exec bash /usr/local/sbin/note \"$1\"";
const NOTE_SCRIPT: &str = "#!/bin/bash\n\
    if (exec 3<>/dev/tcp/169.254.169.101/80) 2>/dev/null; then net=online; else net=offline; fi\n\
    echo \"$(cat /proc/sys/kernel/random/boot_id) $net $1\" >>\"$GUEST_AGENT_STATE_DIR/told\"\n";

/// Settings of the agent. Where its metadata server is, who it is and what its resource is called
/// are not among them.
const SETTINGS: &str = "\
    [control_plane]\nendpoint = \"https://169.254.169.100:443\"\nca_file = \"/etc/test/ca.pem\"\n\
    [plugins]\nhealth_interval = \"500ms\"\nprobation = \"1s\"\nrestart_max_backoff = \"1s\"\n\
    max_tasks = 64\ntotal_memory_bytes = 419430400\n\
    [install]\nmax_memory_pressure = 0\n";

/// The same package in two versions.
pub(crate) struct Packages {
    folder: tempfile::TempDir,
    pub(crate) newer: String,
}

/// The machine, and those it talks to.
pub(crate) struct World {
    pub(crate) guest: Guest,
    pub(crate) control_plane: ControlPlane,
    pub(crate) metadata: MetadataServer,
    artifacts: ArtifactServer,
    trouble: Archive,
    _payload: tempfile::TempDir,
}

// === impl Packages ===

impl Packages {
    /// Finds the package and makes a newer one of it; without a package, the error says so.
    pub(crate) fn find() -> Result<Self, String> {
        let package = package()?;
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let path = |name: &str| folder.path().join(name);
        std::fs::copy(&package, path("older.deb")).map_err(|error| error.to_string())?;
        let dpkg = |arguments: &[&Path]| {
            let status = Command::new("dpkg-deb")
                .args(["-Zgzip", "-z1", "--root-owner-group"])
                .args(arguments)
                .output();
            let output = status.map_err(|error| format!("dpkg-deb: {error}"))?;
            let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.success() { Ok(()) } else { Err(format!("dpkg-deb: {complaints}")) }
        };
        let (tree, control) = (path("tree"), path("tree/DEBIAN/control"));
        dpkg(&[Path::new("--raw-extract"), &package, &tree])?;
        let said = std::fs::read_to_string(&control).map_err(|error| error.to_string())?;
        let version = said.lines().find_map(|line| line.strip_prefix("Version: "));
        let older = version.ok_or("the package has no version")?.to_owned();
        let newer = format!("{older}+newer");
        let said = said.replace(&format!("Version: {older}\n"), &format!("Version: {newer}\n"));
        std::fs::write(&control, said).map_err(|error| error.to_string())?;
        dpkg(&[Path::new("--build"), &tree, &path("newer.deb")])?;
        println!("the package is {}", package.display());
        Ok(Self { folder, newer })
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.folder.path().join(name)).unwrap()
    }
}

fn package() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os(PACKAGE) {
        return Ok(path.into());
    }
    let folder = target_folder().join("debian");
    let is_package = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("guest-agent_") && name.ends_with(".deb")
    };
    let made = |path: &PathBuf| {
        path.metadata().and_then(|it| it.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
    };
    let newest = listing(&folder).into_iter().filter(is_package).max_by_key(made);
    let hint = format!("no package in {}; tests/package/build-deb makes one", folder.display());
    newest.ok_or(hint)
}

// === impl World ===

impl World {
    /// Starts the servers and the machine. No agent is installed yet.
    pub(crate) async fn new(debian: &Debian, packages: &Packages) -> Self {
        let payload = tempfile::tempdir().unwrap();
        let loopback = || ([127, 0, 0, 1], 0).into();
        // Agents show a token of the metadata server, and no certificate.
        let tls = ServerTls { client_ca: None, ..certificates(payload.path(), CONTROL_PLANE) };
        let control_plane =
            ControlPlane::builder().listen_tcp(loopback()).tls(tls).start().await.unwrap();
        let artifacts = ArtifactServer::start(loopback()).await.unwrap();
        let metadata = MetadataServer::start(loopback()).await.unwrap();
        metadata.set_machine("1", "test", "test");
        let program = stripped(&crate::harness::plugins::program("trouble_plugin"));
        let tar = Tarball::default().file("bin/trouble", 0o755, &program);
        let spec = ArchiveSpec::tar("bin/trouble", tar).compressed(Compression::Zstd);
        let trouble = inside(publish(&artifacts, "trouble.tar.zst", spec).await);

        let authority = std::fs::read(payload.path().join("ca.pem")).unwrap();
        let files = Tarball::default()
            .file("etc/test/ca.pem", 0o644, &authority)
            // Without CA certificates the agent cannot download, and a minimal Debian has none.
            .file("etc/ssl/certs/ca-certificates.crt", 0o644, &authority)
            .file("etc/test/older.deb", 0o644, &packages.read("older.deb"))
            .file("etc/test/newer.deb", 0o644, &packages.read("newer.deb"))
            .file("usr/local/sbin/note", 0o755, NOTE_SCRIPT.as_bytes())
            .file("etc/guest-agent/conf.d/50-test.toml", 0o644, SETTINGS.as_bytes());
        let archive = payload.path().join("payload.tar");
        std::fs::write(&archive, files.finish()).unwrap();
        let door =
            |address, port, outside: SocketAddr| Door { address, port, outside: outside.port() };
        let doors = [
            door(CONTROL_PLANE, 443, control_plane.tcp_address().unwrap()),
            door(ARCHIVES, 80, artifacts.address().unwrap()),
            door(METADATA, 80, metadata.address()),
        ];
        let guest = debian.boot(&archive, &doors).await;
        Self { guest, control_plane, metadata, artifacts, trouble, _payload: payload }
    }

    /// An order to install the trouble plugin, which notes each configuration that it gets.
    pub(crate) fn install(&self, name: &str) -> orders::Install {
        let note = format!("--on-apply={NOTE}");
        orders::install(name, "1", &self.trouble).arg(note)
    }

    /// An order to install a shell script, without its first line.
    pub(crate) async fn script(&self, name: &str, text: &str) -> orders::Install {
        let program =
            publish(&self.artifacts, &format!("{name}.tar"), ArchiveSpec::script(text)).await;
        orders::install(name, "1", &inside(program))
    }

    /// An order to install a shell script, without its first line, that becomes the trouble plugin
    /// in the end.
    pub(crate) async fn trouble_after(&self, name: &str, text: &str) -> orders::Install {
        let program = stripped(&crate::harness::plugins::program("trouble_plugin"));
        let script = format!("#!/bin/sh\n{text}\nexec ./trouble \"$@\"\n");
        let tar = Tarball::default()
            .file("run", 0o755, script.as_bytes())
            .file("trouble", 0o755, &program);
        let spec = ArchiveSpec::tar("run", tar).compressed(Compression::Zstd);
        let archive = publish(&self.artifacts, &format!("{name}.tar.zst"), spec).await;
        orders::install(name, "1", &inside(archive))
    }

    /// Gives an order through the control plane; returns when the agent acknowledged it.
    pub(crate) async fn configure(&self, order: ConfigurePlugin) {
        let states = ConfigurePluginStates { configure_plugins: vec![order] };
        let delivery = self.control_plane.configure(RESOURCE, &states).unwrap();
        if let Err(error) = delivery.wait(PATIENCE * self.guest.slowness()).await {
            self.guest.fail(format_args!("the agent does not acknowledge an order: {error}"));
        }
    }

    /// Waits for the event of a kind about a plugin, which may have come already; returns its
    /// details.
    pub(crate) async fn event(&mut self, kind: i32, plugin: &str) -> String {
        let patience = PATIENCE * self.guest.slowness();
        let wanted = |event: &guest_agent_lab::AgentEvent| {
            event.event.event_type == kind && event.plugin() == plugin
        };
        match self.control_plane.wait_for_event(RESOURCE, wanted, patience).await {
            Ok(event) => event.details().into_owned(),
            Err(_) => {
                let events = self.events().await;
                let journal = self.journal().await;
                self.guest.fail(format_args!("no event {kind} of {plugin}: {events}\n{journal}"))
            }
        }
    }

    /// All events so far, in words.
    pub(crate) async fn events(&self) -> String {
        let mut said = String::new();
        for event in self.control_plane.events(RESOURCE) {
            let kind = event.kind().as_str_name();
            writeln!(said, "{} {kind} {}", event.plugin(), event.details()).unwrap();
        }
        said
    }

    /// The end of what the agent said in this boot.
    pub(crate) async fn journal(&mut self) -> String {
        self.guest.run("journalctl --boot --unit='guest-agent*' --no-pager --lines=60").await.1
    }

    /// Waits until the agent of this boot, or one after it, is connected.
    pub(crate) async fn connected(&mut self) {
        let patience = PATIENCE * self.guest.slowness();
        if let Err(error) = self.control_plane.gateway().wait_connected(RESOURCE, patience).await {
            let journal = self.journal().await;
            self.guest.fail(format_args!("the agent does not connect: {error}\n{journal}"));
        }
    }

    /// Waits until the agent says of a plugin what is wanted; returns it.
    pub(crate) async fn status(
        &mut self,
        plugin: &str,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        let deadline = std::time::Instant::now() + PATIENCE * self.guest.slowness();
        loop {
            let (code, said) = self.guest.run(&format!("guest-agent status {plugin} --json")).await;
            let status: Value = serde_json::from_str(&said).unwrap_or_default();
            if code == 0 && wanted(&status[0]) {
                return status[0].clone();
            }
            if std::time::Instant::now() > deadline {
                let journal = self.journal().await;
                self.guest.fail(format_args!("{plugin}: not so: {what}: {said}\n{journal}"));
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }

    /// Waits until a plugin runs; returns its pid.
    pub(crate) async fn running(&mut self, plugin: &str) -> u64 {
        let is_running = |status: &Value| status["state"] == "RUNNING" && status["pid"].is_u64();
        self.status(plugin, "it is RUNNING", is_running).await["pid"].as_u64().unwrap()
    }

    /// Removes a plugin.
    pub(crate) async fn remove(&mut self, plugin: &str) {
        self.guest.ok(&format!("guest-agent remove {plugin} --wait")).await;
    }

    /// The folder of the control group of a plugin that runs.
    pub(crate) async fn group(&mut self, plugin: &str) -> String {
        let pid = self.running(plugin).await;
        let said = self.guest.ok(&format!("cat /proc/{pid}/cgroup")).await;
        let group = said.strip_prefix("0::").unwrap_or_else(|| self.guest.fail(&said));
        format!("/sys/fs/cgroup{group}")
    }

    /// A property of the agent's unit.
    pub(crate) async fn property(&mut self, name: &str) -> String {
        self.guest
            .ok(&format!("systemctl show --value --property={name} guest-agent.service"))
            .await
    }
}

/// The same archive at the address that it has for the machine.
fn inside(archive: Archive) -> Archive {
    Archive { url: format!("http://{ARCHIVES}/{}", archive.name), ..archive }
}
