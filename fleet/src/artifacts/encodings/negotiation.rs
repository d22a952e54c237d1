//! Which form of an artifact a request asks for: RFC 9110 section 12.5.3, RFC 9842 section 2.2.
//! Pure.

use http::HeaderMap;
use http::header::ACCEPT_ENCODING;
use sfv::{Item, Parser};

use super::files::Form;
use crate::artifacts::digest::Digest;

/// The header with the checksum of the dictionary that a client has.
const AVAILABLE_DICTIONARY: &str = "available-dictionary";

/// The quality of what is named without one, in thousandths.
const FULL: u16 = 1000;

/// What a request accepts. Qualities are in thousandths; 0 is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Accepted {
    identity: u16,
    zstd: u16,
    dcz: u16,
    dictionary: Option<Digest>,
}

impl Accepted {
    /// Reads the headers of a request. Without `Accept-Encoding` the artifact is wanted as it is.
    pub(super) fn read(headers: &HeaderMap) -> Self {
        let (mut identity, mut zstd, mut dcz, mut others) = (None, None, None, None);
        for value in headers.get_all(ACCEPT_ENCODING) {
            for part in value.to_str().unwrap_or_default().split(',') {
                let (name, quality) = coding(part);
                let of = match name {
                    "*" => &mut others,
                    name if name.eq_ignore_ascii_case("zstd") => &mut zstd,
                    name if name.eq_ignore_ascii_case("dcz") => &mut dcz,
                    name if name.eq_ignore_ascii_case("identity") => &mut identity,
                    _ => continue,
                };
                *of = Some(quality);
            }
        }
        Self {
            // What is not named is worth less than all that is.
            identity: identity.or(others).unwrap_or(1),
            zstd: zstd.or(others).unwrap_or_default(),
            dcz: dcz.or(others).unwrap_or_default(),
            dictionary: dictionary(headers),
        }
    }

    /// The best form that is accepted and there. `None` is the artifact itself, also where that is
    /// not accepted: it is better than nothing.
    pub(super) fn choose<T>(self, find: impl Fn(Form) -> Option<T>) -> Option<T> {
        let delta = self.dictionary.map(|dictionary| (self.dcz, Form::Delta(dictionary)));
        let mut wanted: Vec<_> = delta.into_iter().chain([(self.zstd, Form::Zstd)]).collect();
        // Of two that are worth the same, the smaller one.
        wanted.sort_by_key(|(quality, _)| std::cmp::Reverse(*quality));
        wanted
            .into_iter()
            .filter(|(quality, _)| *quality > 0 && *quality >= self.identity)
            .find_map(|(_, form)| find(form))
    }
}

/// The name and the quality of one coding.
fn coding(part: &str) -> (&str, u16) {
    let mut parameters = part.split(';').map(str::trim);
    let name = parameters.next().unwrap_or_default();
    let quality = parameters.find_map(|parameter| {
        let (key, value) = parameter.split_once('=')?;
        key.trim().eq_ignore_ascii_case("q").then(|| thousandths(value.trim()))
    });
    (name, quality.unwrap_or(FULL))
}

/// A quality: 0 to 1 with up to three digits. What is not one is 0.
fn thousandths(text: &str) -> u16 {
    let (whole, digits) = text.split_once('.').unwrap_or((text, ""));
    let is_number = digits.len() <= 3 && digits.bytes().all(|byte| byte.is_ascii_digit());
    match whole {
        "1" if is_number && digits.bytes().all(|byte| byte == b'0') => FULL,
        "0" if is_number => format!("{digits:0<3}").parse().unwrap_or_default(),
        _ => 0,
    }
}

fn dictionary(headers: &HeaderMap) -> Option<Digest> {
    let mut values = headers.get_all(AVAILABLE_DICTIONARY).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let item: Item = Parser::new(value.as_bytes()).parse().ok()?;
    Some(Digest::from_bytes(item.bare_item.as_byte_sequence()?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn hash(digest: &Digest) -> String {
        format!(":{}:", STANDARD.encode(digest.as_bytes()))
    }

    /// The form that is chosen where all are there.
    #[track_caller]
    fn check(accepted: &[&str], dictionary: Option<&str>, expected: Option<Form>) {
        let mut headers = HeaderMap::new();
        for value in accepted {
            headers.append(ACCEPT_ENCODING, HeaderValue::from_str(value).expect("a value"));
        }
        if let Some(value) = dictionary {
            headers.insert(AVAILABLE_DICTIONARY, HeaderValue::from_str(value).expect("a value"));
        }
        assert_eq!(Accepted::read(&headers).choose(Some), expected, "{accepted:?}");
    }

    #[test]
    fn the_smallest_form_that_is_accepted_is_chosen() {
        let digest = Digest::of(b"a former artifact");
        let known = hash(&digest);
        let known = Some(known.as_str());
        let delta = Some(Form::Delta(digest));
        check(&["dcz, zstd"], known, delta);
        check(&["zstd", "dcz"], known, delta);
        check(&["gzip, deflate, br, zstd, dcb, dcz"], known, delta);
        check(&["*"], known, delta);
        check(&["dcz, zstd"], None, Some(Form::Zstd));
        check(&["DCZ;q=0.5, ZSTD ; Q=1.000"], known, Some(Form::Zstd));
        check(&["dcz;q=0, *"], known, Some(Form::Zstd));
        check(&["zstd;q=0.001"], known, Some(Form::Zstd));
    }

    #[test]
    fn who_does_not_ask_gets_the_artifact_as_it_is() {
        let digest = Digest::of(b"a former artifact");
        let known = hash(&digest);
        for accepted in [
            &[][..],
            &[""],
            &["identity"],
            &["gzip"],
            &["dcz;q=0, zstd;q=0"],
            &["*;q=0"],
            &["zstd;q=0.5, identity"],
            &["zstd;q=2"],
            &["zstd;q=-1"],
            &["zstd;q=0.0001"],
            &["zstd;q="],
        ] {
            check(accepted, Some(&known), None);
        }
    }

    #[test]
    fn what_is_not_one_checksum_is_no_dictionary() {
        let known = hash(&Digest::of(b"a former artifact"));
        for value in [
            String::new(),
            ":".to_owned(),
            "::".to_owned(),
            known.trim_matches(':').to_owned(),
            format!("{known}, {known}"),
            format!("\"{}\"", known.trim_matches(':')),
            format!(":{}:", STANDARD.encode([1; 31])),
            format!(":{}:", STANDARD.encode([1; 33])),
        ] {
            check(&["dcz"], Some(&value), None);
        }
        check(
            &["dcz"],
            Some(&format!("{known};a=1")),
            Some(Form::Delta(Digest::of(b"a former artifact"))),
        );
    }

    #[test]
    fn a_form_that_is_not_there_is_passed_over() {
        let headers =
            HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static("dcz, zstd"))]);
        assert_eq!(Accepted::read(&headers).choose(|_| None::<Form>), None);
    }

    proptest! {
        #[test]
        fn law_any_headers_are_read_without_harm(
            accepted in proptest::collection::vec(any::<u8>(), 0..40),
            dictionary in "[ -~]{0,60}",
        ) {
            let mut headers = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_bytes(&accepted) {
                headers.insert(ACCEPT_ENCODING, value);
            }
            headers.insert(AVAILABLE_DICTIONARY, HeaderValue::from_str(&dictionary).expect("text"));
            let _ = Accepted::read(&headers).choose(Some);
        }
    }
}
