//! Where plugins listen: each on a socket of its own, and those of an earlier agent where it put
//! them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use guest_agent::store::{self, StateLock};
use guest_agent_actors::model::id::Endpoint;
use guest_agent_actors::plugin::snapshot::Snapshot;
use guest_agent_actors::plugin::state::Phase;
use guest_agent_actors::ports::{Durability, Storage, Table, Write};
use guest_agent_proto::plugin_comm::StartRequest;
use guest_agent_proto::plugin_comm::guest_agent_plugin_client::GuestAgentPluginClient;
use guest_agent_proto::plugin_comm::start_request::{Config, ServiceConfig};
use nix::sys::signal::Signal;

use crate::harness::observe::dial;
use crate::harness::processes::{field_after_name, is_alive};
use crate::harness::{Bed, orders, signal};

/// What a process was started with, as `/proc` has it.
fn items(pid: u32, file: &str) -> Vec<OsString> {
    let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
    let items = bytes.split(|byte| *byte == 0).filter(|item| !item.is_empty());
    items.map(|item| OsString::from_vec(item.to_vec())).collect()
}

/// Starts what this process is once more, with another address, as an earlier agent would have.
fn with_address(pid: u32, address: &Path) -> Child {
    let arguments = items(pid, "cmdline");
    let mut command = Command::new(&arguments[0]);
    command.env_clear().current_dir(format!("/proc/{pid}/cwd")).stdin(Stdio::null());
    for argument in &arguments[1..] {
        if argument.to_string_lossy().starts_with("--address=") {
            command.arg(format!("--address={}", address.display()));
        } else {
            command.arg(argument);
        }
    }
    for variable in items(pid, "environ") {
        let text = variable.into_string().unwrap();
        let (key, value) = text.split_once('=').unwrap();
        command.env(key, value);
    }
    command.process_group(0).spawn().unwrap()
}

/// Has the record of a running plugin name another process at another address. The agent must not
/// run.
async fn record(bed: &Bed, plugin: &str, pid: u32, address: &Path) {
    let lock = StateLock::acquire(&bed.dir().join("state")).unwrap();
    let opened = store::open(&lock, &bed.state_root().join("store")).await.unwrap();
    let plugins = opened.storage.load(Table::Plugins).await.unwrap();
    let (key, value) = plugins.into_iter().find(|(key, _)| key == plugin.as_bytes()).unwrap();
    let mut snapshot = Snapshot::decode(&value).unwrap();
    let Phase::Running { process, endpoint, .. } = &mut snapshot.state.phase else {
        panic!("{plugin} does not run: {:?}", snapshot.state.phase)
    };
    process.pid = pid;
    // Field 22, counted from the one after the name.
    process.start_ticks = field_after_name(pid, 19).unwrap().parse().unwrap();
    *endpoint = Endpoint::unix(address.to_str().unwrap());
    let put = Write::Put { table: Table::Plugins, key, value: snapshot.encode() };
    opened.storage.commit(vec![put], Durability::Durable).await.unwrap();
    opened.storage.close().await.unwrap();
}

async fn start(bed: &Bed, address: &Path, config: &str) {
    let channel =
        bed.until("the process listens", async || dial(address.to_owned()).await.ok()).await;
    let request = StartRequest {
        config: Some(Config {
            state_directory_path: bed.plugin_state("q_b").display().to_string(),
        }),
        service_config: Some(ServiceConfig::StringConfig(config.to_owned())),
    };
    GuestAgentPluginClient::new(channel).start(request).await.unwrap();
}

#[tokio::test]
async fn two_plugins_of_one_message_never_share_a_socket() {
    let bed = Bed::new().await;
    let trouble = bed.trouble().await;
    for round in 0..3 {
        let (one, other) = (format!("of q_b {round}"), format!("of q {round}"));
        bed.configure(vec![
            orders::install("q_b", "c", &trouble).config(&one).order(),
            orders::install("q", "b_c", &trouble).config(&other).order(),
        ])
        .await;
        let statuses = [bed.running("q_b", "c").await, bed.running("q", "b_c").await];
        assert_ne!(statuses[0].address, statuses[1].address);
        assert_eq!(bed.ask("q_b", "config").await.results, [one]);
        assert_eq!(bed.ask("q", "config").await.results, [other]);
        for (plugin, status) in ["q_b", "q"].iter().zip(&statuses) {
            let pid = status.pid.unwrap().to_string();
            assert_eq!(bed.ask(plugin, "pid").await.results, [pid]);
        }
        bed.configure(vec![orders::remove("q_b"), orders::remove("q")]).await;
        bed.gone("q_b").await;
        bed.gone("q").await;
    }
    bed.finish().await;
}

#[tokio::test]
async fn a_plugin_of_an_earlier_agent_keeps_its_socket_and_no_other_plugin_gets_it() {
    let mut bed = Bed::new().await;
    let trouble = bed.trouble().await;
    bed.configure(vec![orders::install("q_b", "c", &trouble).config("mine").order()]).await;
    let before = bed.running("q_b", "c").await;
    bed.kill_agent().await;
    // What agents did before: every socket was `<name>_<revision>.sock`.
    let earlier = bed.dir().join("run/plugins/q_b_c.sock");
    assert_ne!(before.address, format!("unix:{}", earlier.display()));
    let former = before.pid.unwrap();
    let mut process = with_address(former, &earlier);
    signal(former, Signal::SIGKILL);
    bed.until("the former process is dead", async || (!is_alive(former)).then_some(())).await;
    start(&bed, &earlier, "mine").await;
    record(&bed, "q_b", process.id(), &earlier).await;

    bed.start_agent().await;
    let adopted = bed.running("q_b", "c").await;
    assert_eq!((adopted.pid, adopted.restarts), (Some(process.id()), 0));
    assert_eq!(adopted.address, format!("unix:{}", earlier.display()));
    assert_eq!(bed.ask("q_b", "config").await.results, ["mine"]);
    // This one's socket would have that name.
    bed.configure(vec![orders::install("q", "b_c", &trouble).config("other").order()]).await;
    let other = bed.running("q", "b_c").await;
    assert_ne!(other.address, adopted.address);
    assert_eq!(bed.ask("q", "config").await.results, ["other"]);
    assert_eq!(bed.ask("q_b", "config").await.results, ["mine"]);
    // The next process of the adopted plugin has an address of today.
    bed.configure(vec![orders::remove("q")]).await;
    bed.gone("q").await;
    signal(process.id(), Signal::SIGKILL);
    process.wait().unwrap();
    let again = bed.running_again("q_b", &adopted).await;
    assert_eq!(again.address, before.address);
    bed.until("the former socket is gone", async || (!earlier.exists()).then_some(())).await;
    bed.finish().await;
}
