//! An operator without the ledger: the verbs of `guest-fleet` over the API of `guest-fleet serve`, behind TLS, with the
//! rights of a token.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use tokio::process::Command;
use tokio::time::timeout;

use crate::console::Served;
use crate::{PATIENCE, fleet_program};

const DECLARED: &str = r#"
[[release]]
plugin = "monitor"
revision = "1.0"
entry_point = "bin/monitor"
archives = { amd64 = { sha256 = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" } }

[[assignment]]
name = "monitor-prod"
plugin = "monitor"
revision = "1.0"
select = "env = prod"
"#;

/// A control plane, and what the machine of the operator has.
struct World {
    served: Served,
    files: tempfile::TempDir,
}

fn write(path: &Path, text: &str, mode: u32) -> PathBuf {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    path.to_owned()
}

// === impl World ===

impl World {
    async fn start() -> Self {
        let files = tempfile::tempdir().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let ca = write(&files.path().join("ca.pem"), &certificate.pem(), 0o644);
        let key = write(&files.path().join("key.pem"), &key.serialize_pem(), 0o600);
        let [ca, key] = [&ca, &key].map(|path| path.to_str().unwrap());
        let options = ["--api-listen", "127.0.0.1:0", "--api-tls-cert", ca, "--api-tls-key", key];
        Self { served: Served::with(&options).await, files }
    }

    async fn run(&self, arguments: &[&str], environment: &[(&str, &Path)]) -> Output {
        let mut command = Command::new(fleet_program::path());
        command.env_clear().envs(environment.iter().copied()).args(arguments);
        command.stdin(Stdio::null()).kill_on_drop(true);
        timeout(PATIENCE, command.output()).await.expect("it ends").unwrap()
    }

    fn ledger(&self) -> PathBuf {
        self.served.folder.path().join("fleet.db")
    }

    /// Runs a verb on the machine of the ledger.
    async fn here(&self, arguments: &[&str]) -> Output {
        let ledger = self.ledger();
        self.run(arguments, &[("GUEST_FLEET_LEDGER", &ledger)]).await
    }

    /// Runs a verb on another machine.
    async fn there(&self, arguments: &[&str]) -> Output {
        let folder = self.files.path();
        let environment = [
            ("GUEST_FLEET_SERVER", Path::new(&self.served.at)),
            ("GUEST_FLEET_TOKEN_FILE", &folder.join("token")),
            ("GUEST_FLEET_SERVER_CA", &folder.join("ca.pem")),
        ];
        self.run(arguments, &environment).await
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn an_operator_declares_and_looks_from_another_machine_until_the_token_is_revoked() {
    let world = World::start().await;
    let made = world.here(&["access", "token", "create", "laptop", "--role", "operator"]).await;
    let token = write(&world.files.path().join("token"), &text(&made.stdout), 0o600);

    let file = world.files.path().join("all.toml");
    write(&file, DECLARED, 0o644);
    let apply = ["apply", "-f", file.to_str().unwrap(), "--reason", "TICKET-1"];
    // The server learns of a token within seconds.
    let applied = async {
        loop {
            let applied = world.there(&apply).await;
            if applied.status.success() {
                return text(&applied.stdout);
            }
            assert!(text(&applied.stderr).contains("the token is unknown"), "{applied:?}");
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    };
    let applied = timeout(PATIENCE, applied).await.expect("it is known");
    assert!(applied.contains("2 changes"), "{applied}");
    for verb in [&["releases"][..], &["assignments"], &["assignments", "--json"], &["holds"]] {
        let (here, there) = (world.here(verb).await, world.there(verb).await);
        assert!(there.status.success(), "{there:?}");
        assert_eq!(text(&here.stdout).lines().count(), text(&there.stdout).lines().count());
    }
    let audit = text(&world.there(&["audit"]).await.stdout);
    assert!(audit.contains("token/laptop") && audit.contains("TICKET-1"), "{audit}");

    let denied = world.there(&["token", "list"]).await;
    assert_eq!(denied.status.code(), Some(1), "{denied:?}");
    assert!(text(&denied.stderr).contains("takes the role admin"), "{denied:?}");
    let refused = world.there(&["export"]).await;
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    // The command line counts more than the environment.
    let ledger = world.ledger();
    let exported = world.there(&["export", "--ledger", ledger.to_str().unwrap()]).await;
    assert!(exported.status.success(), "{exported:?}");

    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o644)).unwrap();
    let open = world.there(&["status"]).await;
    assert_eq!(open.status.code(), Some(1), "{open:?}");
    assert!(text(&open.stderr).contains("chmod 600"), "{open:?}");
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).unwrap();

    assert!(world.here(&["access", "token", "revoke", "laptop"]).await.status.success());
    let revoked = async {
        loop {
            let asked = world.there(&["status"]).await;
            if !asked.status.success() {
                return text(&asked.stderr);
            }
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    };
    let revoked = timeout(PATIENCE, revoked).await.expect("it is known");
    assert!(revoked.contains("was revoked"), "{revoked}");
}
