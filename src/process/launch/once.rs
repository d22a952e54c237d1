//! A one-shot plugin gets its configuration in a file, in addition to the arguments and the
//! environment of every plugin, because the agent makes no calls to it.
//!
//! The launcher calls this on a blocking thread before each run. The file is in the plugin's own
//! folder, which only its user may enter, and is replaced as a whole; a plugin that has no
//! configuration any more has no file either.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use guest_agent_actors::model::spec::Config;
use guest_agent_plugin::ServiceConfig;
use guest_agent_serve_kit::replace::remove_if_there;
use prost::Message;

use crate::process::sandbox::{Owner, give_file};

/// Names the file with the configuration in the environment of a one-shot plugin.
const CONFIG_VARIABLE: &str = "GUEST_AGENT_CONFIG";

/// The format of the configuration: `text`, or `json` for a structure.
const FORM_VARIABLE: &str = "GUEST_AGENT_CONFIG_FORM";

/// The file's name. A leading dot, so that it is not taken for the plugin's own.
const FILE: &str = ".guest-agent-config";

/// Writes the configuration file for a run as this user. Returns the environment variables that
/// name the file and its form to the plugin. Blocks.
///
/// # Errors
/// The folder cannot be written.
pub(super) fn hand_over(
    state_dir: &Path,
    config: Option<&Config>,
    owner: Owner,
) -> io::Result<Vec<(OsString, OsString)>> {
    let path = state_dir.join(FILE);
    let Some(config) = config else {
        remove_if_there(&path)?;
        return Ok(Vec::new());
    };
    let (form, content) = text_of(config)?;
    write(&path, content.as_bytes(), owner)?;
    Ok(vec![(CONFIG_VARIABLE.into(), path.into()), (FORM_VARIABLE.into(), form.into())])
}

/// The form and the text of a configuration, secrets included; a structure is JSON.
///
/// # Errors
/// The bytes do not decode as a structure, which those of an order always do.
pub(crate) fn text_of(config: &Config) -> io::Result<(&'static str, String)> {
    match config {
        Config::Text(text) => Ok(("text", text.to_string())),
        Config::Struct(bytes) => {
            let fields = prost_types::Struct::decode(&**bytes)
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not a structure"))?;
            Ok(("json", ServiceConfig::Struct(fields).to_text()))
        }
    }
}

/// Replaces the file. A link or a pipe that the plugin put in its place is not followed.
fn write(path: &Path, content: &[u8], owner: Owner) -> io::Result<()> {
    let fresh: PathBuf = path.with_extension("new");
    remove_if_there(&fresh)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.write_all(content)?;
    give_file(&file, owner)?;
    fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn form(told: &[(OsString, OsString)]) -> Option<&str> {
        told.iter().find(|(key, _)| key == FORM_VARIABLE)?.1.to_str()
    }

    #[test]
    fn a_configuration_is_readable_by_its_owner_only_and_follows_every_change() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(FILE);
        let text = Config::Text("secret".into());
        let told = hand_over(dir.path(), Some(&text), Owner::me()).expect("written");
        assert_eq!(form(&told), Some("text"));
        assert_eq!(fs::read_to_string(&path).expect("read"), "secret");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        let number = prost_types::value::Kind::NumberValue(8.0);
        let fields = [("port".to_owned(), prost_types::Value { kind: Some(number) })];
        let fields = prost_types::Struct { fields: fields.into() };
        let structure = Config::Struct(fields.encode_to_vec().into());
        let told = hand_over(dir.path(), Some(&structure), Owner::me()).expect("written");
        assert_eq!(form(&told), Some("json"));
        assert_eq!(fs::read_to_string(&path).expect("read"), r#"{"port":8}"#);

        assert_eq!(hand_over(dir.path(), None, Owner::me()).expect("removed"), []);
        assert!(!path.exists());
    }

    #[test]
    fn a_link_in_its_place_is_replaced_and_not_followed() {
        let dir = tempfile::tempdir().expect("a directory");
        let outside = dir.path().join("outside");
        fs::write(&outside, "untouched").expect("written");
        for name in [FILE, ".guest-agent-config.new"] {
            std::os::unix::fs::symlink(&outside, dir.path().join(name)).expect("linked");
        }
        let text = Config::Text("secret".into());
        hand_over(dir.path(), Some(&text), Owner::me()).expect("written");
        assert_eq!(fs::read_to_string(&outside).expect("read"), "untouched");
        assert_eq!(fs::read_to_string(dir.path().join(FILE)).expect("read"), "secret");
    }
}
