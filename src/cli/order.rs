//! Orders as people write them: protobuf JSON in a file, what `pack` made, or flags.
//!
//! All three become JSON first and pass through the decoder of the control plane: it takes
//! snake_case and camelCase names, durations as `"10s"` and enums by name. Its errors name the
//! field, line and column, never the value.

use std::path::{Path, PathBuf};

use guest_agent_actors::model::origin::Origin;
use guest_agent_actors::plugin::event::Order;
use guest_agent_actors::wire::{self, NamedOrder};
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    Action, ConfigurePlugin, Manifest, Plugin,
};
use guest_agent_proto::json::{
    JsonError, configure_plugin_from_json, configure_plugin_states_from_json,
};
use prost::Message;
use serde_json::Value;

pub(super) use crate::manifest::package::{file_url, install_json};

/// What stands for the standard input in place of a file's name.
const STANDARD_INPUT: &str = "-";

/// Most bytes of an order that are read.
const FILE_MAX: u64 = 16 << 20;

/// Why a file is not an order.
#[derive(Debug, thiserror::Error)]
pub(super) enum OrderError {
    #[error("failed to read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} is larger than {FILE_MAX} bytes", path.display())]
    TooLarge { path: PathBuf },
    #[error("{} is not an order", path.display())]
    Json {
        path: PathBuf,
        #[source]
        source: JsonError,
    },
    #[error("{} is not text in UTF-8", path.display())]
    Text { path: PathBuf },
    #[error("{} is neither a ConfigurePlugin (with a \"plugin\") nor a ConfigurePluginStates", path.display())]
    Shape { path: PathBuf },
    #[error(
        "{} has no {} beside it: an archive is installed with the order that `pack` wrote",
        archive.display(),
        order.display()
    )]
    NoOrder { archive: PathBuf, order: PathBuf },
    #[error("the order in {} {reason}", path.display())]
    Bundle { path: PathBuf, reason: &'static str },
    #[error("{} does not hold exactly one archive with its .json, as `pack` writes them", path.display())]
    Folder { path: PathBuf },
}

/// The path of an archive's order.
pub(super) fn order_beside(archive: &Path) -> PathBuf {
    let mut name = archive.as_os_str().to_owned();
    name.push(".json");
    name.into()
}

/// Whether a path stands for the standard input.
pub(super) fn is_standard_input(path: &Path) -> bool {
    path == Path::new(STANDARD_INPUT)
}

/// The orders in a path: a JSON file, an archive with its order beside it, a directory with one
/// such pair, or `-` for JSON from the standard input.
pub(super) fn read(path: &Path) -> Result<Vec<ConfigurePlugin>, OrderError> {
    if is_standard_input(path) {
        return of_bytes(Path::new("standard input"), std::io::stdin().lock());
    }
    if path.is_dir() {
        return of_archive(&archive_in(path)?);
    }
    if path.extension().is_some_and(|extension| extension == "json") || !looks_packed(path) {
        return of_json(path);
    }
    of_archive(path)
}

/// Turns one ConfigurePlugin in JSON into the message.
pub(super) fn decode(value: &Value) -> Result<ConfigurePlugin, JsonError> {
    configure_plugin_from_json(&value.to_string())
}

/// The digest that the agent will report for the configuration of an order; empty for none.
pub(super) fn config_hash(order: &ConfigurePlugin) -> String {
    let config = order.manifest.as_ref().and_then(|manifest| manifest.config.clone());
    // Only the digest of the configuration is used, so the rest of the order does not matter.
    let plugin = Plugin { name: "any".to_owned(), ..Plugin::default() };
    let mut apply = ConfigurePlugin {
        plugin: Some(plugin),
        manifest: Some(Manifest { config, ..Manifest::default() }),
        ..ConfigurePlugin::default()
    };
    apply.set_action(Action::Apply);
    let bytes = ConfigurePluginStates { configure_plugins: vec![apply] }.encode_to_vec();
    let orders = wire::decode_orders(&bytes, Origin::Local).unwrap_or_default();
    match orders.into_iter().next() {
        Some(Ok(NamedOrder { order: Order::Apply(Some(config)), .. })) => {
            config.digest().to_string()
        }
        Some(_) | None => String::new(),
    }
}

