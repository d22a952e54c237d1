//! What `examples/adoption` does to a machine: the real programs enrol at a real control plane, through cloud-init's files
//! and commands, through Ansible, and through the user data that Terraform makes.
//!
//! A folder takes the place of `/`. What would change this machine (`dpkg`, `systemctl`) is a script that notes its call.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::process::Command;
use tokio::time::timeout;

use crate::PATIENCE;
use crate::plane::{GATEWAY, Plane};

/// The commands of the examples, and what they are in the place of.
const STUBS: [(&str, &str); 3] = [
    // Installing is what makes the program appear.
    ("dpkg", "cp -P \"$0.content\" \"$(dirname \"$0\")/guest-agent\""),
    ("systemctl", ":"),
    ("sleep", ":"),
];

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/adoption")
}

/// What `tests/adoption/get-tools` got.
fn tools() -> PathBuf {
    let agent = Path::new(env!("CARGO_BIN_EXE_guest-agent"));
    agent.ancestors().nth(2).unwrap().join("adoption")
}

/// A program of the environment for Python; prints a line where it is not there.
fn python_tool(name: &str, what_for: &str) -> Option<PathBuf> {
    let program = tools().join("python/bin").join(name);
    let is_here = program.is_file();
    if !is_here {
        println!("SKIPPED: {what_for}: no {name} here; tests/adoption/get-tools gets it");
    }
    is_here.then_some(program)
}

async fn run(mut command: Command) -> (bool, String) {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output: Output = timeout(PATIENCE, command.output()).await.expect("it ends").unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

// === The machine ===

/// A folder in the place of a machine's `/`.
struct Machine {
    root: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let root = tempfile::Builder::new().prefix("gm-").tempdir_in("/tmp").unwrap();
        let machine = Self { root };
        std::fs::create_dir_all(machine.path("etc/guest-agent/conf.d")).unwrap();
        std::fs::create_dir_all(machine.path("bin")).unwrap();
        let at = |name: &str| machine.path(name).display().to_string();
        let config = format!(
            "[agent]\nstate_dir = \"{}\"\nruntime_dir = \"{}\"\nlog_dir = \"{}\"\nlocal_plugin_dir = \"{}\"\n",
            at("state"),
            at("run/agent"),
            at("log"),
            at("local")
        );
        std::fs::write(machine.path("etc/guest-agent/guest-agent.toml"), config).unwrap();
        for (name, does) in STUBS {
            let calls = at("calls");
            let script = format!("#!/bin/sh\necho \"{name} $*\" >>{calls}\n{does}\n");
            machine.program(name, &script);
        }
        symlink(env!("CARGO_BIN_EXE_guest-agent"), machine.path("bin/dpkg.content")).unwrap();
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.path("bin").join(name);
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// What was called, without pauses.
    fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("calls")).unwrap_or_default();
        let calls = text.lines().filter(|line| !line.starts_with("sleep"));
        let root = self.root.path().display().to_string();
        calls.map(|line| line.replace(&root, "")).collect()
    }

    fn written(&self) -> Option<String> {
        std::fs::read_to_string(self.path("etc/guest-agent/conf.d/60-fleet.toml")).ok()
    }

    /// Writes the files of user data and runs its commands, as cloud-init does.
    async fn boot(&self, python: &Path, user_data: &str) -> (bool, String) {
        std::fs::write(self.path("user-data"), user_data).unwrap();
        let mut command = Command::new(python);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/adoption/cloud_init.py"));
        command.arg(self.path("user-data")).arg(self.root.path());
        let schema = tools().join("cloud-config.json");
        if schema.is_file() {
            command.arg(schema);
        } else {
            println!("SKIPPED: the schema of cloud-init; tests/adoption/get-tools gets it");
        }
        let (is_done, said) = run(command).await;
        assert!(is_done, "{said}");
        let token = self.path("run/guest-agent-adopt/token");
        let mode = std::fs::metadata(token).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "the token is for root alone");
        let commands: Vec<Vec<String>> = serde_json::from_str(&said).unwrap();
        let mut told = String::new();
        for words in commands {
            let mut command = Command::new(&words[0]);
            command.args(&words[1..]);
            command.env("PATH", format!("{}:/usr/bin:/bin", self.path("bin").display()));
            let (is_done, said) = run(command).await;
            told.push_str(&said);
            if !is_done {
                return (false, told);
            }
        }
        (true, told)
    }

    /// A package that is only a name and some bytes; its URL and its digest.
    fn package(&self) -> (String, String) {
        let path = self.path("guest-agent_0.1.0-1_amd64.deb");
        std::fs::write(&path, "a package").unwrap();
        let digest = Sha256::digest("a package").iter().map(|byte| format!("{byte:02x}")).collect();
        (format!("file://{}", path.display()), digest)
    }
}

