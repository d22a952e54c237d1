//! What plugins offer each other, through crashes, upgrades and deaths of the agent.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use guest_agent_plugin::Environment;
use guest_agent_plugin::registry::{Entry, Offer, Registry, RegistryError, Update};
use guest_agent_proto::host;
use guest_agent_proto::host::registry_client::RegistryClient;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixListener;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

use crate::harness::{
    Archive, ArchiveSpec, Bed, PATIENCE, contract, listing, orders, processes, signal,
};

async fn provider(bed: &Bed) -> Archive {
    bed.archive("provider.tar", ArchiveSpec::script_for("registry_provider")).await
}

async fn install_provider(bed: &Bed, revision: &str, greeting: &str) {
    let order = orders::install("provider", revision, &provider(bed).await);
    bed.configure(vec![order.arg(format!("--greeting={greeting}")).order()]).await;
}

async fn install_consumer(bed: &Bed) {
    let archive = bed.archive("consumer.tar", ArchiveSpec::script_for("registry_consumer")).await;
    bed.configure(vec![orders::install("consumer", "1", &archive).order()]).await;
    bed.running("consumer", "1").await;
}

/// A bed in which a provider and a consumer run.
async fn both() -> Bed {
    let bed = Bed::new().await;
    install_provider(&bed, "1", "one").await;
    bed.running("provider", "1").await;
    install_consumer(&bed).await;
    bed
}

/// The registry events that the consumer received so far.
async fn heard(bed: &Bed) -> Vec<String> {
    bed.ask("consumer", "heard").await.results
}

async fn until_heard(bed: &Bed, line: &str) {
    bed.until(&format!("the consumer hears {line:?}"), async || {
        heard(bed).await.iter().any(|heard| heard == line).then_some(())
    })
    .await;
}

async fn until_greeted(bed: &Bed, greeting: &str) {
    bed.until(&format!("the consumer is greeted with {greeting:?}"), async || {
        let answer = bed.ask("consumer", "greet hello").await;
        (answer.results == [greeting]).then_some(())
    })
    .await;
}

/// What is offered, as scripts see it.
async fn listed(bed: &Bed) -> Vec<Value> {
    let text = bed.cli(&["registry", "list", "--json"]).await.ok();
    serde_json::from_str(&text).unwrap()
}

/// What a plugin's process was given to introduce itself with.
fn ticket(bed: &Bed, plugin: &str) -> String {
    let all = processes::all_below(&bed.state_root());
    let of_plugin = all.into_values().find(|it| it["GUEST_AGENT_PLUGIN"] == plugin);
    of_plugin.expect("it runs")["GUEST_AGENT_TICKET"].clone()
}

/// The registry, as a helper process of a plugin sees it.
fn as_plugin(bed: &Bed, ticket: &str) -> Registry {
    let socket = bed.dir().join("run/host.sock");
    let environment = Environment::read(|name| match name {
        Environment::HOST_SOCKET => Some(socket.clone().into()),
        Environment::TICKET => Some(ticket.into()),
        _ => None,
    });
    Registry::of(&environment).unwrap()
}

/// A client of a socket of the agent.
fn raw(bed: &Bed, socket: &str) -> RegistryClient<Channel> {
    let path = bed.dir().join("run").join(socket);
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display())).unwrap();
    // The server may send only little to a client that does not read.
    let endpoint = endpoint.initial_stream_window_size(65_535);
    let endpoint = endpoint.initial_connection_window_size(65_535);
    RegistryClient::new(endpoint.connect_lazy())
}

fn list_request(authorization: Option<&str>) -> Request<host::ListRequest> {
    let mut request = Request::new(host::ListRequest::default());
    if let Some(text) = authorization {
        request.metadata_mut().insert("authorization", text.parse().unwrap());
    }
    request
}

