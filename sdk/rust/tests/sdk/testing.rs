//! A plugin under the agent of `testing`.

use std::sync::{Arc, Mutex};

use guest_agent_plugin::testing::Tested;
use guest_agent_plugin::{
    Cleanup, Health, Plugin, PluginError, PluginStatus, ServiceConfig, StartContext, StatusQuery,
    StopContext, VmEvent, async_trait,
};
use tonic::Code;

/// Remembers its calls, and is as healthy as its `health`.
#[derive(Clone, Default)]
struct Kept {
    health: Health,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Kept {
    fn hear(&self, what: impl Into<String>) {
        self.heard.lock().expect("not poisoned").push(what.into());
    }

    fn heard(&self) -> Vec<String> {
        self.heard.lock().expect("not poisoned").clone()
    }
}

#[async_trait]
impl Plugin for Kept {
    async fn start(&self, context: StartContext) -> Result<(), PluginError> {
        let names: Vec<String> = context.settings()?;
        self.hear(format!("start {names:?}"));
        context.state().write("names", names.join(","))?;
        Ok(())
    }

    async fn apply(&self, config: Option<ServiceConfig>) -> Result<(), PluginError> {
        self.hear(format!("apply {}", config.map(|it| it.to_text()).unwrap_or_default()));
        Ok(())
    }

    async fn vm_event(&self, event: VmEvent, news: ServiceConfig) -> Result<(), PluginError> {
        assert_eq!(news.vm_event().as_ref(), Some(&event));
        self.hear(format!("event {}", event.name()));
        if event == VmEvent::Specialize { Err(PluginError::Unsupported) } else { Ok(()) }
    }

    async fn status(&self, query: StatusQuery) -> PluginStatus {
        match query {
            StatusQuery::HealthCheck => self.health.status(),
            StatusQuery::Question(question) => PluginStatus::answer(question),
        }
    }

    async fn stop(&self, context: StopContext) -> Result<(), PluginError> {
        self.hear(format!("stop {:?}", context.cleanup));
        Ok(())
    }
}

#[tokio::test]
async fn a_plugin_lives_its_life_without_an_agent() {
    let plugin = Kept::default();
    let mut tested = Tested::new(plugin.clone()).await.expect("served");
    let refused = tested.start(Some("hunter2".into())).await.expect_err("it is not JSON");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(!refused.message().contains("hunter2"), "{refused}");
    tested.start(Some(r#"["a","b"]"#.into())).await.expect("started");
    let names = std::fs::read_to_string(tested.state_directory().join("names"));
    assert_eq!(names.expect("written"), "a,b");
    tested.apply(Some("x".into())).await.expect("applied");
    tested.apply(None).await.expect("cleared");
    tested.vm_event(&VmEvent::Startup).await.expect("taken");
    let refused = tested.vm_event(&VmEvent::Specialize).await.expect_err("not interested");
    assert_eq!(refused.code(), Code::Unimplemented);
    assert_eq!(tested.ask("who").await.expect("answered").results, ["who"]);
    assert_eq!(tested.health().await.expect("answered").code, 0);
    plugin.health.fail("disk", "full");
    assert_eq!(tested.health().await.expect("answered"), PluginStatus::unhealthy(1, "disk: full"));
    tested.stop(Cleanup::Remove).await.expect("stopped");
    tested.ended().await.expect("the server ends");
    assert_eq!(
        plugin.heard(),
        [
            r#"start ["a", "b"]"#,
            "apply x",
            "apply ",
            "event startup",
            "event specialize",
            "stop Remove"
        ]
    );
}

#[tokio::test]
async fn a_plugin_ends_as_by_a_signal_and_its_folder_goes() {
    let plugin = Kept::default();
    let mut tested = Tested::new(plugin.clone()).await.expect("served");
    tested.start(None).await.expect("started");
    let state = tested.state_directory();
    assert!(state.is_dir());
    tested.ended().await.expect("the server ends");
    assert_eq!(plugin.heard(), ["start []", "stop Keep"]);
    assert!(!state.exists());
}
