//! Where artifacts are kept, as people write it: `/a/directory` or `s3://bucket/prefix`.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use super::store::{ArtifactStore, Bounds, BucketOptions, BucketStore, DirectoryStore, StoreError};

/// Where artifacts are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A directory of this machine.
    Directory(PathBuf),
    /// A bucket. Its region, its endpoint and its credentials come from the environment.
    Bucket {
        /// Name of the bucket.
        bucket: String,
        /// Begin of all keys; may be empty.
        prefix: String,
    },
}

impl Place {
    /// Opens the store.
    ///
    /// # Errors
    /// The store cannot be used.
    pub async fn open(&self, bounds: Bounds) -> Result<Arc<dyn ArtifactStore>, StoreError> {
        match self {
            Self::Directory(root) => {
                let (root, shown) = (root.clone(), self.to_string());
                let opening =
                    tokio::task::spawn_blocking(move || DirectoryStore::open(root, bounds));
                let opened = opening.await.map_err(|error| StoreError::new(shown, error))?;
                Ok(Arc::new(opened?))
            }
            Self::Bucket { bucket, prefix } => {
                let options = BucketOptions::new(bucket, prefix);
                Ok(Arc::new(BucketStore::open(options, bounds).await?))
            }
        }
    }
}

impl FromStr for Place {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.strip_prefix("s3://") {
            Some(rest) => {
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                let prefix = prefix.trim_matches('/').to_owned();
                Self::Bucket { bucket: bucket.to_owned(), prefix }
            }
            None => Self::Directory(text.into()),
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(root) => write!(formatter, "{}", root.display()),
            Self::Bucket { bucket, prefix } if prefix.is_empty() => {
                write!(formatter, "s3://{bucket}")
            }
            Self::Bucket { bucket, prefix } => write!(formatter, "s3://{bucket}/{prefix}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_directory_or_a_bucket() {
        let bucket = |bucket: &str, prefix: &str| Place::Bucket {
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
        };
        for (text, place) in [
            ("/var/lib/artifacts", Place::Directory("/var/lib/artifacts".into())),
            ("s3://fleet", bucket("fleet", "")),
            ("s3://fleet/", bucket("fleet", "")),
            ("s3://fleet/a/b/", bucket("fleet", "a/b")),
        ] {
            assert_eq!(text.parse::<Place>(), Ok(place));
        }
    }
}
