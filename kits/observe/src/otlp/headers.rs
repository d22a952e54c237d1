//! Headers that a collector requires, such as a token. They are in a file of their own, which is
//! read for every connection, and are never shown.

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};

/// Largest file that is read, in bytes.
const FILE_MAX: u64 = 64 << 10;

/// Why the headers cannot be used. Never contains the value of one.
#[derive(Debug, thiserror::Error)]
pub enum HeadersError {
    /// The file cannot be read.
    #[error("failed to read {path}")]
    Read {
        /// The file.
        path: String,
        /// The error of the operating system.
        #[source]
        error: std::io::Error,
    },
    /// The file is too large to hold headers.
    #[error("{path} is larger than {FILE_MAX} bytes")]
    TooLarge {
        /// The file.
        path: String,
    },
    /// A line is not a header.
    #[error("line {line} of {path} is not a header; write NAME: VALUE, the name in lower case")]
    Line {
        /// The file.
        path: String,
        /// Which line, from 1.
        line: usize,
    },
}

/// Reads the headers of a file. Blocks.
pub(super) fn read(path: &Path) -> Result<MetadataMap, HeadersError> {
    let name = || path.display().to_string();
    let mut text = String::new();
    let opened = std::fs::File::options()
        .read(true)
        // Opening a pipe without a writer would block the thread for ever.
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(path);
    opened
        .and_then(|file| file.take(FILE_MAX + 1).read_to_string(&mut text))
        .map_err(|error| HeadersError::Read { path: name(), error })?;
    if text.len() as u64 > FILE_MAX {
        return Err(HeadersError::TooLarge { path: name() });
    }
    parse(&text).map_err(|line| HeadersError::Line { path: name(), line })
}

/// One header per line; empty lines and lines that begin with `#` are skipped. Fails with the
/// number of the line that is not a header.
fn parse(text: &str) -> Result<MetadataMap, usize> {
    let mut headers = MetadataMap::new();
    for (line, number) in text.lines().zip(1_usize..) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once(':').ok_or(number)?;
        let name = name.trim().parse::<AsciiMetadataKey>().map_err(|_| number)?;
        let mut value = value.trim().parse::<AsciiMetadataValue>().map_err(|_| number)?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_and_what_is_none_is_named_by_its_line() {
        let headers =
            parse("# a token\n\nauthorization: Bearer a:b\nx-scope: 1\n").expect("headers");
        let value = headers.get("authorization").expect("it is there");
        assert_eq!(value.to_str().ok(), Some("Bearer a:b"));
        assert!(value.is_sensitive() && !format!("{headers:?}").contains("Bearer"));
        assert_eq!(parse("a: b\nno header\n").err(), Some(2));
        assert_eq!(parse("Ünïcode: b\n").err(), Some(1));
    }

    #[test]
    fn a_file_that_is_too_large_or_missing_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("headers");
        assert!(matches!(read(&path), Err(HeadersError::Read { .. })));
        std::fs::write(&path, "a: b\n".repeat(20_000)).expect("written");
        assert!(matches!(read(&path), Err(HeadersError::TooLarge { .. })));
    }

    proptest::proptest! {
        #[test]
        fn law_no_text_is_a_panic(text in "[a-zA-Z:# \n\t\u{0}-\u{ff}]{0,80}") {
            let lines = text.lines().count();
            proptest::prop_assert!(parse(&text).err().is_none_or(|line| line <= lines));
        }
    }
}
