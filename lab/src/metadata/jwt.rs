//! Identity tokens without a real signature: enough for an agent, which reads only their expiry.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;

/// A token for an audience.
pub(super) fn token(audience: &str, instance: &str, life: Duration) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let header = json!({ "alg": "none", "typ": "JWT" });
    let claims = json!({
        "aud": audience,
        "exp": (now + life).as_secs(),
        "iat": now.as_secs(),
        "iss": "https://metadata.invalid",
        // No two tokens may be equal.
        "jti": uuid::Uuid::new_v4().to_string(),
        "google": { "compute_engine": { "instance_id": instance } },
    });
    let signature = base64url(b"nobody signed this");
    format!("{}.{}.{signature}", part(&header), part(&claims))
}

fn part(value: &serde_json::Value) -> String {
    base64url(value.to_string().as_bytes())
}

/// Base64 for URLs, without padding (RFC 4648, section 5).
fn base64url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..=chunk.len() {
            let index = usize::try_from(bits >> (18 - 6 * at) & 63).unwrap_or(0);
            text.push(char::from(ALPHABET[index]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64url;

    #[test]
    fn bytes_are_written_without_padding() {
        for (bytes, text) in
            [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("??>", "Pz8-")]
        {
            assert_eq!(base64url(bytes.as_bytes()), text);
        }
    }
}