/// The order of a bundle: to install one plugin from the archive that is in the bundle with it.
pub(super) fn of_bundle(path: &Path, manifest: &str) -> Result<ConfigurePlugin, OrderError> {
    let wrong = |reason| OrderError::Bundle { path: path.to_owned(), reason };
    let mut orders = of_text(path, manifest)?;
    let (Some(order), true) = (orders.pop(), orders.is_empty()) else {
        return Err(wrong("is not exactly one; pack a bundle for each plugin"));
    };
    if order.action() != Action::Install {
        return Err(wrong("is not to install anything"));
    }
    let Some(plugin) = &order.plugin else { return Err(wrong("names no plugin")) };
    if plugin.checksum.is_empty() {
        return Err(wrong("has no checksum of the archive"));
    }
    if !plugin.gcs_signed_url.is_empty() {
        return Err(wrong("names an archive somewhere else"));
    }
    Ok(order)
}

fn of_json(path: &Path) -> Result<Vec<ConfigurePlugin>, OrderError> {
    let file = std::fs::File::open(path)
        .map_err(|source| OrderError::Read { path: path.to_owned(), source })?;
    of_bytes(path, file)
}

fn of_bytes(path: &Path, from: impl std::io::Read) -> Result<Vec<ConfigurePlugin>, OrderError> {
    let text = String::from_utf8(bounded(path, from)?)
        .map_err(|_| OrderError::Text { path: path.to_owned() })?;
    of_text(path, &text)
}

fn of_text(path: &Path, text: &str) -> Result<Vec<ConfigurePlugin>, OrderError> {
    let wrong = |source| OrderError::Json { path: path.to_owned(), source };
    let value: Option<Value> = serde_json::from_str(text).ok();
    let has = |key: &str| value.as_ref().is_some_and(|value| value.get(key).is_some());
    let mut orders = if has("configurePlugins") || has("configure_plugins") {
        configure_plugin_states_from_json(text).map_err(wrong)?.configure_plugins
    } else if has("plugin") || value.is_none() {
        // The decoder refuses text that is not JSON, and names the place.
        vec![configure_plugin_from_json(text).map_err(wrong)?]
    } else {
        return Err(OrderError::Shape { path: path.to_owned() });
    };
    for order in &mut orders {
        // A ConfigurePlugin without an action that is given to `install` means INSTALL.
        if order.action() == Action::Unspecified {
            order.set_action(Action::Install);
        }
    }
    Ok(orders)
}

fn of_archive(archive: &Path) -> Result<Vec<ConfigurePlugin>, OrderError> {
    let order = order_beside(archive);
    if !order.exists() {
        return Err(OrderError::NoOrder { archive: archive.to_owned(), order });
    }
    let mut orders = of_json(&order)?;
    // The pair may have been moved since it was made, so the URL in it is not trusted.
    let url = file_url(archive)
        .map_err(|source| OrderError::Read { path: archive.to_owned(), source })?;
    for plugin in orders.iter_mut().filter_map(|order| order.plugin.as_mut()) {
        plugin.gcs_signed_url.clone_from(&url);
    }
    Ok(orders)
}

fn archive_in(folder: &Path) -> Result<PathBuf, OrderError> {
    let failed = |source| OrderError::Read { path: folder.to_owned(), source };
    let mut found = Vec::new();
    for member in std::fs::read_dir(folder).map_err(failed)? {
        let path = member.map_err(failed)?.path();
        if path.is_file() && order_beside(&path).is_file() {
            found.push(path);
        }
    }
    match found.pop() {
        Some(archive) if found.is_empty() => Ok(archive),
        _ => Err(OrderError::Folder { path: folder.to_owned() }),
    }
}

/// Whether a file begins like a gzip or zstd stream.
fn looks_packed(path: &Path) -> bool {
    use std::io::Read;

    let mut magic = [0u8; 4];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && (magic.starts_with(&[0x1f, 0x8b]) || magic == [0x28, 0xb5, 0x2f, 0xfd])
}

