//! Who signed what is installed.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use guest_agent_actors::model::id::{PluginName, RevisionId};

use super::folder::SIGNATURE;
use super::trust;

/// A signature is shorter than this, in bytes.
const SIGNATURE_MAX: u64 = 4096;

/// The id of the key that signed the archive of a revision, where its signature was necessary and
/// so was kept. Blocks.
pub(crate) fn signer(plugins: &Path, name: &PluginName, revision: &RevisionId) -> Option<String> {
    let path = plugins.join(name.as_str()).join(format!("{SIGNATURE}{revision}"));
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(SIGNATURE_MAX).read_to_end(&mut bytes).ok()?;
    trust::check_signature(&bytes).ok().map(|key| key.to_string())
}
