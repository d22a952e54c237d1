//! The file that `serve --webhooks` names.
//!
//! ```toml
//! [[webhook]]
//! name = "pager"
//! url = "https://hooks.example/fleet"
//! secret_file = "/etc/guest-fleet/pager.secret"
//! events = ["PLUGIN_CRASHED", "ROLLOUT_HALTED"]          # all without it
//! plugins = ["monitor"]                                  # all without it
//! ca_file = "/etc/guest-fleet/hooks-ca.pem"              # those of the machine without it
//! ```
//!
//! It is a file of the machine and not a declaration: who names a URL decides what this process
//! connects to. The URL is in no message, since it may hold a token. Its files are looked at when it is read, so that a
//! wrong one is found at the start and not when something happens.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use guest_agent_serve_kit::tls;
use guest_fleet_core::notice::Kind;
use guest_fleet_ledger::records::event::{Content, kinds, type_number};

use super::sign::Secret;
use crate::chain::Chain;
use crate::declarations::fields::{Context, Fields, suggestion};
use crate::declarations::own_files;
use crate::declarations::problem::{Place, Problems};
use crate::declarations::tree::Node;
use crate::declarations::values::{NAME_FIX, check_name, check_plugin};
use crate::net::outbound::{AllowedHost, Target};

/// Most webhooks of a file.
pub const WEBHOOKS: usize = 16;
/// Most bytes of a file with authorities.
const AUTHORITIES: u64 = 1 << 20;

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
    /// The events that it tells; all, and all notices, where both sets are empty.
    pub events: BTreeSet<i32>,
    /// The notices that it tells.
    pub notices: BTreeSet<Kind>,
    /// The plugins whose events and notices it tells; all where the set is empty.
    pub plugins: BTreeSet<String>,
    /// Authorities to trust; without any those of the machine.
    pub ca: Option<PathBuf>,
}

// === impl Webhook ===

impl Webhook {
    /// Whether it tells an entry. A notice that is about no plugin passes the filter by plugins where its kind is
    /// named.
    #[must_use]
    pub fn tells(&self, content: &Content) -> bool {
        let is_all = self.events.is_empty() && self.notices.is_empty();
        let of_plugin = |plugin: &str| self.plugins.is_empty() || self.plugins.contains(plugin);
        match content {
            Content::Event(event) => {
                (is_all || self.events.contains(&event.event_type)) && of_plugin(&event.plugin_name)
            }
            Content::Notice(kind, notice) => {
                let is_named = self.notices.contains(kind);
                let is_of_none = notice.plugin.is_empty() && is_named;
                (is_all || is_named) && (of_plugin(&notice.plugin) || is_of_none)
            }
        }
    }
}

const KIND: own_files::Kind = own_files::Kind {
    key: "webhook",
    many: "webhooks",
    most: WEBHOOKS,
    fewer: "let one receiver pass events on to others",
};

/// Reads the file, and looks at the secrets and authorities that it names. Connects to nothing. Blocks.
///
/// # Errors
/// It cannot be read, or has problems; then nothing of it is used.
pub fn read(path: &Path, allowed: &[AllowedHost]) -> Result<Vec<Webhook>, Problems> {
    own_files::read(path, &KIND, named(Outside { allowed, has_files: true })).map(without_names)
}

/// Reads the text of a file, and looks at nothing that it names.
///
/// # Errors
/// All problems of it.
pub fn parse(file: &str, text: &str, allowed: &[AllowedHost]) -> Result<Vec<Webhook>, Problems> {
    let outside = Outside { allowed, has_files: false };
    own_files::parse(file, text, &KIND, named(outside)).map(without_names)
}

/// The rules for a webhook beside its own file.
#[derive(Clone, Copy)]
struct Outside<'a> {
    /// Hosts that may be sent to; all where the list is empty.
    allowed: &'a [AllowedHost],
    /// Whether the files are looked at that it names.
    has_files: bool,
}

fn named(outside: Outside<'_>) -> impl FnMut(&mut Context<'_>, &Node) -> Option<(String, Webhook)> {
    move |context, node| one(context, node, outside).map(|webhook| (webhook.name.clone(), webhook))
}

fn without_names(found: Vec<(String, Webhook)>) -> Vec<Webhook> {
    found.into_iter().map(|(_, webhook)| webhook).collect()
}

fn one(context: &mut Context<'_>, node: &Node, outside: Outside<'_>) -> Option<Webhook> {
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
        .and_then(|(text, at)| target(context, &fields.key("url"), text, at, outside.allowed));
    let secret = fields.required_text(context, "secret_file").and_then(|(text, at)| {
        let (key, fix) =
            (fields.key("secret_file"), "make it with `openssl rand -hex 32`, mode 600");
        let look = |path: &Path| Secret::read(path).err().map(|error| Chain(&error).to_string());
        file(context, (&key, fix), (text, at), outside.has_files.then_some(&look))
    });
    let ca = fields.text(context, "ca_file").and_then(|(text, at)| {
        let (key, fix) = (fields.key("ca_file"), "name a PEM file with the receiver's authorities");
        file(context, (&key, fix), (text, at), outside.has_files.then_some(&authorities))
    });
    let (events, notices) = events(context, &fields);
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
    Some(Webhook { name: name?, target: target?, secret: secret?, events, notices, plugins, ca })
}

