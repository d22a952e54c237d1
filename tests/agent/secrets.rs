//! What must not be in the agent's own log at any level, and in no event: a text of its own is
//! planted in every field that may hold a secret, of everything that the agent is sent.

use std::collections::{BTreeMap, HashMap};

use guest_agent_lab::ControlPlane;
use guest_agent_lab::messages::{
    CONFIGURE_PLUGIN_STATES, GET_AGENT_INFO, LIST_PLUGIN_STATES, MESSAGE_TYPE,
};
use guest_agent_proto::agent_communication::stream_agent_messages_response::Type as Down;
use guest_agent_proto::agent_communication::{
    MessageBody, MessageResponse, StreamAgentMessagesResponse,
};
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config;
use guest_agent_proto::agent_controlplane::{ExecutionModel, Rules};
use prost::Message;
use prost_types::value::Kind;
use prost_types::{Any, ListValue, Struct, Value};

use crate::harness::{Archive, Bed, RESOURCE, orders, processes};

/// Secrets, each a text that stands nowhere else.
#[derive(Default)]
struct Planted(BTreeMap<String, String>);

// === impl Planted ===

impl Planted {
    /// A secret for one place.
    fn plant(&mut self, place: &str) -> String {
        let secret = format!("planted{}secret", self.0.len());
        self.0.insert(secret.clone(), place.to_owned());
        secret
    }

    /// The places whose secrets a text holds.
    fn found_in(&self, text: &str) -> Vec<&str> {
        let found = self.0.iter().filter(|(secret, _)| text.contains(secret.as_str()));
        found.map(|(_, place)| place.as_str()).collect()
    }

    /// A URL with secrets wherever one can have them.
    fn url(&mut self, url: &str, place: &str) -> String {
        let (scheme, rest) = url.split_once("://").unwrap();
        let [user, password, query, fragment] = ["user", "password", "query", "fragment"]
            .map(|part| self.plant(&format!("{place}: {part}")));
        format!("{scheme}://{user}:{password}@{rest}?signature={query}&a=b#{fragment}")
    }

    fn archive(&mut self, archive: &Archive, place: &str) -> Archive {
        Archive { url: self.url(&archive.url, place), ..archive.clone() }
    }

    /// A configuration that has a secret as key, as value and in a list.
    fn structure(&mut self, place: &str) -> Config {
        let text = |text: String| Value { kind: Some(Kind::StringValue(text)) };
        let list = vec![text(self.plant(&format!("{place}: in a list")))];
        let list = Value { kind: Some(Kind::ListValue(ListValue { values: list })) };
        let key = self.plant(&format!("{place}: key"));
        let value = text(self.plant(&format!("{place}: value")));
        Config::StructConfig(Struct { fields: [(key, value), ("list".to_owned(), list)].into() })
    }
}

/// A bed whose control plane asks for a token.
async fn bed(level: &str, token: &str) -> Bed {
    let control_plane = ControlPlane::builder()
        .listen_tcp(([127, 0, 0, 1], 0).into())
        .bearer_token(token)
        .start()
        .await
        .unwrap();
    let mut bed = Bed::builder()
        .set(format!("log.level={level}"))
        .set("control_plane.auth=token-file")
        .set(format!("control_plane.endpoint={}", control_plane.endpoint()))
        .build()
        .await;
    let file = bed.dir().join("token");
    std::fs::write(&file, format!("{token}\n")).unwrap();
    bed.set(format!("control_plane.token_file={}", file.display()));
    bed.control_plane.shutdown().await;
    bed.use_control_plane(control_plane);
    bed.start_agent().await;
    bed
}

