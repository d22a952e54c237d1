//! Addresses in configuration keys: a text, which is empty where no address is set.

/// For `#[serde(with)]`: the control plane's endpoint, `None` as an empty text.
pub(super) mod control {
    use std::fmt;

    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    use crate::net::endpoint::Endpoint;

    pub(in crate::config) fn serialize<S: Serializer>(
        endpoint: &Option<Endpoint>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match endpoint {
            Some(endpoint) => serializer.collect_str(endpoint),
            None => serializer.serialize_str(""),
        }
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Endpoint>, D::Error> {
        deserializer.deserialize_str(Text)
    }

    struct Text;

    impl Visitor<'_> for Text {
        type Value = Option<Endpoint>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an endpoint, such as \"https://HOST:PORT\"")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Option<Endpoint>, E> {
            if text.is_empty() {
                return Ok(None);
            }
            text.parse().map(Some).map_err(E::custom)
        }
    }
}

/// For `#[serde(with)]`: a socket address, `None` as an empty text.
pub(super) mod listen {
    use std::fmt;
    use std::net::SocketAddr;

    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    pub(in crate::config) fn serialize<S: Serializer>(
        address: &Option<SocketAddr>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match address {
            Some(address) => serializer.collect_str(address),
            None => serializer.serialize_str(""),
        }
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<SocketAddr>, D::Error> {
        deserializer.deserialize_str(Text)
    }

    struct Text;

    impl Visitor<'_> for Text {
        type Value = Option<SocketAddr>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an address and port, such as \"127.0.0.1:9464\"")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Option<SocketAddr>, E> {
            if text.is_empty() {
                return Ok(None);
            }
            text.parse().map(Some).map_err(|_| {
                E::custom(format_args!(
                    "{text:?} is not an address with a port; write it like \"127.0.0.1:9464\""
                ))
            })
        }
    }
}