#[tokio::test]
async fn a_consumer_finds_a_provider_follows_its_upgrade_and_is_told_when_it_dies() {
    let bed = both().await;
    until_greeted(&bed, "one").await;
    assert_eq!(bed.ask("consumer", "now hello").await.results, ["one"]);
    let before = &listed(&bed).await[0];
    let wanted = json!(["greeter", "hello", "provider", "one", "provider", true]);
    let fields = ["type", "name", "instance", "version", "plugin", "verified"];
    assert_eq!(Value::from_iter(fields.map(|field| before[field].clone())), wanted);
    assert_eq!(before["options"], json!({"revision": "1"}));

    install_provider(&bed, "2", "two").await;
    let upgraded = bed.running("provider", "2").await;
    until_greeted(&bed, "two").await;
    until_heard(&bed, "ended hello").await;
    until_heard(&bed, "registered hello two").await;
    let after = &listed(&bed).await[0];
    assert!(after["epoch"].as_u64() > before["epoch"].as_u64(), "{after}");

    // Before it has proven itself, a crash would bring the former revision back.
    bed.event(5, "provider", "1").await;
    signal(upgraded.pid.unwrap(), Signal::SIGKILL);
    bed.running_again("provider", &upgraded).await;
    until_greeted(&bed, "two").await;
    let told = heard(&bed).await;
    let tail = ["ended hello", "registered hello two", "ended hello", "registered hello two"];
    assert_eq!(told[told.len() - 4..], tail, "{told:?}");

    bed.configure(vec![orders::remove("provider")]).await;
    bed.gone("provider").await;
    bed.until("nothing is offered", async || listed(&bed).await.is_empty().then_some(())).await;
    let missing = bed.ask("consumer", "now hello").await;
    assert_eq!(missing.code, 1);
    assert!(missing.results[0].contains("no greeter has the name hello"), "{missing:?}");
    bed.finish().await;
}

#[tokio::test]
async fn entries_and_tickets_outlive_the_agent_and_watches_go_on_by_themselves() {
    let mut bed = both().await;
    until_heard(&bed, "snapshot of 1").await;
    let before = listed(&bed).await;
    for death in 0..2 {
        if death == 0 {
            bed.kill_agent().await;
        } else {
            bed.stop_agent().await;
        }
        bed.start_agent().await;
        bed.running("provider", "1").await;
        bed.until("the entry is verified again, by the same life", async || {
            (listed(&bed).await == before).then_some(())
        })
        .await;
        // Until it watches again, a change is part of its snapshot.
        bed.until("the consumer watches again", async || {
            let snapshots = |line: &&String| line.starts_with("snapshot");
            (heard(&bed).await.iter().filter(snapshots).count() >= death + 2).then_some(())
        })
        .await;
    }
    assert!(!heard(&bed).await.iter().any(|line| line.starts_with("ended")), "it never ended");
    // The tickets are still good: one registers, the other receives the event.
    assert_eq!(bed.ask("provider", "offer another 7").await.results, ["done"]);
    until_heard(&bed, "registered another 7").await;
    assert_eq!(bed.ask("consumer", "wait another").await.results, ["provider 7"]);
    let epochs: Vec<_> = listed(&bed).await.iter().map(|entry| entry["epoch"].clone()).collect();
    assert_eq!(epochs, vec![before[0]["epoch"].clone(); 2]);
    assert_eq!(bed.ask("provider", "withdraw another").await.results, ["done"]);
    until_heard(&bed, "withdrawn another").await;
    bed.finish().await;
}

#[tokio::test]
async fn a_provider_that_dies_while_the_agent_is_away_comes_back_as_another() {
    let mut bed = both().await;
    let before = listed(&bed).await;
    let provider = bed.running("provider", "1").await;
    bed.kill_agent().await;
    signal(provider.pid.unwrap(), Signal::SIGKILL);
    bed.start_agent().await;
    bed.running_again("provider", &provider).await;
    until_greeted(&bed, "one").await;
    let after = listed(&bed).await;
    assert_eq!(after.len(), 1);
    assert!(after[0]["epoch"].as_u64() > before[0]["epoch"].as_u64());
    bed.finish().await;
}

