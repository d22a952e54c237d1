//! Makes archives.
