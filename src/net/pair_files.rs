//! Certificates and their keys in files, for tests.

use std::path::Path;

use guest_agent_serve_kit::certificate::PairFiles;
use guest_agent_testing_kit::certificate::{self, Years};

/// The names of the files in a folder.
pub(crate) fn files(folder: &Path) -> PairFiles {
    PairFiles { certificate: folder.join("tls.crt"), key: folder.join("tls.key") }
}

/// Writes a certificate for this machine that is valid in these years, and its key.
pub(crate) fn write(files: &PairFiles, years: Years) {
    certificate::write(&files.certificate, &files.key, years);
}
