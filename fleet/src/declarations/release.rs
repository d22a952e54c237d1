//! A release: an encoded `ConfigurePlugin` without its archive, and the archives.
//!
//! The same declaration has the same bytes whatever the order of its keys, because maps are sorted.

use std::collections::BTreeMap;

use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    Action, ConfigurePlugin, Plugin,
};
use guest_fleet_core::view::{ANY_ARCHITECTURE, Archive, Release, ReleaseName};
use prost::Message;

use super::fields::{Context, Fields, shown};
use super::files::ConfigFiles;
use super::problem::Place;
use super::tree::{Entry, Node};
use super::{config, manifest, values};

/// Architectures in Go style, as agents report them.
pub(crate) const ARCHITECTURES: [&str; 10] = [
    ANY_ARCHITECTURE,
    "amd64",
    "arm64",
    "386",
    "arm",
    "loong64",
    "mips64le",
    "ppc64le",
    "riscv64",
    "s390x",
];

const ALLOWED: [&str; 8] = [
    "plugin",
    "revision",
    "archives",
    "entry_point",
    "arguments",
    "config",
    "config_file",
    "manifest",
];

const BESIDE: &str =
    "publish the signature beside the archive as `<url>.minisig`; agents look for it there";
const HINTS: [(&str, &str); 5] = [
    ("signature", BESIDE),
    ("minisig", BESIDE),
    ("sha256", "write `archives = { any = { sha256 = \"…\" } }`"),
    ("url", "write `archives = { any = { sha256 = \"…\", url = \"…\" } }`"),
    ("select", "a release only says what can be installed; an `[[assignment]]` says where"),
];

const ENTRY_POINT_BYTES: usize = 1024;
const ARGUMENTS: usize = 1024;
const ARGUMENT_BYTES: usize = 128 << 10;
const URL_BYTES: usize = 16 << 10;

/// Reads one release; `None` when it has a problem.
pub(crate) fn read(
    context: &mut Context<'_>,
    node: &Node,
    files: &mut ConfigFiles,
) -> Option<(ReleaseName, Release)> {
    let fields = Fields::new(context, node, "release", &ALLOWED, &HINTS)?;
    let plugin = values::plugin(context, &fields);
    let revision = fields
        .required_text(context, "revision")
        .and_then(|(text, at)| values::revision(context, text, at, &fields.key("revision")));
    let archives = archives(context, &fields);
    let entry_point = entry_point(context, &fields);
    let arguments = arguments(context, &fields);
    let mut limits = match fields.get("manifest") {
        Some(node) => manifest::read(context, node, &fields.key("manifest")),
        None => None,
    }
    .unwrap_or_default();
    limits.config = configuration(context, &fields, files);
    let (plugin, revision, archives) = (plugin?, revision?, archives?);
    let order = ConfigurePlugin {
        action: Action::Install.into(),
        plugin: Some(Plugin {
            name: plugin.clone(),
            revision_id: revision.clone(),
            entry_point: entry_point?,
            arguments,
            gcs_signed_url: String::new(),
            checksum: String::new(),
        }),
        manifest: Some(limits),
    };
    Some((ReleaseName { plugin, revision }, Release { archives, order: order.encode_to_vec() }))
}

fn configuration(
    context: &mut Context<'_>,
    fields: &Fields<'_>,
    files: &mut ConfigFiles,
) -> Option<guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config> {
    use guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config;

    let key = fields.key("config_file");
    let Some((path, place)) = fields.text(context, "config_file") else {
        return config::read(context, fields.get("config")?, &fields.key("config"));
    };
    if fields.get("config").is_some() {
        let reason = "there is a `config`, too";
        context.problem(place, &key, reason, "remove one of them");
        return None;
    }
    match files.read(context.file, path) {
        Ok(text) => config::bounded(context, Config::StringConfig(text), place, &key),
        Err((reason, fix)) => {
            context.problem(place, &key, reason, fix);
            None
        }
    }
}

fn archives(context: &mut Context<'_>, fields: &Fields<'_>) -> Option<BTreeMap<String, Archive>> {
    let key = fields.key("archives");
    let node = fields.required(context, "archives")?;
    let entries = context.table(node, &key)?;
    if entries.is_empty() {
        let fix = "name one per architecture, or one as `any`";
        context.problem(node.place, &key, "there is no archive", fix);
        return None;
    }
    let mut archives = BTreeMap::new();
    let mut is_whole = true;
    for entry in entries {
        match archive(context, entry, &key) {
            Some(archive) => drop(archives.insert(entry.key.clone(), archive)),
            None => is_whole = false,
        }
    }
    is_whole.then_some(archives)
}

