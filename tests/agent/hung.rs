//! An agent that does not answer: every verb says within seconds what is known without it.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::harness::{Bed, orders, signal};

/// Two seconds until the kernel is asked, and as much again for a machine that has other work.
const SOON: Duration = Duration::from_secs(4);

#[tokio::test]
async fn verbs_of_a_stopped_agent_say_its_state_its_plugins_and_the_fix_within_seconds() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("web", "1", &echo).order()]).await;
    let plugin = bed.running("web", "1").await.pid.unwrap();
    let agent = bed.agent_pid();
    bed.freeze(agent).await;

    for verb in [&["status"][..], &["stop", "web"], &["events"], &["logs", "web"]] {
        let began = Instant::now();
        let said = bed.cli(verb).await;
        assert!(began.elapsed() < SOON, "{verb:?} took {:?}", began.elapsed());
        assert_eq!(said.code, 3, "{said:?}");
        for part in [
            format!("its process {agent} is stopped by a signal (state T)"),
            format!("plugins that run on: web ({plugin})"),
            format!("kill -CONT {agent}"),
        ] {
            assert!(said.stderr.contains(&part), "{part}: {said:?}");
        }
    }

    // The checks that need no agent are done all the same.
    let free = bed.dir().join("agent.toml").display().to_string();
    let began = Instant::now();
    let doctor = bed.cli(&["doctor", "--json", "--config", &free]).await;
    assert!(began.elapsed() < 2 * SOON, "it took {:?}", began.elapsed());
    assert_eq!(doctor.code, 1, "{doctor:?}");
    let report: serde_json::Value = serde_json::from_str(&doctor.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let about = |what: &str| {
        let found = findings.iter().filter(|it| it["what"].as_str().unwrap().contains(what));
        found.cloned().collect::<Vec<_>>()
    };
    let found = about("the agent does not answer");
    assert_eq!(found.len(), 1, "{report:#}");
    assert!(found[0]["fix"].as_str().unwrap().contains("kill -CONT"), "{report:#}");
    assert_eq!(about("does not answer on its socket"), Vec::<serde_json::Value>::new());
    assert!(report["checked"].as_array().unwrap().len() > 10, "{report:#}");

    let bundle = bed.dir().join("bundle.tar.gz").display().to_string();
    let said = bed.cli(&["support-bundle", "-o", &bundle, "--config", &free]).await;
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stderr.contains("state T"), "{said:?}");
    let listed = std::process::Command::new("tar").args(["-tzf", &bundle]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    for file in ["agent/threads", "agent/status", "doctor.txt", "INDEX"] {
        assert!(listed.contains(&format!("guest-agent-support/{file}\n")), "{file}: {listed}");
    }

    let judged = bed.cli(&["doctor", "--bundle", &bundle]).await;
    assert_eq!(judged.code, 1, "{judged:?}");
    for part in ["bundle of ", "state T", "missing: status.json: the agent does not answer"] {
        assert!(judged.stdout.contains(part), "{part}: {judged:?}");
    }
    let judged = bed.cli(&["doctor", "--bundle", &bundle, "--json"]).await;
    assert!(judged.stdout.contains("\"findings\""), "{judged:?}");
    let not_one = bed.cli(&["doctor", "--bundle", &free]).await;
    assert!(not_one.stderr.contains("failed to judge"), "{not_one:?}");

    signal(agent, Signal::SIGCONT);
    let status = bed.status("web").await.unwrap();
    assert_eq!((&*status.state, status.pid), ("RUNNING", Some(plugin)), "nothing was stopped");
    bed.finish().await;
}

#[tokio::test]
async fn another_process_on_the_socket_is_named() {
    let bed = Bed::new().await;
    let here = bed.dir().join("another.sock");
    let _mute = UnixListener::bind(&here).unwrap();
    let socket = here.display().to_string();
    let began = Instant::now();
    let said = bed.cli(&["status", "--socket", &socket]).await;
    assert!(began.elapsed() < SOON, "it took {:?}", began.elapsed());
    assert_eq!(said.code, 3, "{said:?}");
    let named = format!("process {} (", std::process::id());
    for part in [&*named, "listens on the agent's socket and is not the agent", "--socket"] {
        assert!(said.stderr.contains(part), "{part}: {said:?}");
    }

    // One that talks of something else.
    let here = bed.dir().join("http.sock");
    let server = UnixListener::bind(&here).unwrap();
    let serve = std::thread::spawn(move || {
        let (mut connection, _) = server.accept().unwrap();
        let _greeting = connection.read(&mut [0; 1024]).unwrap();
        connection.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let said = bed.cli(&["status", "--socket", &here.display().to_string()]).await;
    serve.join().unwrap();
    assert_eq!(said.code, 3, "{said:?}");
    assert!(said.stderr.contains("is not the socket of an agent"), "{said:?}");
    bed.finish().await;
}