#[tokio::test]
async fn a_caller_is_known_by_its_ticket_which_ends_with_its_process() {
    let bed = both().await;
    let mut host = raw(&bed, "host.sock");
    for (shown, code, fix) in [
        (None, Code::Unauthenticated, "GUEST_AGENT_TICKET"),
        (Some("Basic x"), Code::Unauthenticated, "Bearer <ticket>"),
        (Some("Bearer nobody"), Code::PermissionDenied, "current process"),
    ] {
        let refused = host.list(list_request(shown)).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(fix), "{refused}");
    }
    // Each process that has the ticket counts as the plugin, a helper process of it as well.
    let old = ticket(&bed, "provider");
    let shown = format!("Bearer {old}");
    assert_eq!(host.list(list_request(Some(&shown))).await.unwrap().into_inner().entries.len(), 1);
    // The agent's own socket asks for none: only its owner may connect.
    assert!(raw(&bed, "agent.sock").list(list_request(None)).await.is_ok());

    let before = bed.running("provider", "1").await;
    bed.cli(&["restart", "provider"]).await.ok();
    bed.running_again("provider", &before).await;
    let refused = host.list(list_request(Some(&shown))).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");

    let mode =
        |path: &str| std::fs::metadata(bed.dir().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("run/host.sock"), mode("run")), (0o666, 0o755));
    let new = ticket(&bed, "provider");
    for secret in [&old, &new] {
        assert!(!bed.log().contains(secret.as_str()), "the log has a ticket in it");
        assert_eq!(files_with(bed.dir(), secret), Vec::<String>::new());
    }
    bed.finish().await;
}

