//! The file that `serve --webhooks` names.
//!
//! ```toml
//! [[webhook]]
//! name = "pager"
//! url = "https://hooks.example/fleet"
//! secret_file = "/etc/guest-fleet/pager.secret"
//! events = ["PLUGIN_CRASHED", "PLUGIN_INSTALL_FAILED"]   # all without it
//! plugins = ["monitor"]                                  # all without it
//! ca_file = "/etc/guest-fleet/hooks-ca.pem"              # those of the machine without it
//! ```
//!
//! It is a file of the machine and not a declaration: who names a URL decides what this process
//! connects to. The URL is in no message, since it may hold a token.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use guest_agent_proto::agent_controlplane::PluginEventMessage;
use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;

use crate::declarations::fields::{Context, Fields, suggestion};
use crate::declarations::own_files::{self, Kind};
use crate::declarations::problem::{Place, Problems};
use crate::declarations::tree::Node;
use crate::declarations::values::{NAME_FIX, check_name, check_plugin};
use crate::net::outbound::{AllowedHost, Target};

/// Most webhooks of a file.
pub const WEBHOOKS: usize = 16;

const ALLOWED: [&str; 6] = ["name", "url", "secret_file", "events", "plugins", "ca_file"];
const HINTS: [(&str, &str); 3] = [
    ("secret", "write the secret into a file and name it with `secret_file`"),
    ("event", "write `events = [\"…\"]`"),
    ("plugin", "write `plugins = [\"…\"]`"),
];

/// A webhook.
#[derive(Clone, Debug)]
pub struct Webhook {
    /// Its name.
    pub name: String,
    /// Where it goes.
    pub target: Target,
    /// File with the secret that its messages are signed with.
    pub secret: PathBuf,
    /// The events that it tells; all where the set is empty.
    pub events: BTreeSet<i32>,
    /// The plugins whose events it tells; all where the set is empty.
    pub plugins: BTreeSet<String>,
    /// Authorities to trust; without any those of the machine.
    pub ca: Option<PathBuf>,
}

// === impl Webhook ===

impl Webhook {
    /// Whether it tells an event.
    #[must_use]
    pub fn tells(&self, event: &PluginEventMessage) -> bool {
        (self.events.is_empty() || self.events.contains(&event.event_type))
            && (self.plugins.is_empty() || self.plugins.contains(&event.plugin_name))
    }
}

const KIND: Kind = Kind {
    key: "webhook",
    many: "webhooks",
    most: WEBHOOKS,
    fewer: "let one receiver pass events on to others",
};

/// Reads the file. Blocks.
///
/// # Errors
/// It cannot be read, or has problems; then nothing of it is used.
pub fn read(path: &Path, allowed: &[AllowedHost]) -> Result<Vec<Webhook>, Problems> {
    own_files::read(path, &KIND, named(allowed)).map(without_names)
}

/// Reads the text of a file.
///
/// # Errors
/// All problems of it.
pub fn parse(file: &str, text: &str, allowed: &[AllowedHost]) -> Result<Vec<Webhook>, Problems> {
    own_files::parse(file, text, &KIND, named(allowed)).map(without_names)
}

fn named(
    allowed: &[AllowedHost],
) -> impl FnMut(&mut Context<'_>, &Node) -> Option<(String, Webhook)> {
    |context, node| one(context, node, allowed).map(|webhook| (webhook.name.clone(), webhook))
}

fn without_names(found: Vec<(String, Webhook)>) -> Vec<Webhook> {
    found.into_iter().map(|(_, webhook)| webhook).collect()
}

fn one(context: &mut Context<'_>, node: &Node, allowed: &[AllowedHost]) -> Option<Webhook> {
    let fields = Fields::new(context, node, "webhook", &ALLOWED, &HINTS)?;
    let name =
        fields.required_text(context, "name").and_then(|(text, at)| match check_name(text) {
            Ok(()) => Some(text.to_owned()),
            Err(reason) => {
                context.problem(at, &fields.key("name"), reason, NAME_FIX);
                None
            }
        });
    let target = fields
        .required_text(context, "url")
        .and_then(|(text, at)| target(context, &fields.key("url"), text, at, allowed));
    let secret = fields.required_text(context, "secret_file");
    let secret = secret.and_then(|(text, at)| path(context, &fields.key("secret_file"), text, at));
    let ca = match fields.text(context, "ca_file") {
        Some((text, at)) => path(context, &fields.key("ca_file"), text, at),
        None => None,
    };
    let events = events(context, &fields);
    let mut plugins = BTreeSet::new();
    for (plugin, at) in fields.texts(context, "plugins") {
        match check_plugin(plugin) {
            Ok(()) => drop(plugins.insert(plugin.to_owned())),
            Err(reason) => {
                let fix = "write the name of a plugin as its release has it";
                context.problem(at, &fields.key("plugins"), reason, fix);
            }
        }
    }
    Some(Webhook { name: name?, target: target?, secret: secret?, events, plugins, ca })
}

