//! Where the archives of a fleet are on the server that gives them out: `/artifacts/<plugin>/<SHA-256>`.
//! Orders name them and uploads go there.

use std::fmt::Display;

use crate::escape::escaped;

/// The folder of all artifacts.
pub const FOLDER: &str = "/artifacts/";

/// The path of an artifact, behind the address of a server. `digest` is its SHA-256 as 64 lower-case
/// hexadecimal digits.
#[must_use]
pub fn path(plugin: &str, digest: impl Display) -> String {
    format!("{FOLDER}{}/{digest}", escaped(plugin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_is_one_part_of_the_path_whatever_its_name() {
        assert_eq!(path("echo-2.x_y", "0f"), "/artifacts/echo-2.x_y/0f");
        assert_eq!(path("../a b", "0f"), "/artifacts/..%2Fa%20b/0f");
    }
}