/// User data with these values.
fn user_data(values: &BTreeMap<&str, &str>) -> String {
    let path = examples().join("terraform/user-data.yaml.tftpl");
    let template = std::fs::read_to_string(path).unwrap();
    let filled = values
        .iter()
        .fold(template, |text, (name, value)| text.replace(&format!("${{{name}}}"), value));
    assert!(!filled.contains("${") && !filled.contains("%{"), "a value is missing: {filled}");
    filled
}

const CAT: &str = "\"cat /run/guest-agent-adopt/token\"";

// === cloud-init ===

#[tokio::test]
async fn cloud_init_installs_the_package_and_enrols_once() {
    let Some(python) = python_tool("python", "cloud-init's user data is not carried out") else {
        return;
    };
    let fleet = Plane::start(&[]).await;
    let token = fleet.token("web").await;
    let machine = Machine::new();
    let (url, digest) = machine.package();
    let values = BTreeMap::from([
        ("package_url", &*url),
        ("package_sha256", &*digest),
        ("server", fleet.at("enrolment")),
        ("ca_sha256", &*fleet.fingerprint),
        ("token", &*token),
        ("get_token", CAT),
    ]);
    let text = user_data(&values);
    let (is_done, said) = machine.boot(&python, &text).await;
    assert!(is_done, "{said}");
    let installed = "dpkg --install /run/guest-agent-adopt/guest-agent_0.1.0-1_amd64.deb";
    assert_eq!(machine.calls(), [installed, "systemctl restart guest-agent"], "{said}");
    let written = machine.written().expect("it is enrolled");
    assert!(written.contains(GATEWAY) && written.contains("mtls"), "{written}");
    assert_eq!(fleet.agents().await, 1);
    let secret = token.split_once('.').unwrap().1;
    assert!(!said.contains(secret), "the token is in the log: {said}");
    let left = std::fs::read_dir(machine.path("run/guest-agent-adopt")).unwrap();
    let left: Vec<_> = left.map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left, ["adopt"], "neither the token nor the package is left");

    // Again, as after a clone of the user data or by hand: nothing is done.
    let (is_done, said) = machine.boot(&python, &text).await;
    assert!(is_done, "{said}");
    assert_eq!((machine.calls().len(), fleet.agents().await), (2, 1), "{said}");
    assert_eq!(machine.written().expect("it is there"), written);
    assert!(!machine.path("run/guest-agent-adopt/token").exists());
}

#[tokio::test]
async fn a_store_of_secrets_gives_the_token_and_user_data_has_none() {
    let Some(python) = python_tool("python", "cloud-init's user data is not carried out") else {
        return;
    };
    let fleet = Plane::start(&[]).await;
    let token = fleet.token("web").await;
    let machine = Machine::new();
    symlink(env!("CARGO_BIN_EXE_guest-agent"), machine.path("bin/guest-agent")).unwrap();
    machine.program("store", &format!("#!/bin/sh\n[ \"$1\" = join-token ] && echo {token}\n"));
    let values = BTreeMap::from([
        ("package_url", "https://packages.example/x.deb"),
        ("package_sha256", "00"),
        ("server", fleet.at("enrolment")),
        ("ca_sha256", &*fleet.fingerprint),
        ("token", ""),
        ("get_token", "\"store join-token\""),
    ]);
    let (is_done, said) = machine.boot(&python, &user_data(&values)).await;
    assert!(is_done && machine.written().is_some(), "{said}");
    assert_eq!(machine.calls(), ["systemctl restart guest-agent"], "the program is in the image");
    assert_eq!(fleet.agents().await, 1);
}

#[tokio::test]
async fn a_wrong_package_is_not_installed_and_a_wrong_token_says_so() {
    let Some(python) = python_tool("python", "cloud-init's user data is not carried out") else {
        return;
    };
    let fleet = Plane::start(&[]).await;
    let machine = Machine::new();
    let (url, digest) = machine.package();
    let mut values = BTreeMap::from([
        ("package_url", &*url),
        ("package_sha256", &*fleet.fingerprint),
        ("server", fleet.at("enrolment")),
        ("ca_sha256", &*fleet.fingerprint),
        ("token", "web.nobodymadethis"),
        ("get_token", CAT),
    ]);
    let (is_done, said) = machine.boot(&python, &user_data(&values)).await;
    assert!(!is_done && said.contains("FAILED"), "{said}");
    assert_eq!(machine.calls(), [""; 0], "{said}");

    values.insert("package_sha256", &*digest);
    let (is_done, said) = machine.boot(&python, &user_data(&values)).await;
    assert!(!is_done && said.contains("the machine is not enrolled; once"), "{said}");
    assert_eq!(machine.calls().len(), 1, "nothing is restarted: {said}");
    assert!(machine.written().is_none() && !said.contains("nobodymadethis"), "{said}");
    assert_eq!(fleet.agents().await, 0);
    assert!(machine.path("run/guest-agent-adopt/token").exists(), "it can be tried again by hand");
}