fn archive(context: &mut Context<'_>, entry: &Entry, path: &str) -> Option<Archive> {
    let architecture = entry.key.as_str();
    let is_known = ARCHITECTURES.contains(&architecture);
    if !is_known {
        let fix = match architecture {
            "x86_64" | "x64" => "write `amd64`".to_owned(),
            "aarch64" => "write `arm64`".to_owned(),
            "sha256" | "url" => {
                format!("name an architecture or `any`: `any = {{ {architecture} = … }}`")
            }
            _ => super::fields::suggestion(architecture, &ARCHITECTURES),
        };
        let reason = format!("{} is not an architecture", shown(architecture));
        context.problem(entry.place, path, reason, fix);
        return None;
    }
    let fields = Fields::new(
        context,
        &entry.node,
        format!("{path}.{architecture}"),
        &["sha256", "url"],
        &[("checksum", "write `sha256`"), ("digest", "write `sha256`"), ("signature", BESIDE)],
    )?;
    let digest = fields.required_text(context, "sha256").and_then(|(text, at)| {
        let is_digest = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_digest {
            let reason = format!("{} is not a SHA-256", shown(text));
            let fix = "write 64 hexadecimal digits, as `sha256sum ARCHIVE` prints them";
            context.problem(at, &fields.key("sha256"), reason, fix);
        }
        is_digest.then(|| text.to_ascii_lowercase())
    });
    let url = match fields.text(context, "url") {
        Some((text, at)) => url(context, text, at, &fields.key("url")),
        None if fields.get("url").is_some() => None,
        None => Some(String::new()),
    };
    Some(Archive { digest: digest?, url: url? })
}

fn url(context: &mut Context<'_>, text: &str, at: Place, key: &str) -> Option<String> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let has_host = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['/', '?', '#']));
    // The text is not repeated: it may be signed, and then it is a secret.
    let reason = if text.len() > URL_BYTES {
        format!("it is longer than {URL_BYTES} bytes")
    } else if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        "it has white space or control characters".to_owned()
    } else if !has_host {
        "it is not a whole URL with http:// or https://".to_owned()
    } else {
        return Some(text.to_owned());
    };
    let fix = "write the URL of the archive, or leave it out where the fleet's own artifact server has it";
    context.problem(at, key, reason, fix);
    None
}

fn entry_point(context: &mut Context<'_>, fields: &Fields<'_>) -> Option<String> {
    let (text, place) = fields.required_text(context, "entry_point")?;
    let reason = if text.starts_with('/') {
        "it is absolute"
    } else if text.len() > ENTRY_POINT_BYTES {
        "it is longer than 1024 bytes"
    } else if text.contains('\0') {
        "it has a NUL in it"
    } else if text.split('/').any(|part| part == "..") {
        "it has `..` in it"
    } else if text.split('/').all(|part| part.is_empty() || part == ".") {
        "it names no file"
    } else {
        return Some(text.to_owned());
    };
    let fix = "write the path of the program inside of the archive, such as `bin/monitor`";
    context.problem(place, &fields.key("entry_point"), reason, fix);
    None
}

fn arguments(context: &mut Context<'_>, fields: &Fields<'_>) -> Vec<String> {
    let texts = fields.texts(context, "arguments");
    let bytes: usize = texts.iter().map(|(text, _)| text.len()).sum();
    let large = if texts.len() > ARGUMENTS {
        Some(format!("there are {} arguments, and agents take {ARGUMENTS}", texts.len()))
    } else if bytes > ARGUMENT_BYTES {
        Some(format!("they have {bytes} bytes together, and agents take {ARGUMENT_BYTES}"))
    } else {
        None
    };
    let key = fields.key("arguments");
    if let Some(reason) = large {
        context.problem(fields.place(), &key, reason, "put what is so large into `config`");
    }
    for (_, place) in texts.iter().filter(|(text, _)| text.contains('\0')) {
        context.problem(*place, &key, "it has a NUL in it", "remove the NUL: no program gets one");
    }
    texts.into_iter().map(|(text, _)| text.to_owned()).collect()
}
