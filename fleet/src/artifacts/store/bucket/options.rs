//! Where a bucket is, and who may use it.

use std::fmt;
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::{BackoffConfig, Certificate, ClientConfigKey, ClientOptions, RetryConfig};
use reqwest::Url;

use super::super::StoreError;

const CONNECTING: Duration = Duration::from_secs(10);
/// Longest that the bucket may be silent. A part of an upload has to be sent within it.
const SILENCE: Duration = Duration::from_secs(120);
const RETRIES: usize = 4;
/// Longest that a request is repeated.
const RETRYING: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const DEFAULT_REGION: &str = "us-east-1";

/// Where a bucket is, and who may use it.
#[derive(Clone, Debug)]
pub struct BucketOptions {
    /// Name of the bucket.
    pub bucket: String,
    /// Begin of all keys; may be empty.
    pub prefix: String,
    /// URL of the service; `None` for `AWS_ENDPOINT_URL`, or that of Amazon. Without TLS only
    /// on loopback.
    pub endpoint: Option<String>,
    /// Region; `None` for `AWS_REGION`, or `us-east-1`.
    pub region: Option<String>,
    /// Who uses it.
    pub credentials: Credentials,
    /// Certificates of further authorities that the service may be known by, PEM.
    pub authorities: Option<String>,
}

/// Who uses a bucket.
#[derive(Clone, Default)]
pub enum Credentials {
    /// What the variables `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and their like say, or else
    /// the role of the machine.
    #[default]
    Environment,
    /// The owner of this key.
    Key {
        /// Its public half.
        id: String,
        /// Its secret half.
        secret: String,
    },
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment => formatter.write_str("Environment"),
            Self::Key { id, .. } => {
                formatter.debug_struct("Key").field("id", id).finish_non_exhaustive()
            }
        }
    }
}

impl BucketOptions {
    /// A bucket with everything else from the environment.
    #[must_use]
    pub fn new(bucket: impl Into<String>, prefix: impl Into<String>) -> Self {
        Self {
            bucket: bucket.into(),
            prefix: prefix.into(),
            endpoint: None,
            region: None,
            credentials: Credentials::Environment,
            authorities: None,
        }
    }

    /// The bucket in an error.
    pub(super) fn place(&self) -> String {
        match self.prefix.as_str() {
            "" => format!("s3://{}", self.bucket),
            prefix => format!("s3://{}/{prefix}", self.bucket),
        }
    }

    pub(super) fn build(self) -> Result<AmazonS3, StoreError> {
        // The HTTP client takes the provider of the process. Somebody may have set it already.
        drop(rustls::crypto::ring::default_provider().install_default());
        let doing = format!("use the bucket {}", self.place());
        let mut builder = match &self.credentials {
            Credentials::Environment => AmazonS3Builder::from_env(),
            Credentials::Key { id, secret } => {
                AmazonS3Builder::new().with_access_key_id(id).with_secret_access_key(secret)
            }
        };
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(region) = &self.region {
            builder = builder.with_region(region);
        }
        if builder.get_config_value(&AmazonS3ConfigKey::Region).is_none() {
            builder = builder.with_region(DEFAULT_REGION);
        }
        let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
        let is_plain = endpoint.as_deref().is_some_and(|url| url.starts_with("http://"));
        if is_plain && !endpoint.as_deref().is_some_and(is_loopback) {
            let problem =
                "its endpoint has no TLS and is not on this machine; begin it with https://";
            return Err(StoreError::new(doing, problem));
        }
        let mut client = ClientOptions::new()
            .with_allow_http(is_plain)
            .with_connect_timeout(CONNECTING)
            .with_config(ClientConfigKey::ReadTimeout, format!("{} seconds", SILENCE.as_secs()))
            // An artifact may be large and the way to the bucket slow.
            .with_timeout_disabled();
        if let Some(pem) = &self.authorities {
            let certificates = Certificate::from_pem_bundle(pem.as_bytes());
            let certificates = certificates.map_err(|error| StoreError::new(&doing, error))?;
            for certificate in certificates {
                client = client.with_root_certificate(certificate);
            }
        }
        builder
            .with_bucket_name(&self.bucket)
            .with_client_options(client)
            .with_retry(RetryConfig {
                backoff: BackoffConfig { max_backoff: LONGEST_PAUSE, ..BackoffConfig::default() },
                max_retries: RETRIES,
                retry_timeout: RETRYING,
            })
            // Not every service has the call that deletes many.
            .with_disable_bulk_delete(true)
            .build()
            .map_err(|error| StoreError::new(doing, error))
    }
}

fn is_loopback(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    match url.host_str() {
        Some("localhost") => true,
        Some(host) => {
            let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
            address.is_ok_and(|address| address.is_loopback())
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(endpoint: &str) -> BucketOptions {
        BucketOptions {
            endpoint: Some(endpoint.to_owned()),
            credentials: Credentials::Key { id: "id".to_owned(), secret: "secret".to_owned() },
            ..BucketOptions::new("artifacts", "")
        }
    }

    #[test]
    fn a_bucket_without_tls_is_used_on_this_machine_only() {
        for good in ["http://127.0.0.1:9000", "http://localhost:9000", "http://[::1]:9000"] {
            assert!(options(good).build().is_ok(), "{good}");
        }
        for good in ["https://minio.example", "https://10.0.0.1"] {
            assert!(options(good).build().is_ok(), "{good}");
        }
        for bad in ["http://minio.example", "http://10.0.0.1", "http://127.0.0.1.example"] {
            let error = options(bad).build().expect_err(bad);
            assert!(error.source.to_string().contains("https://"), "{error:?}");
        }
    }

    #[test]
    fn the_secret_is_not_shown() {
        let options = BucketOptions {
            credentials: Credentials::Key { id: "id".to_owned(), secret: "hidden".to_owned() },
            ..BucketOptions::new("artifacts", "a/b")
        };
        assert!(!format!("{options:?}").contains("hidden"));
        assert_eq!(options.place(), "s3://artifacts/a/b");
    }
}