/// The files below a folder that have a text in them.
fn files_with(folder: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for path in listing(folder) {
        let Ok(kind) = path.symlink_metadata() else { continue };
        if kind.is_dir() {
            found.extend(files_with(&path, text));
        } else if kind.is_file() {
            let bytes = std::fs::read(&path).unwrap_or_default();
            if bytes.windows(text.len()).any(|window| window == text.as_bytes()) {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

#[tokio::test]
async fn a_registration_that_cannot_be_good_is_refused_with_the_fix() {
    let bed = both().await;
    let registry = as_plugin(&bed, &ticket(&bed, "consumer"));
    let socket = bed.dir().join("test.sock");
    let deaf = bed.dir().join("deaf.sock");
    drop(UnixListener::bind(&deaf).unwrap());
    let _listener = UnixListener::bind(&socket).unwrap();
    let at = |name: &str, path: &Path| Offer::new("greeter", name, path);
    let provider = at("hello", &socket).instance("provider");
    let etc = at("n", Path::new("/etc/../x"));
    for (offer, wanted, words) in [
        (at("n", &deaf), Code::FailedPrecondition, "listen on the socket first"),
        (at("n", &bed.dir().join("nothing")), Code::FailedPrecondition, "no process accepts"),
        (at("n", Path::new("x.sock")), Code::InvalidArgument, "absolute"),
        (etc, Code::InvalidArgument, "\"..\""),
        (at("a/b", &socket), Code::InvalidArgument, "letters, digits"),
        (provider, Code::AlreadyExists, "choose another instance"),
        (at("n", &socket).option("k", "v".repeat(9000)), Code::InvalidArgument, "options"),
    ] {
        match registry.register(&offer).await {
            Err(RegistryError::Refused { code, message }) => {
                assert_eq!(code, wanted, "{message}");
                assert!(message.contains(words), "{message}");
            }
            other => bed.fail(format_args!("{offer:?}: {other:?}")),
        }
    }
    let theirs = registry.deregister("greeter", "hello", Some("provider")).await;
    let denied = matches!(&theirs, Err(RegistryError::Refused { code, .. }) if *code == Code::PermissionDenied);
    assert!(denied, "{theirs:?}");
    let unknown = registry.deregister("nothing", "hello", None).await;
    assert!(matches!(unknown, Err(RegistryError::NotFound(_))), "{unknown:?}");
    registry.deregister("greeter", "never", None).await.unwrap();
    // It may have so many and no more, and both plugins are well.
    for number in 0..64 {
        registry.register(&at(&number.to_string(), &socket)).await.unwrap();
    }
    let full = registry.register(&at("more", &socket)).await;
    let exhausted = matches!(&full, Err(RegistryError::Refused { code, .. }) if *code == Code::ResourceExhausted);
    assert!(exhausted, "{full:?}");
    assert_eq!(registry.list("greeter").await.unwrap().len(), 65);
    until_greeted(&bed, "one").await;
    bed.finish().await;
}

#[tokio::test]
async fn a_watcher_that_does_not_read_gets_a_snapshot_and_nobody_waits_for_it() {
    let bed = both().await;
    let shown = ticket(&bed, "consumer");
    let registry = as_plugin(&bed, &shown);
    let mut request = Request::new(host::WatchRequest::default());
    request.metadata_mut().insert("authorization", format!("Bearer {shown}").parse().unwrap());
    let mut slow = raw(&bed, "host.sock").watch(request).await.unwrap().into_inner();
    let socket = bed.dir().join("test.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    let mut newest = None;
    // More than all queues on the way hold together.
    for round in 0..400 {
        let offer = Offer::new("bulk", "b", &socket).version(round.to_string());
        newest = Some(registry.register(&offer.option("k", "v".repeat(4000))).await.unwrap());
    }
    let (mut at, mut snapshots, mut messages, mut last) = (0, 0, 0, String::new());
    while last != "399" {
        let told = tokio::time::timeout(PATIENCE, slow.message()).await.unwrap().unwrap().unwrap();
        messages += 1;
        let entry = match told.told.unwrap() {
            host::watch_response::Told::Snapshot(snapshot) => {
                snapshots += 1;
                assert!(snapshot.sequence >= at);
                at = snapshot.sequence;
                snapshot.entries.into_iter().find(|it| it.offer.as_ref().unwrap().r#type == "bulk")
            }
            host::watch_response::Told::Change(change) => {
                assert_eq!(change.sequence, at + 1, "a silent gap");
                at = change.sequence;
                change.entry
            }
        };
        if let Some(offer) = entry.and_then(|entry| entry.offer) {
            last = offer.version;
        }
    }
    assert!(snapshots >= 2 && messages < 400, "{snapshots} snapshots in {messages} messages");
    assert_eq!(newest.unwrap().version, "399");
    bed.finish().await;
}

#[tokio::test]
async fn a_hundred_watchers_know_the_same_after_a_crash_an_upgrade_and_a_dead_agent() {
    let mut bed = both().await;
    let registry = as_plugin(&bed, &ticket(&bed, "consumer"));
    let (sender, mut knowing) = tokio::sync::watch::channel(vec![Vec::<Entry>::new(); 100]);
    let watchers: Vec<_> = (0..100)
        .map(|number| {
            // Some on connections of their own, most sharing one.
            let registry = match number % 10 {
                0 => as_plugin(&bed, &ticket(&bed, "consumer")),
                _ => registry.clone(),
            };
            let sender = sender.clone();
            tokio::spawn(async move {
                let mut watch = registry.watch(Some("greeter"), None);
                loop {
                    let update = watch.next().await.expect("it is never refused");
                    if let Update::Deregistered(entry, _) = &update {
                        let same = |known: &Entry| {
                            (&known.name, known.epoch) == (&entry.name, entry.epoch)
                        };
                        assert!(!watch.known().iter().any(same), "it is gone and known");
                    }
                    let known = watch.known().to_vec();
                    sender.send_modify(|all| all[number] = known);
                }
            })
        })
        .collect();
    let mut all_know = async |what: &str, wanted: &dyn Fn(&[Entry]) -> bool| {
        let all = knowing.wait_for(|all| {
            all.iter().all(|known| wanted(known)) && all.iter().all(|known| *known == all[0])
        });
        let waited = tokio::time::timeout(PATIENCE, all).await;
        assert!(waited.is_ok(), "not all of them know: {what}");
    };
    let names = |known: &[Entry], wanted: &[&str]| {
        known.iter().map(|entry| entry.name.as_str()).eq(wanted.iter().copied())
            && known.iter().all(|entry| entry.verified)
    };
    all_know("what there was", &|known| names(known, &["hello"])).await;
    for number in 0..10 {
        bed.ask("provider", &format!("offer n{number}")).await;
    }
    all_know("eleven names", &|known| known.len() == 11).await;
    let before = bed.running("provider", "1").await;
    signal(before.pid.unwrap(), Signal::SIGKILL);
    bed.running_again("provider", &before).await;
    all_know("one after the crash", &|known| names(known, &["hello"])).await;
    bed.kill_agent().await;
    bed.start_agent().await;
    bed.running("provider", "1").await;
    bed.ask("provider", "offer after").await;
    all_know("two after the agent's death", &|known| names(known, &["after", "hello"])).await;
    install_provider(&bed, "2", "two").await;
    bed.running("provider", "2").await;
    all_know("the upgrade", &|known| names(known, &["hello"]) && known[0].version == "two").await;
    for watcher in watchers {
        assert!(!watcher.is_finished(), "a watcher ended");
        watcher.abort();
    }
    bed.finish().await;
}

#[tokio::test]
async fn the_command_line_lists_gets_waits_and_watches() {
    let mut bed = Bed::new().await;
    assert_eq!(bed.cli(&["registry", "list"]).await.ok(), "nothing is offered\n");
    assert_eq!(bed.cli(&["registry", "get", "hello"]).await.code, 1);
    let late = bed.cli(&["registry", "wait", "hello", "--timeout", "50ms"]).await;
    assert_eq!(late.code, 4, "{}", late.stderr);
    let waiting = bed.cli(&["registry", "wait", "hello", "--type", "greeter", "--json"]);
    let offering = async {
        install_provider(&bed, "1", "one").await;
        bed.running("provider", "1").await;
    };
    let (waited, ()) = tokio::join!(waiting, offering);
    let waited: Value = serde_json::from_str(&waited.ok()).unwrap();
    assert_eq!((&waited["version"], &waited["verified"]), (&json!("one"), &json!(true)));
    let got = bed.cli(&["registry", "get", "hello", "--json"]).await.ok();
    assert_eq!(serde_json::from_str::<Value>(&got).unwrap(), waited);
    let text = bed.cli(&["registry", "list", "--type", "greeter"]).await.ok();
    assert!(text.lines().count() == 2 && text.contains("greet.sock"), "{text}");
    assert_eq!(bed.cli(&["registry", "list", "other"]).await.ok(), "nothing is offered\n");
    assert_eq!(bed.cli(&["registry", "list", "--type", "a/b"]).await.code, 2);

    let mut watching = tokio::process::Command::new(env!("CARGO_BIN_EXE_guest-agent"))
        .args(["registry", "watch", "--type", "greeter", "--json"])
        .env("GUEST_AGENT_SOCKET", bed.socket())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut watched = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut lines: Vec<Value> = Vec::new();
    while let Some(line) = watched.next_line().await.unwrap() {
        contract::check(&["registry", "watch", "--json"], &line);
        lines.push(serde_json::from_str(&line).unwrap());
        if lines.len() == 1 {
            // From here on every change is a line, until the agent ends.
            bed.ask("provider", "offer other 3").await;
            bed.ask("provider", "withdraw other").await;
        } else if lines.len() == 3 {
            signal(bed.agent_pid(), Signal::SIGTERM);
        }
    }
    assert_eq!(watching.wait().await.unwrap().code(), Some(3));
    assert_eq!(
        lines.iter().map(|line| &line["event"]).collect::<Vec<_>>(),
        ["snapshot", "registered", "deregistered"]
    );
    let last = lines.last().unwrap();
    assert_eq!((&last["reason"], &last["entry"]["name"]), (&json!("asked"), &json!("other")));
    while bed.agent_ended().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bed.start_agent().await;
    bed.finish().await;
}
