//! What goes to somebody else: everything that helps, and no secret.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::harness::{Bed, orders};

/// Secrets, wherever they may be.
const SECRETS: [&str; 6] = [
    "read-token-of-a-file",
    "admin-token-of-a-file",
    "hunter2-of-a-config",
    "hunter3-of-a-log",
    "hunter4-of-a-url",
    "hunter5-of-a-signed-url",
];

/// The files of a bundle, unpacked.
fn unpack(bundle: &Path) -> BTreeMap<String, String> {
    let dir = tempfile::tempdir().unwrap();
    let unpacked =
        Command::new("tar").arg("-xzf").arg(bundle).arg("-C").arg(dir.path()).status().unwrap();
    assert!(unpacked.success());
    let mut files = BTreeMap::new();
    let mut folders = vec![dir.path().join("guest-agent-support")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(dir.path().join("guest-agent-support")).unwrap();
            let content = std::fs::read_to_string(&path).unwrap();
            files.insert(name.display().to_string(), content);
        }
    }
    files
}

#[tokio::test]
async fn a_support_bundle_has_what_helps_and_no_secret_that_was_planted() {
    let mut bed = Bed::builder().build().await;
    let token = |name: &str, text: &str| {
        use std::os::unix::fs::PermissionsExt;
        let path = bed.dir().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path.display().to_string()
    };
    let (read, admin) = (token("read", SECRETS[0]), token("admin", SECRETS[1]));
    for setting in [
        "api.http_listen=127.0.0.1:0".to_owned(),
        format!("api.http_token_file={read}"),
        format!("api.http_admin_token_file={admin}"),
    ] {
        bed.set(setting);
    }
    bed.start_agent().await;
    let trouble = bed.trouble().await;
    let config =
        format!("level = info\npassword = {}\nurl = pg://me:{}@db/", SECRETS[2], SECRETS[4]);
    let order = orders::install("leaky", "1", &trouble)
        .config(&config)
        .plugin(|it| it.gcs_signed_url = format!("{}?signature={}", it.gcs_signed_url, SECRETS[5]));
    bed.configure(vec![order.order()]).await;
    let before = bed.running("leaky", "1").await;
    bed.ask("leaky", &format!("log api_token: {}", SECRETS[3])).await;
    bed.ask("leaky", &format!("log the token of the agent is {}", SECRETS[1])).await;
    bed.tell("leaky", "exit 3").await;
    bed.running_again("leaky", &before).await;
    bed.expect_events("leaky", &[1, 4, 3, 7, 4]).await;

    let out = bed.dir().join("support.tar.gz");
    let path = out.display().to_string();
    let config = bed.dir().join("agent.toml").display().to_string();
    let settings = [
        format!("api.http_token_file={read}"),
        format!("api.http_admin_token_file={admin}"),
        format!("agent.state_dir={}", bed.dir().join("state").display()),
    ];
    let mut arguments = vec!["support-bundle", "-o", &path, "--config", &config];
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    let said = bed.cli(&arguments).await.ok();
    assert!(said.contains("look through it"), "{said}");
    assert!(std::fs::metadata(&out).unwrap().len() < 50 << 20);
    let files = unpack(&out);
    for (name, content) in &files {
        for secret in SECRETS {
            assert!(!content.contains(secret), "{name} has {secret}: {content}");
        }
    }
    for (name, part) in [
        ("INDEX", "status.json"),
        ("version", env!("CARGO_PKG_VERSION")),
        ("status.json", "\"schema_version\": 1"),
        ("status.txt", "leaky"),
        ("doctor.txt", "checked: "),
        ("doctor.json", "\"findings\""),
        ("explain/leaky.txt", "level = info"),
        ("logs/leaky.log", "api_token: ***"),
        ("events.jsonl", "PLUGIN_CRASHED"),
        ("audit.jsonl", ""),
        ("config.toml", "http_token_file"),
        ("machine/meminfo", "MemTotal"),
        ("machine/mounts", "/proc"),
        ("machine/disk", "%"),
        ("agent/cgroup", ":"),
    ] {
        let content = files.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", files.keys()));
        assert!(content.contains(part), "{name}: {content}");
    }

    // It is written once, and names go on request; without an agent there is one all the same.
    assert_eq!(bed.cli(&arguments).await.code, 1, "it overwrote a file");
    let second = bed.dir().join("redacted.tar.gz").display().to_string();
    arguments[2] = &second;
    arguments.push("--redact");
    bed.cli(&arguments).await.ok();
    for (name, content) in unpack(Path::new(&second)) {
        assert!(!name.contains("leaky") && !content.contains("leaky"), "{name}: {content}");
    }
    bed.kill_agent().await;
    let third = bed.dir().join("silent.tar.gz").display().to_string();
    arguments[2] = &third;
    let partial = bed.cli(&arguments).await;
    assert_eq!(partial.code, 1, "{partial:?}");
    assert!(partial.stderr.contains("without the answers of the agent"), "{partial:?}");
    let files = unpack(Path::new(&third));
    assert!(files["INDEX"].contains("status.json: not there: the agent is not reachable"));
    assert!(files["logs/plugin-1.log"].contains("api_token: ***"), "{files:?}");
    assert!(files["store/MACHINE"].contains("\nmark: "), "{}", files["store/MACHINE"]);
    assert!(files["doctor.txt"].contains("the agent does not answer"), "{}", files["doctor.txt"]);
    bed.finish().await;
}