fn target(
    context: &mut Context<'_>,
    key: &str,
    text: &str,
    at: Place,
    allowed: &[AllowedHost],
) -> Option<Target> {
    let target = Target::parse_or_local(text).and_then(|target| target.check().map(|()| target));
    match target {
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

/// The reason why a file cannot be used; `None` where it can.
type Look<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// The path of a file that can be used, where it is looked at.
fn file(
    context: &mut Context<'_>,
    (key, fix): (&str, &str),
    (text, at): (&str, Place),
    look: Option<Look<'_>>,
) -> Option<PathBuf> {
    if !text.starts_with('/') || text.contains('\0') {
        context.problem(at, key, "it is no absolute path", "write the path from `/` on");
        return None;
    }
    let path = PathBuf::from(text);
    if let Some(problem) = look.and_then(|look| look(&path)) {
        context.problem(at, key, problem, fix);
        return None;
    }
    Some(path)
}

/// The reason why a file has no authorities.
fn authorities(path: &Path) -> Option<String> {
    let read = File::open(path).and_then(|file| {
        let mut text = String::new();
        file.take(AUTHORITIES).read_to_string(&mut text).map(|_| text)
    });
    match read {
        Err(error) => Some(format!("it cannot be read: {error}")),
        Ok(pem) if tls::certificates(&pem).is_none() => {
            Some("the file holds no certificate".to_owned())
        }
        Ok(_) => None,
    }
}

fn events(context: &mut Context<'_>, fields: &Fields<'_>) -> (BTreeSet<i32>, BTreeSet<Kind>) {
    let (mut events, mut notices) = (BTreeSet::new(), BTreeSet::new());
    for (name, at) in fields.texts(context, "events") {
        if let Some(kind) = Kind::of_name(name) {
            notices.insert(kind);
            continue;
        }
        match type_number(name) {
            Some(number) => {
                events.insert(number);
            }
            None => {
                let fix = suggestion(name, &kinds());
                context.problem(at, &fields.key("events"), "it is no kind of event", fix);
            }
        }
    }
    (events, notices)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use guest_agent_proto::agent_controlplane::PluginEventMessage;
    use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
    use guest_fleet_ledger::records::event::NoticePart;

    const GOOD: &str = r#"
[[webhook]]
name = "pager"
url = "https://hooks.example/fleet?token=abc"
secret_file = "/s"
events = ["PLUGIN_CRASHED", "ROLLOUT_HALTED", "AGENT_OFFLINE"]
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
        let event = |kind: PluginEventType, plugin: &str| {
            Content::Event(Box::new(PluginEventMessage {
                event_type: kind.into(),
                plugin_name: plugin.to_owned(),
                ..PluginEventMessage::default()
            }))
        };
        let notice = |kind: Kind, plugin: &str| {
            let plugin = plugin.to_owned();
            Content::Notice(kind, Box::new(NoticePart { plugin, ..NoticePart::default() }))
        };
        assert!(webhook.tells(&event(PluginEventType::PluginCrashed, "monitor")));
        assert!(!webhook.tells(&event(PluginEventType::PluginStarted, "monitor")));
        assert!(!webhook.tells(&event(PluginEventType::PluginCrashed, "other")));
        assert!(webhook.tells(&notice(Kind::RolloutHalted, "monitor")));
        assert!(!webhook.tells(&notice(Kind::RolloutHalted, "other")));
        assert!(!webhook.tells(&notice(Kind::RolloutDone, "monitor")));
        // It is of no plugin, and named.
        assert!(webhook.tells(&notice(Kind::AgentOffline, "")));
        let all = Webhook { events: BTreeSet::new(), notices: BTreeSet::new(), ..webhook.clone() };
        assert!(all.tells(&event(PluginEventType::PluginStarted, "monitor")));
        assert!(all.tells(&notice(Kind::RolloutDone, "monitor")));
        assert!(!all.tells(&notice(Kind::AgentOffline, "")));
    }

    #[test]
    fn files_and_addresses_are_looked_at_before_anything_is_sent() {
        let folder = tempfile::tempdir().expect("a directory");
        let file = |name: &str, content: &str, mode: u32| {
            let path = folder.path().join(name);
            std::fs::write(&path, content).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a mode");
            path.display().to_string()
        };
        let read = |text: &str| {
            let path = file("hooks.toml", text, 0o600);
            let problems = read(Path::new(&path), &[]);
            problems.map_or_else(
                |problems| problems.0.iter().map(|problem| format!("{problem}\n")).collect(),
                |_| "fine".to_owned(),
            )
        };
        let secret = file("secret", "0123456789abcdef", 0o600);
        let good = GOOD.replace("/s\"", &format!("{secret}\""));
        assert_eq!(read(&good), "fine");
        let open = file("open", "0123456789abcdef", 0o644);
        let text = read(&GOOD.replace("/s\"", &format!("{open}\"")));
        assert!(text.contains(":5:15: webhook.secret_file: others may read the secret"), "{text}");
        let text = read(GOOD);
        assert!(text.contains("webhook.secret_file: the secret `/s` cannot be read"), "{text}");
        let pem = file("ca.pem", "no certificate", 0o600);
        let text = read(&format!("{good}ca_file = \"{pem}\"\n"));
        assert!(text.contains("webhook.ca_file: the file holds no certificate"), "{text}");
        let text = read(&format!("{good}ca_file = \"/nonexistent\"\n"));
        assert!(text.contains("webhook.ca_file: it cannot be read"), "{text}");
        for bad in ["https://169.254.169.254", "http://192.0.2.1"] {
            let text = read(&good.replace("https://hooks.example", bad));
            assert!(text.contains("webhook.url: its host has the address"), "{text}");
        }
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