/// Orders of every kind, some of which fail, each in another way.
async fn give_orders(bed: &Bed, planted: &mut Planted) {
    let (echo, trouble) = (bed.echo().await, bed.trouble().await);
    let argument = planted.plant("an argument");
    let config = planted.plant("a configuration of an INSTALL");
    let rule = Rules {
        attribute: "short_name".to_owned(),
        comparison_operator: 1,
        scope: 1,
        value: Some(Value { kind: Some(Kind::StringValue(planted.plant("the value of a rule"))) }),
    };
    let model = ExecutionModel { on_default: 1, rules: vec![rule], ..ExecutionModel::default() };
    let structure = planted.structure("a structure of an INSTALL");
    let mut local = orders::install("local", "1", &planted.archive(&trouble, "a local INSTALL"))
        .arg(planted.plant("an argument of a local INSTALL"))
        .order();
    let manifest = local.manifest.get_or_insert_default();
    manifest.config = Some(planted.structure("a structure of a local INSTALL"));
    let refused = bed.configure_locally(vec![local]).await;
    assert_eq!(refused, [""], "the local order is taken");
    bed.configure(vec![
        orders::install("text", "1", &planted.archive(&echo, "an INSTALL"))
            .arg(format!("--greeting={argument}"))
            .config(&config)
            .order(),
        orders::install("structure", "1", &trouble)
            .arg("--apply=refuse")
            .manifest(|manifest| manifest.config = Some(structure))
            .manifest(|manifest| manifest.execution_model = Some(model))
            .order(),
        orders::install("dies", "1", &trouble)
            .arg("--exit-before-start=3")
            .arg(planted.plant("an argument of a plugin that dies"))
            .order(),
    ])
    .await;
    let absent = Archive { url: format!("{}.absent", echo.url), ..echo.clone() };
    let other = Archive { sha256: trouble.sha256.clone(), ..echo.clone() };
    let nobody = Archive { url: "http://127.0.0.1:1/a.tar".to_owned(), ..echo.clone() };
    let odd = Archive { url: "ftp://a.example/a.tar".to_owned(), ..echo.clone() };
    let failing = [("absent", absent), ("other", other), ("nobody", nobody), ("odd", odd)];
    let failing: Vec<ConfigurePlugin> = failing
        .iter()
        .map(|(name, archive)| {
            let archive = planted.archive(archive, name);
            let order = orders::install(name, "1", &archive);
            order.manifest(|manifest| manifest.download_attempt_count = 2).order()
        })
        .collect();
    let names: Vec<String> =
        failing.iter().map(|order| order.plugin.as_ref().unwrap().name.clone()).collect();
    bed.configure(failing).await;
    for name in ["text", "structure", "local"] {
        bed.running(name, "1").await;
    }
    for name in names {
        bed.event(8, &name, "1").await;
    }
    bed.event(8, "dies", "1").await;
    let taken = planted.plant("the configuration of an APPLY");
    bed.configure(vec![orders::apply("text", Some(&taken))]).await;
    bed.event(12, "text", "1").await;
    let refused = planted.plant("the configuration of an APPLY that is refused");
    bed.configure(vec![orders::apply("structure", Some(&refused))]).await;
    bed.event(13, "structure", "1").await;
}

