//! Which sockets processes get, and which they keep that an earlier agent launched.

use super::*;
use crate::net::socket;

/// A process of a revision that an earlier agent launched with this address. Returns its pid.
async fn of_an_earlier_agent(bed: &Bed, name: &str, revision: &str, address: &Path) -> u32 {
    let arguments = [format!("--address={}", address.display())];
    let file = format!("{name}.{revision}");
    let script = format!("echo $$ > $DIR/{file}; while :; do sleep 0.1; done");
    orphan_with(bed, (name, revision), &arguments, &script);
    bed.pids(&file, 1).await[0]
}

fn spec(bed: &Bed, name: &str, revision: &str) -> PluginSpec {
    let mut spec = Arc::unwrap_or_clone(bed.plugin(name, "exec sleep 1000"));
    spec.revision = revision.parse().unwrap();
    let folder = bed.dir.path().join("plugins").join(name);
    std::fs::rename(folder.join("r1"), folder.join(revision)).unwrap();
    spec
}

#[tokio::test]
async fn two_plugins_that_start_together_never_have_one_socket() {
    let bed = Bed::new();
    let (first, second) = (spec(&bed, "q_b", "c"), spec(&bed, "q", "b_c"));
    // Neither of them has a process yet.
    let sockets = [bed.launcher.free_socket(&first).await, bed.launcher.free_socket(&second).await];
    assert_ne!(sockets[0], sockets[1]);
    assert_eq!(sockets[1], bed.launcher.sockets_dir().join("q_b_c.sock"));
}

#[tokio::test]
async fn a_process_of_an_earlier_agent_keeps_its_socket_in_every_form() {
    let bed = Bed::new();
    let (name, revision) = ("q_b".parse().unwrap(), "c".parse().unwrap());
    let at = bed.launcher.sockets_dir();
    let earlier = address::earlier_sockets(&at, &name, &revision);
    let usual = address::socket(&at, &name, &revision);
    let possible = earlier.iter().cloned().chain([
        usual.clone(),
        address::own_socket(&bed.launcher.confined_dir(), &name, &revision),
    ]);
    // The launcher does not believe an address that no agent gives.
    let foreign = [(bed.dir.path().join("foreign.sock"), usual)];
    for (said, expected) in possible.map(|path| (path.clone(), path)).chain(foreign) {
        let life = bed.another_life();
        let pid = of_an_earlier_agent(&bed, "q_b", "c", &said).await;
        assert_eq!(life.find(&name, None).await.unwrap().unwrap().pid, pid);
        let endpoint = life.newest(&name).unwrap().endpoint.clone().unwrap();
        assert_eq!(endpoint, address::Address::Unix(expected).endpoint());
        // A stop removes that socket and no other.
        drop(std::os::unix::net::UnixListener::bind(&said));
        let stop = StopOrder {
            name: name.clone(),
            process: None,
            endpoint: None,
            cleanup: Cleanup::Keep,
            manner: StopManner::AtOnce,
        };
        life.stop(stop).await.unwrap();
        assert!(!lives(pid));
        assert_eq!(said.exists(), !said.starts_with(&at) && said.parent().unwrap().exists());
        std::fs::remove_file(bed.dir.path().join("q_b.c")).unwrap();
    }
}

#[tokio::test]
async fn the_socket_of_a_process_of_an_earlier_agent_is_given_to_nobody_else() {
    let bed = Bed::new();
    let spec = spec(&bed, "q", "b_c");
    let at = bed.launcher.sockets_dir();
    let (plain, hashed) =
        (at.join("q_b_c.sock"), address::hashed_socket(&at, &spec.name, &spec.revision));
    // It does not listen yet, and this agent does not know it.
    let pid = of_an_earlier_agent(&bed, "q_b", "c", &plain).await;
    assert_eq!(bed.launcher.free_socket(&spec).await, hashed);
    // It ended while this agent took it over and stopped it.
    let other: PluginName = "q_b".parse().unwrap();
    bed.launcher.find(&other, None).await.unwrap().unwrap();
    let mut stop = order(&spec, None, StopManner::AtOnce);
    stop.name = other;
    bed.launcher.stop(stop).await.unwrap();
    assert!(!lives(pid));
    assert_eq!(bed.launcher.free_socket(&spec).await, plain);
    // Nor is a path on which some process listens, whatever its arguments say.
    let listening = std::os::unix::net::UnixListener::bind(&plain).unwrap();
    assert_eq!(bed.launcher.free_socket(&spec).await, hashed);
    drop(listening);
    assert!(socket::is_deserted(&plain));
    assert_eq!(bed.launcher.free_socket(&spec).await, plain);
}

#[tokio::test]
async fn a_recorded_socket_that_is_another_plugins_now_is_not_removed() {
    let bed = Bed::new();
    let spec = Arc::new(spec(&bed, "q", "b_c"));
    let plain = bed.launcher.sockets_dir().join("q_b_c.sock");
    let (tell, spawned) = oneshot::channel();
    let launcher = bed.launcher.clone();
    let launch = tokio::spawn(async move { launcher.launch(spec, None, tell).await });
    spawned.await.unwrap();
    let server = Script::default().serve(&plain);
    launch.await.unwrap().unwrap();
    // An earlier agent had recorded it for a process that has ended since.
    let stop = StopOrder {
        name: "q_b".parse().unwrap(),
        process: None,
        endpoint: Some(Endpoint::unix(plain.to_str().unwrap())),
        cleanup: Cleanup::Keep,
        manner: StopManner::AtOnce,
    };
    bed.launcher.stop(stop).await.unwrap();
    assert!(plain.exists());
    drop(server);
}
