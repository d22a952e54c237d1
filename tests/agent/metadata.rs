//! The metadata server: who the machine is, where its control plane is, and what becomes of an
//! agent without one.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use guest_agent_lab::metadata::{MetadataFaults, MetadataServer};
use guest_agent_lab::{Code, ControlPlane, ServerTls};
use guest_agent_proto::agent_controlplane::guest_agent_module_metric::{Metric, ModuleStatus};

use crate::harness::{Bed, PATIENCE, RESOURCE, listing};

/// A server that says of the machine what a bed's control plane knows.
async fn server() -> MetadataServer {
    let server = MetadataServer::start((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
    server.set_machine("1", "test", "test");
    server
}

/// The settings of an agent that gets everything but the endpoint from there.
fn settings(server: &MetadataServer) -> [String; 3] {
    [
        format!("instance.metadata_url={}", server.url()),
        "control_plane.resource=".to_owned(),
        "control_plane.auth=metadata".to_owned(),
    ]
}

async fn bed_at(server: &MetadataServer) -> Bed {
    settings(server).into_iter().fold(Bed::builder(), |bed, setting| bed.set(setting)).build().await
}

/// Waits until the status of the link has this in it.
async fn link_says(bed: &Bed, wanted: &str) -> String {
    bed.until(&format!("the status says {wanted:?} of the link"), async || {
        let link = bed.try_status().await.ok()?.agent?.link;
        link.contains(wanted).then_some(link)
    })
    .await
}

/// The folders of instances in the state directory.
fn instances(bed: &Bed) -> Vec<String> {
    let folders = listing(&bed.dir().join("state"));
    let folders = folders.iter().filter(|path| path.is_dir());
    let mut names: Vec<_> =
        folders.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
    names.sort();
    names
}

#[tokio::test]
async fn resource_id_and_tokens_come_from_the_metadata_server() {
    let server = server().await;
    let mut bed = bed_at(&server).await;
    bed.start_agent().await;
    assert_eq!(server.tokens_asked(), 1);
    // A stream that ended for another reason takes the token that is kept.
    bed.cut_link(Code::Unavailable).await;
    assert_eq!(server.tokens_asked(), 1);
    bed.cut_link(Code::Unauthenticated).await;
    assert_eq!(server.tokens_asked(), 2);
    let log = bed.log();
    // Every token begins like this: it is JSON in base64.
    assert!(!log.contains("eyJ"), "{log}");
    bed.finish().await;
}

#[tokio::test]
async fn a_token_that_is_nearly_over_is_replaced_before_it_is() {
    let server = server().await;
    // A second after it was made it is nearly over. Each cut makes the agent wait longer, so that many
    // of them would take longer than the test may.
    server.set_token_life(Duration::from_secs(601));
    let mut bed = bed_at(&server).await;
    bed.start_agent().await;
    let before = server.tokens_asked();
    bed.until("the token is replaced", async || {
        bed.cut_link(Code::Ok).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        (server.tokens_asked() > before).then_some(())
    })
    .await;
    bed.finish().await;
}

#[tokio::test]
async fn platform_and_modules_are_reported_once() {
    let server = server().await;
    let mut bed = bed_at(&server).await;
    bed.start_agent().await;
    let reports = bed
        .until("both reports are there", async || {
            let reports = bed.control_plane.reports(RESOURCE);
            Some((reports.platform_info?.value, reports.module_metrics?.value.metrics))
        })
        .await;
    let (platform, modules) = reports;
    assert_eq!((platform.on_gce, &*platform.error), (true, ""));
    let names: Vec<_> = modules.iter().map(|module| module.metric_name()).collect();
    assert_eq!(names, [Metric::CorePluginInitialization, Metric::CommandInitialization]);
    for module in &modules {
        assert_eq!(module.module_status(), ModuleStatus::StatusSucceeded, "{module:?}");
        let (start, end) = (module.start_time.unwrap(), module.end_time.unwrap());
        assert!((start.seconds, start.nanos) <= (end.seconds, end.nanos), "{module:?}");
    }
    bed.finish().await;
}

#[tokio::test]
async fn a_metadata_server_that_appears_late_is_noticed() {
    let server = server().await;
    let host = server.host();
    let address = server.address();
    server.shutdown().await;
    drop(server);
    // Where no setting says where it is, the variable does that all clients know.
    let mut bed = Bed::builder()
        .set("instance.metadata_url=")
        .set("control_plane.resource=")
        .variable("GCE_METADATA_HOST", host)
        .build()
        .await;
    bed.spawn_agent();
    let why = link_says(&bed, "no resource is configured").await;
    assert!(why.contains("metadata server"), "{why}");
    assert!(bed.cli(&["status"]).await.ok().contains("metadata server"));

    let server = MetadataServer::start(address).await.unwrap();
    server.set_machine("1", "test", "test");
    let connected = bed.control_plane.gateway().wait_connected(RESOURCE, PATIENCE).await;
    bed.check("the agent connects", connected);
    bed.finish().await;
}

#[tokio::test]
async fn without_endpoint_and_metadata_server_the_agent_says_so_and_asks_seldom() {
    // Something answers, so that its questions can be counted, but never says anything.
    let nobody = server().await;
    nobody.set_faults(MetadataFaults { status: Some(503), ..MetadataFaults::default() });
    let url = nobody.url();
    let mut bed = Bed::builder()
        .set(format!("instance.metadata_url={url}"))
        .set("control_plane.endpoint=")
        .set("control_plane.resource=")
        .set("control_plane.auth=metadata")
        .build()
        .await;
    bed.spawn_agent();
    let begun = Instant::now();
    // Waits of 0.5, 1 and 2 seconds at least lie between the first four questions.
    bed.until("it asks again and again", async || (nobody.asked().len() >= 4).then_some(())).await;
    assert!(begun.elapsed() > Duration::from_millis(3_400), "it asks too often");
    let why = link_says(&bed, "neither endpoint nor resource is configured").await;
    assert!(why.contains("503"), "{why}");
    let log = bed.log();
    assert_eq!(log.matches("does not answer; the agent asks again").count(), 1, "{log}");
    bed.finish().await;
}

#[tokio::test]
async fn a_metadata_server_that_never_answers_delays_nobody() {
    // Its connections are never accepted.
    let tarpit = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("instance.metadata_url=http://{}", tarpit.local_addr().unwrap());
    // With an id nothing is asked before the agent is ready; without one, for a second only.
    let bed = Bed::builder().set(&url).start().await;
    bed.finish().await;
    let bed = Bed::builder().set(url).set("instance.id=").start().await;
    assert!(bed.log().contains("this machine's instance id in time"), "{}", bed.log());
    bed.finish().await;
}

#[tokio::test]
async fn hostile_answers_of_a_metadata_server_harm_nothing() {
    let server = server().await;
    let bed = bed_at(&server).await;
    let with = |faults| server.set_faults(faults);
    with(MetadataFaults { huge: Some(8 << 20), ..MetadataFaults::default() });
    let mut bed = bed;
    bed.spawn_agent();
    link_says(&bed, "longer than").await;
    with(MetadataFaults {
        garbage: Some("\u{0}{\"instance\":[".to_owned()),
        ..MetadataFaults::default()
    });
    link_says(&bed, "not JSON").await;
    with(MetadataFaults { status: Some(503), ..MetadataFaults::default() });
    link_says(&bed, "503").await;
    with(MetadataFaults { without_flavor: true, ..MetadataFaults::default() });
    link_says(&bed, "not a metadata server").await;
    with(MetadataFaults::default());
    let connected = bed.control_plane.gateway().wait_connected(RESOURCE, PATIENCE * 2).await;
    bed.check("the agent connects", connected);
    bed.finish().await;
}

#[tokio::test]
async fn the_instance_stays_the_same_when_the_metadata_server_is_silent() {
    let server = server().await;
    server.set("instance/id", "4242");
    let url = format!("instance.metadata_url={}", server.url());
    let mut bed = Bed::builder().set(url).set("instance.id=").start().await;
    assert_eq!(instances(&bed), ["4242"]);
    bed.stop_agent().await;
    server.shutdown().await;
    bed.start_agent().await;
    assert_eq!(instances(&bed), ["4242"]);
    let id = bed.try_status().await.unwrap().agent.unwrap().instance_id;
    assert_eq!(id, "4242");
    bed.finish().await;
}

#[tokio::test]
async fn a_clone_that_was_taken_for_its_original_starts_again_as_itself() {
    let server = server().await;
    server.set("instance/id", "4242");
    let url = format!("instance.metadata_url={}", server.url());
    let mut bed = Bed::builder().set(url).set("instance.id=").start().await;
    bed.stop_agent().await;
    server.set("instance/id", "4343");
    bed.spawn_agent();
    let status = bed.agent_ends().await;
    assert!(!status.success(), "the service manager has to start it again: {status}");
    bed.start_agent().await;
    let id = bed.try_status().await.unwrap().agent.unwrap().instance_id;
    assert_eq!(id, "4343");
    bed.finish().await;
}

#[tokio::test]
async fn https_with_the_authorities_of_the_system_is_a_link() {
    let secrets = tempfile::tempdir().unwrap();
    let authority = secrets.path().join("ca.pem");
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    std::fs::write(&authority, params.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = rcgen::Issuer::new(params, key);
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap().pem();
    let tls = ServerTls { certificate, key: key.serialize_pem(), client_ca: None };
    let control_plane = ControlPlane::builder()
        .listen_tcp((Ipv4Addr::LOCALHOST, 0).into())
        .tls(tls)
        .start()
        .await
        .unwrap();
    // That variable is where the system's authorities are looked for first.
    let mut bed = Bed::builder()
        .set(format!("control_plane.endpoint={}", control_plane.endpoint()))
        .variable("SSL_CERT_FILE", authority.display().to_string())
        .build()
        .await;
    bed.control_plane.shutdown().await;
    bed.use_control_plane(control_plane);
    bed.start_agent().await;
    bed.finish().await;
}

#[tokio::test]
async fn the_check_refuses_what_run_refuses() {
    let bed = Bed::builder().build().await;
    let config = bed.dir().join("agent.toml").display().to_string();
    for (settings, reason) in [
        (["control_plane.auth=metadata", "instance.id=test"], "instance.metadata_url turns"),
        (["control_plane.auth=none", "control_plane.resource=ä"], "not printable ASCII"),
        (["control_plane.auth=none", "control_plane.resource="], "write this machine's resource"),
    ] {
        let mut said = Vec::new();
        for verb in [&["run"][..], &["config", "check"]] {
            let mut arguments = verb.to_vec();
            arguments.extend(["--config", &config]);
            arguments.extend(settings.iter().flat_map(|setting| ["--set", setting]));
            said.push(bed.cli(&arguments).await);
        }
        for said in said {
            assert_eq!(said.code, 1, "{settings:?}: {}", said.stderr);
            assert!(said.stderr.contains(reason), "{settings:?}: {}", said.stderr);
        }
    }
    bed.finish().await;
}