/// Messages that are not orders, or not readable.
async fn send_frames(bed: &Bed, planted: &mut Planted) {
    let mut send = |kind: &str, place: &str, value: Vec<u8>| {
        let label = planted.plant(&format!("a label of {place}"));
        let labels =
            [(MESSAGE_TYPE.to_owned(), kind.to_owned()), ("authorization".to_owned(), label)];
        let body = Some(Any { type_url: kind.to_owned(), value });
        let r#type = Some(Down::MessageBody(MessageBody { labels: HashMap::from(labels), body }));
        let frame = StreamAgentMessagesResponse { message_id: place.to_owned(), r#type };
        bed.check("a frame is sent", bed.control_plane.send_raw(RESOURCE, frame));
    };
    send(GET_AGENT_INFO, "a question", Vec::new());
    send(LIST_PLUGIN_STATES, "another question", Vec::new());
    send("agent_controlplane.MakeCoffee", "an unknown message", vec![1; 10]);
    let broken = planted.plant("the body of a message that cannot be read");
    let order = orders::apply("text", Some(&broken));
    let states = guest_agent_proto::agent_controlplane::ConfigurePluginStates {
        configure_plugins: vec![order],
    };
    let mut cut = states.encode_to_vec();
    cut.truncate(cut.len() - 1);
    let labels = HashMap::from([(MESSAGE_TYPE.to_owned(), CONFIGURE_PLUGIN_STATES.to_owned())]);
    let body = Some(Any { type_url: String::new(), value: cut });
    let answer = guest_agent_proto::rpc::Status {
        code: 13,
        message: planted.plant("the status of an answer"),
        details: Vec::new(),
    };
    for (id, r#type) in [
        ("cut", Down::MessageBody(MessageBody { labels, body })),
        ("answer", Down::MessageResponse(MessageResponse { status: Some(answer) })),
    ] {
        let frame = StreamAgentMessagesResponse { message_id: id.to_owned(), r#type: Some(r#type) };
        bed.check("a frame is sent", bed.control_plane.send_raw(RESOURCE, frame));
    }
    // What came before it was handled when this is answered.
    let info = bed.control_plane.agent_info(RESOURCE, crate::harness::PATIENCE).await;
    bed.check("the agent answers", info);
}

/// What programs of this machine send.
async fn speak_on_this_machine(bed: &Bed, planted: &mut Planted) {
    let question = planted.plant("a question to a plugin");
    assert_eq!(bed.ask("text", &format!("echo {question}")).await.results, [question]);
    let event = planted.plant("the request of a VM event");
    bed.say(&format!(r#"{{"Command":"VmEvent","Event":"startup","Token":"{event}"}}"#)).await;
    let command = planted.plant("a command that there is not");
    bed.say(&format!(r#"{{"Command":"{command}","Token":"{command}"}}"#)).await;
    let option = planted.plant("the name of an option");
    bed.say(&format!(r#"{{"Command":"agent.config.getoption","Option":"{option}"}}"#)).await;
    let text = planted.plant("a request that is not JSON");
    bed.say(&format!("{{{text}}}")).await;
}

async fn no_secret_is_logged(level: &str, loudest: &str) {
    let mut planted = Planted::default();
    let token = planted.plant("the token of the agent");
    let bed = bed(level, &token).await;
    give_orders(&bed, &mut planted).await;
    send_frames(&bed, &mut planted).await;
    speak_on_this_machine(&bed, &mut planted).await;
    for (pid, variables) in processes::all_below(&bed.state_root()) {
        if let Some(ticket) = variables.get("GUEST_AGENT_TICKET") {
            planted.0.insert(ticket.clone(), format!("the ticket of process {pid}"));
        }
    }
    let events = bed.control_plane.events(RESOURCE);
    let details: String = events.iter().map(|event| event.details().into_owned() + "\n").collect();
    assert!(details.contains("checksum"), "the failures are told: {details}");
    assert_eq!(planted.found_in(&details), [""; 0], "in events: {details}");
    bed.finish_after(async |bed| {
        let log = bed.log();
        assert!(log.contains(loudest), "the log is not at {level}");
        let found = planted.found_in(&log);
        let lines = log.lines().filter(|line| !planted.found_in(line).is_empty()).take(20);
        let lines: Vec<&str> = lines.collect();
        assert!(found.is_empty(), "in the log: {found:#?}\n{}", lines.join("\n"));
    })
    .await;
}

#[tokio::test]
async fn no_secret_is_in_the_log_of_the_agent_at_its_loudest() {
    no_secret_is_logged("trace", "guest_agent").await;
}

#[tokio::test]
async fn no_secret_is_in_the_log_where_every_crate_is_at_its_loudest() {
    no_secret_is_logged("trace,guest_agent=trace", "TRACE").await;
}
