use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::model::spec::{Config, Difference};

const FOLDER: &str = "/usr/lib/guest-agent/plugins/ops-agent";

fn good() -> cfg::ConfigurePlugin {
    cfg::ConfigurePlugin {
        action: cfg::Action::Unspecified.into(),
        plugin: Some(cfg::Plugin {
            name: "ops-agent".to_owned(),
            revision_id: "image-7".to_owned(),
            entry_point: "bin/agent".to_owned(),
            ..Default::default()
        }),
        manifest: Some(cfg::Manifest {
            plugin_installation_type: pb::PluginInstallationType::LocalInstallation.into(),
            config: Some(cfg::manifest::Config::StringConfig("s3cr3t".to_owned())),
            ..Default::default()
        }),
    }
}

fn name() -> PluginName {
    "ops-agent".parse().unwrap()
}

fn decoded(
    change: impl FnOnce(&mut cfg::ConfigurePlugin),
) -> (Result<Arc<PluginSpec>, String>, Option<PathBuf>) {
    let mut order = good();
    change(&mut order);
    let mut hashed = None;
    let spec = decode_local(&order.encode_to_vec(), &name(), FOLDER, |path| {
        hashed = Some(path.to_owned());
        Ok(Sha256Digest::of(b"the entry point"))
    });
    (spec, hashed)
}

#[track_caller]
fn refused(expected: &str, change: impl FnOnce(&mut cfg::ConfigurePlugin)) {
    let reason = decoded(change).0.unwrap_err();
    assert!(reason.contains(expected), "{reason:?} does not say {expected:?}");
    assert!(!reason.contains("s3cr3t") && reason.len() < 600, "{reason:?}");
}

fn plugin(order: &mut cfg::ConfigurePlugin) -> &mut cfg::Plugin {
    order.plugin.as_mut().unwrap()
}

#[test]
fn a_good_manifest_becomes_a_spec_with_the_digest_of_its_entry_point() {
    let (spec, hashed) = decoded(|_| {});
    let spec = spec.unwrap();
    let files = LocalFiles { folder: FOLDER.into(), sha256: Sha256Digest::of(b"the entry point") };
    assert_eq!(spec.source, Source::Local(files));
    assert_eq!(hashed.unwrap(), Path::new(FOLDER).join("bin/agent"));
    assert_eq!(spec.config, Some(Config::Text("s3cr3t".into())));
    assert_eq!(spec.difference(&spec), Difference::Unnoticed);
}

#[test]
fn an_absolute_entry_point_is_taken_as_it_stands() {
    let (spec, hashed) = decoded(|order| plugin(order).entry_point = "/usr/sbin/agent".to_owned());
    assert_eq!(spec.unwrap().entry_point.as_str(), "/usr/sbin/agent");
    assert_eq!(hashed.unwrap(), Path::new("/usr/sbin/agent"));
}

#[test]
fn what_a_manifest_may_not_say_is_refused_by_name() {
    refused("action is not INSTALL", |order| order.action = cfg::Action::Remove.into());
    refused("action is not INSTALL", |order| order.action = 77);
    refused("does not name a plugin", |order| order.plugin = None);
    refused("\"other\"", |order| plugin(order).name = "other".to_owned());
    refused("LOCAL_INSTALLATION", |order| {
        order.manifest.as_mut().unwrap().plugin_installation_type = 7;
    });
    refused("revision", |order| plugin(order).revision_id = "../7".to_owned());
    refused("gcs_signed_url", |order| plugin(order).gcs_signed_url = "https://s3cr3t".to_owned());
    refused("'..'", |order| plugin(order).entry_point = "../sh".to_owned());
    refused("empty", |order| plugin(order).entry_point = String::new());
    refused("hexadecimal", |order| plugin(order).checksum = "abc".to_owned());
    refused("max_cpu", |order| {
        order.manifest.as_mut().unwrap().max_cpu_usage_percentage = -1;
    });
}

#[test]
fn a_manifest_is_local_without_saying_so() {
    let unset = pb::PluginInstallationType::DynamicInstallation.into();
    let silent = decoded(|order| {
        order.manifest.as_mut().unwrap().plugin_installation_type = unset;
    });
    assert_eq!(silent.0, decoded(|_| {}).0);
    let bare = decoded(|order| order.manifest = None).0.unwrap();
    assert!(bare.is_local() && bare.config.is_none(), "{bare:?}");
}

#[test]
fn without_a_revision_the_digest_of_the_entry_point_is_the_revision() {
    let spec = decoded(|order| plugin(order).revision_id.clear()).0.unwrap();
    let digest = Sha256Digest::of(b"the entry point");
    assert_eq!(spec.revision.as_str(), digest.to_string());
    assert_eq!(spec.source.sha256(), digest);
    // Everything else is as with a revision.
    let named = decoded(|_| {}).0.unwrap();
    let renamed = PluginSpec { revision: named.revision.clone(), ..PluginSpec::clone(&spec) };
    assert_eq!(renamed, *named);
    // Other content is another revision.
    let mut order = good();
    plugin(&mut order).revision_id.clear();
    let other =
        decode_local(&order.encode_to_vec(), &name(), FOLDER, |_| Ok(Sha256Digest::of(b"another")));
    assert!(!other.unwrap().is_revision_of(&spec));
}

#[test]
fn a_checksum_in_a_manifest_is_that_of_the_entry_point() {
    let of = |bytes: &[u8]| Sha256Digest::of(bytes).to_string();
    let right = decoded(|order| plugin(order).checksum = of(b"the entry point")).0;
    assert!(right.is_ok(), "{right:?}");
    refused("may be damaged", |order| plugin(order).checksum = of(b"another"));
}

#[test]
fn an_entry_point_that_cannot_be_hashed_refuses_the_manifest() {
    let bytes = good().encode_to_vec();
    let result = decode_local(&bytes, &name(), FOLDER, |_| Err("it is not there".to_owned()));
    assert_eq!(result.unwrap_err(), "it is not there");
}

proptest! {
    #[test]
    fn law_arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        drop(decode_local(&bytes, &name(), FOLDER, |_| Ok(Sha256Digest::of(b""))));
    }

    #[test]
    fn law_a_damaged_manifest_never_panics(at in 0usize..60, byte in any::<u8>()) {
        let mut bytes = good().encode_to_vec();
        let at = at % bytes.len();
        bytes[at] = byte;
        drop(decode_local(&bytes, &name(), FOLDER, |_| Ok(Sha256Digest::of(b""))));
    }
}