/// A file, up to a bound.
pub(super) fn bytes_of(path: &Path) -> Result<Vec<u8>, OrderError> {
    let file = std::fs::File::open(path)
        .map_err(|source| OrderError::Read { path: path.to_owned(), source })?;
    bounded(path, file)
}

fn bounded(path: &Path, from: impl std::io::Read) -> Result<Vec<u8>, OrderError> {
    use std::io::Read;

    let failed = |source| OrderError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    from.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(OrderError::TooLarge { path: path.to_owned() });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn orders(text: &str) -> Result<Vec<ConfigurePlugin>, OrderError> {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("order.json");
        std::fs::write(&path, text).expect("a file");
        read(&path)
    }

    #[test]
    fn both_spellings_of_field_names_are_read() {
        let snake = r#"{"action":"INSTALL","plugin":{"name":"a","revision_id":"1",
            "gcs_signed_url":"https://x/y"},"manifest":{"stop_timeout":"1.5s",
            "struct_config":{"k":[1,"two"]},"plugin_type":"ONE_SHOT"}}"#;
        let camel = r#"{"action":"INSTALL","plugin":{"name":"a","revisionId":"1",
            "gcsSignedUrl":"https://x/y"},"manifest":{"stopTimeout":"1.500s",
            "structConfig":{"k":[1,"two"]},"pluginType":2}}"#;
        let snake = orders(snake).expect("snake_case");
        assert_eq!(snake, orders(camel).expect("camelCase"));
        let manifest = snake[0].manifest.as_ref().expect("a manifest");
        assert_eq!(manifest.stop_timeout.expect("a timeout").nanos, 500_000_000);
    }

    #[test]
    fn a_list_of_orders_is_read_and_silence_means_install() {
        let text = r#"{"configurePlugins":[{"plugin":{"name":"a"}},
            {"action":"REMOVE","plugin":{"name":"b"}}]}"#;
        let actions: Vec<_> =
            orders(text).expect("orders").iter().map(ConfigurePlugin::action).collect();
        assert_eq!(actions, [Action::Install, Action::Remove]);
    }

    #[test]
    fn what_is_no_order_is_refused() {
        assert!(matches!(orders("{"), Err(OrderError::Json { .. })));
        assert!(matches!(orders("{}"), Err(OrderError::Shape { .. })));
        let unknown = orders(r#"{"plugin":{"nmae":"a"}}"#).expect_err("an unknown field");
        let OrderError::Json { source, .. } = unknown else { panic!("{unknown}") };
        assert!(source.to_string().contains("nmae"), "{source}");
        assert_eq!((source.field.as_str(), source.line), ("plugin.nmae", 1));
        let secret = orders(r#"{"plugin":{"name":"a","arguments":[{"k":"hidden"}]}}"#);
        let OrderError::Json { source, .. } = secret.expect_err("a wrong value") else {
            panic!("not JSON")
        };
        assert!(!source.to_string().contains("hidden"), "{source}");
    }

    #[test]
    fn an_archive_is_installed_from_where_it_is_now() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let archive = folder.path().join("a b.tar.gz");
        std::fs::write(&archive, [0x1f, 0x8b, 0, 0]).expect("a file");
        assert!(matches!(read(&archive), Err(OrderError::NoOrder { .. })));
        let json = install_json("a", "1", "file:///elsewhere", "00", "run", &[]);
        std::fs::write(order_beside(&archive), json.to_string()).expect("a file");
        for path in [archive.as_path(), folder.path()] {
            let orders = read(path).expect("an order");
            let url = &orders[0].plugin.as_ref().expect("a plugin").gcs_signed_url;
            assert!(url.starts_with("file:///") && url.ends_with("/a%20b.tar.gz"), "{url}");
        }
    }

    #[test]
    fn a_directory_without_one_archive_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        assert!(matches!(read(folder.path()), Err(OrderError::Folder { .. })));
    }

    #[test]
    fn urls_escape_what_has_a_meaning() {
        let url = file_url(Path::new("/a b/ü?#%")).expect("an absolute path");
        assert_eq!(url, "file:///a%20b/%C3%BC%3F%23%25");
    }
}