fn target(
    context: &mut Context<'_>,
    key: &str,
    text: &str,
    at: Place,
    allowed: &[AllowedHost],
) -> Option<Target> {
    match Target::parse_or_local(text) {
        Ok(target) if allowed.is_empty() || allowed.iter().any(|it| it.allows(target.host())) => {
            Some(target)
        }
        Ok(target) => {
            let reason = format!("the host `{}` is not allowed", target.host());
            context.problem(at, key, reason, "serve with `--webhook-host` for it, too");
            None
        }
        Err(error) => {
            context.problem(at, key, error.to_string(), "write the whole URL of the receiver");
            None
        }
    }
}

fn path(context: &mut Context<'_>, key: &str, text: &str, at: Place) -> Option<PathBuf> {
    if text.starts_with('/') && !text.contains('\0') {
        return Some(PathBuf::from(text));
    }
    context.problem(at, key, "it is no absolute path", "write the path from `/` on");
    None
}

fn events(context: &mut Context<'_>, fields: &Fields<'_>) -> BTreeSet<i32> {
    let mut events = BTreeSet::new();
    for (name, at) in fields.texts(context, "events") {
        match PluginEventType::from_str_name(name) {
            Some(event) if event != PluginEventType::Unspecified => {
                events.insert(i32::from(event));
            }
            _ => {
                let known: Vec<&str> = (1..)
                    .map_while(|number| PluginEventType::try_from(number).ok())
                    .map(|event| event.as_str_name())
                    .collect();
                let fix = suggestion(name, &known);
                context.problem(at, &fields.key("events"), "it is no kind of event", fix);
            }
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
[[webhook]]
name = "pager"
url = "https://hooks.example/fleet?token=abc"
secret_file = "/s"
events = ["PLUGIN_CRASHED"]
plugins = ["monitor"]
"#;

    #[track_caller]
    fn refused(text: &str, allowed: &[AllowedHost]) -> String {
        let problems = parse("hooks.toml", text, allowed).expect_err("a problem").0;
        problems.iter().map(|problem| format!("{problem}\n")).collect()
    }

    #[test]
    fn a_webhook_tells_what_it_names() {
        let webhooks = parse("hooks.toml", GOOD, &[]).expect("no problem");
        let [webhook] = webhooks.as_slice() else { panic!("one webhook") };
        let event = |kind: PluginEventType, plugin: &str| PluginEventMessage {
            event_type: kind.into(),
            plugin_name: plugin.to_owned(),
            ..PluginEventMessage::default()
        };
        assert!(webhook.tells(&event(PluginEventType::PluginCrashed, "monitor")));
        assert!(!webhook.tells(&event(PluginEventType::PluginStarted, "monitor")));
        assert!(!webhook.tells(&event(PluginEventType::PluginCrashed, "other")));
    }

    #[test]
    fn problems_name_the_place_the_key_and_the_fix_and_never_the_url() {
        let bad = GOOD.replace("PLUGIN_CRASHED", "PLUGIN_CRASHD").replace("\"/s\"", "\"s\"");
        let text = refused(&bad, &[]);
        assert!(text.contains("hooks.toml:6:11: webhook.events: it is no kind of event"), "{text}");
        assert!(text.contains("allowed are `PLUGIN_CONFIG_INSTALL`, "), "{text}");
        assert!(text.contains("webhook.secret_file: it is no absolute path"), "{text}");
        let allowed = ["*.example.org".parse().expect("a host")];
        let text = refused(GOOD, &allowed);
        assert!(text.contains("the host `hooks.example` is not allowed"), "{text}");
        assert!(!text.contains("abc"), "{text}");
        let text = refused(&GOOD.replace("https://hooks.example", "https://u:p@hooks"), &[]);
        assert!(text.contains("webhook.url: it is neither") && !text.contains("u:p"), "{text}");
        assert!(
            refused(&format!("{GOOD}{GOOD}"), &[]).contains("another webhook has the same name")
        );
        assert!(refused("[[webhook]]\nsecret = \"x\"", &[]).contains("name it with `secret_file`"));
        assert!(refused("webhook = 1", &[]).contains("not a list"));
        assert!(refused("[[", &[]).contains("it is not TOML"));
        let many: String =
            (0..=WEBHOOKS).map(|at| GOOD.replace("pager", &format!("pager{at}"))).collect();
        assert!(refused(&many, &[]).contains("up to here there are 16 webhooks"));
    }
}
