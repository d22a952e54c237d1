//! What tests about plugins that come back have in common.

use guest_agent_proto::local::{AskRequest, PluginStatus};

use crate::harness::Bed;

impl Bed {
    /// Waits until a plugin runs as another process than before.
    pub(crate) async fn running_again(&self, plugin: &str, before: &PluginStatus) -> PluginStatus {
        let what = format!("it runs as another process than {:?}", before.pid);
        self.status_where(plugin, &what, |status| {
            status.state == "RUNNING" && status.pid.is_some() && status.pid != before.pid
        })
        .await
    }

    /// The names in the folder of a plugin, sorted, without the agent's records of what is there.
    pub(crate) fn revisions(&self, plugin: &str) -> Vec<String> {
        let all = self.plugin_files(plugin);
        let is_record = |file: &String| {
            let of = [".installed-", ".signature-"].iter().find_map(|kind| file.strip_prefix(kind));
            of.is_some_and(|it| all.iter().any(|name| name == it))
        };
        all.iter().filter(|file| !is_record(file)).cloned().collect()
    }

    /// Tells a plugin something that it need not survive.
    pub(crate) async fn tell(&self, plugin: &str, what: &str) {
        let request = AskRequest { name: plugin.to_owned(), data: Some(what.to_owned()) };
        let mut client = self.check("the socket answers", self.client().await);
        let _it_may_die_of_it = client.ask(request).await;
    }
}