// === Terraform ===

/// The values of `cloud-init/user-data.yaml`.
const SHOWN: [(&str, &str); 6] = [
    ("server", "https://fleet.example:7444"),
    ("ca_sha256", "6d72f8a4159134b598639966a8d526786f6035ef28677fb341dae84fdbc8f9b5"),
    ("package_url", "https://packages.example/guest-agent_0.1.0-1_amd64.deb"),
    ("package_sha256", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"),
    ("token", "web.REPLACE"),
    ("get_token", CAT),
];

#[test]
fn the_snippet_for_cloud_init_is_what_terraform_makes() {
    let shown = std::fs::read_to_string(examples().join("cloud-init/user-data.yaml")).unwrap();
    let made = user_data(&BTreeMap::from(SHOWN));
    assert!(made == shown, "cloud-init/user-data.yaml is not what the template makes:\n{made}");
}

#[tokio::test]
async fn terraform_makes_the_user_data() {
    let program = ["tofu", "terraform"].into_iter().find(|name| {
        let found = std::process::Command::new(name).arg("version").output();
        found.is_ok_and(|output| output.status.success())
    });
    let Some(program) = program else {
        println!("SKIPPED: the example for Terraform: neither tofu nor terraform is here");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(examples().join("terraform")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
    }
    let terraform = async |arguments: &[&str], token: &[(&str, &str)]| {
        let mut command = Command::new(program);
        command.current_dir(folder.path()).args(arguments);
        command.env("TF_IN_AUTOMATION", "1").env("CHECKPOINT_DISABLE", "1");
        let values = SHOWN.iter().filter(|(name, _)| !["token", "get_token"].contains(name));
        for (name, value) in values.chain(token) {
            command.env(format!("TF_VAR_{name}"), value);
        }
        // What it says of itself goes to standard error.
        command.stderr(Stdio::piped()).stdin(Stdio::null()).kill_on_drop(true);
        let output = timeout(PATIENCE, command.output()).await.expect("it ends").unwrap();
        let out = String::from_utf8(output.stdout).unwrap();
        (output.status.success(), out, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // No provider is needed, so nothing is fetched.
    let init = ["init", "-input=false", "-no-color"];
    let apply = ["apply", "-auto-approve", "-input=false", "-no-color"];
    let (is_done, out, err) = terraform(&init, &[]).await;
    assert!(is_done, "{out}{err}");
    let (is_done, out, err) = terraform(&["fmt", "-check", "-recursive"], &[]).await;
    assert!(is_done, "{out}{err}");

    let token = [("token", "web.REPLACE")];
    let (is_done, out, err) = terraform(&apply, &token).await;
    assert!(is_done, "{out}{err}");
    assert!(!out.contains("web.REPLACE") && !err.contains("web.REPLACE"), "{out}{err}");
    let (_, made, err) = terraform(&["output", "-raw", "user_data"], &token).await;
    let shown = std::fs::read_to_string(examples().join("cloud-init/user-data.yaml")).unwrap();
    assert_eq!(made, shown, "{err}");

    // With a command, the token is neither in the state nor in the user data; any command stays what it is.
    let command = [("token_command", "store get 'join token' \"x\" | tr -d '\\n' && true")];
    let (is_done, out, err) = terraform(&apply, &command).await;
    assert!(is_done, "{out}{err}");
    let (_, made, err) = terraform(&["output", "-raw", "user_data"], &command).await;
    assert!(made.contains("content: \"\"") && !made.contains("REPLACE"), "{made}{err}");
    if let Some(python) = python_tool("python", "the user data of Terraform is not read") {
        let machine = Machine::new();
        std::fs::write(machine.path("user-data"), &made).unwrap();
        let mut write = Command::new(python);
        write.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/adoption/cloud_init.py"));
        write.arg(machine.path("user-data")).arg(machine.root.path());
        let (is_done, said) = run(write).await;
        assert!(is_done, "{said}");
        let written = machine.path("run/guest-agent-adopt/get-token");
        assert_eq!(std::fs::read_to_string(written).unwrap(), command[0].1);
    }

    for wrong in [&[][..], &[token[0], command[0]], &[("token", "a'b"), ("x", "")]] {
        let (is_done, out, err) = terraform(&apply, wrong).await;
        assert!(!is_done && err.contains("Error:"), "{wrong:?}: {out}{err}");
    }
}

#[tokio::test]
async fn the_files_for_terraform_are_hcl() {
    let Some(python) = python_tool("python", "the files for Terraform are not parsed") else {
        return;
    };
    let mut command = Command::new(python);
    let script =
        "import hcl2, sys\nfor path in sys.argv[1:]:\n  with open(path) as file: hcl2.load(file)";
    command.args(["-c", script]);
    for file in ["main.tf", "variables.tf", "outputs.tf", "example/main.tf"] {
        command.arg(examples().join("terraform").join(file));
    }
    let (is_done, said) = run(command).await;
    assert!(is_done, "{said}");
}

// === Ansible ===

/// Runs the playbook on this machine; says how many tasks changed something.
async fn play(machine: &Machine, fleet: &Plane, token: &str, more: &[&str]) -> (bool, String) {
    let mut command = Command::new(tools().join("python/bin/ansible-playbook"));
    let folder = examples().join("ansible");
    command.current_dir(&folder).args(["-i", "guest_agents,", "-vvv", "site.yml"]).args(more);
    let values = json!({
        "ansible_connection": "local",
        "ansible_become": false,
        "ansible_python_interpreter": tools().join("python/bin/python"),
        "guest_agent_server": fleet.at("enrolment"),
        "guest_agent_ca_sha256": fleet.fingerprint,
        "guest_agent_manage_package": false,
        "guest_agent_manage_service": false,
        "guest_agent_program": env!("CARGO_BIN_EXE_guest-agent"),
        "guest_agent_config": machine.path("etc/guest-agent/guest-agent.toml"),
        "guest_agent_id": "web-1",
        "guest_agent_tries": 2,
        "guest_agent_pause": 1,
    });
    let file = machine.path("values.json");
    std::fs::write(&file, values.to_string()).unwrap();
    command.arg("--extra-vars").arg(format!("@{}", file.display()));
    let secret = machine.path("token.json");
    std::fs::write(&secret, json!({ "guest_agent_token": token }).to_string()).unwrap();
    command.arg("--extra-vars").arg(format!("@{}", secret.display()));
    command.env("ANSIBLE_HOME", machine.path("ansible")).env("HOME", machine.root.path());
    command.env("ANSIBLE_NOCOLOR", "1").env("LC_ALL", "C.UTF-8");
    // A group of that name is in the playbook.
    command.env("ANSIBLE_INVENTORY_UNPARSED_WARNING", "False");
    run(command).await
}

#[tokio::test]
async fn ansible_enrols_once_and_tells_nobody_the_token() {
    if python_tool("ansible-playbook", "the role for Ansible is not carried out").is_none() {
        return;
    }
    let fleet = Plane::start(&[]).await;
    let (token, machine) = (fleet.token("web").await, Machine::new());
    let secret = token.split_once('.').unwrap().1;
    let (is_done, said) = play(&machine, &fleet, &token, &["--check"]).await;
    assert!(is_done && machine.written().is_none(), "a check changes nothing: {said}");
    assert_eq!(fleet.agents().await, 0);

    let (is_done, said) = play(&machine, &fleet, "", &[]).await;
    assert!(!is_done && machine.written().is_none(), "there is no token: {said}");
    let (is_done, said) = play(&machine, &fleet, "web.nobodymadethis", &[]).await;
    assert!(!is_done && said.contains("the server refused: the join token"), "it says why: {said}");
    assert!(!said.contains("nobodymadethis"), "{said}");

    let (is_done, said) = play(&machine, &fleet, &token, &[]).await;
    assert!(is_done && !said.contains("changed=0"), "{said}");
    assert!(!said.contains(secret), "the token is in the log: {said}");
    let written = machine.written().expect("it is enrolled");
    assert!(written.contains("web-1") && written.contains(GATEWAY), "{written}");
    assert_eq!(fleet.agents().await, 1);

    // Again, and without a token: nothing changes.
    let (is_done, said) = play(&machine, &fleet, "", &[]).await;
    assert!(is_done && said.contains("changed=0"), "{said}");
    assert_eq!(machine.written().expect("it is there"), written);
}

#[tokio::test]
async fn the_role_passes_ansible_lint_and_the_whole_play_its_syntax_check() {
    let Some(lint) = python_tool("ansible-lint", "the role for Ansible is not checked") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .arg(examples().join("ansible"))
        .arg(folder.path())
        .status();
    assert!(copied.unwrap().success());
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", tools().join("python/bin").display());
    let check = |program: PathBuf, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.current_dir(folder.path().join("ansible")).args(arguments);
        command.env("PATH", &path).env("HOME", folder.path()).env("LC_ALL", "C.UTF-8");
        command.env("ANSIBLE_HOME", folder.path().join("home")).env("NO_COLOR", "1");
        command
    };
    let (is_done, said) =
        run(check(lint, &["--offline", "--profile", "production", "site.yml", "roles"])).await;
    assert!(is_done, "{said}");
    let playbook = tools().join("python/bin/ansible-playbook");
    let arguments = ["-i", "inventory.example.yml", "--syntax-check", "site.yml"];
    let (is_done, said) = run(check(playbook, &arguments)).await;
    assert!(is_done, "{said}");
}
