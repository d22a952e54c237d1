//! Waves on the command line: `5`, `10%` or `ring=canary`, each with `,soak=30m` and `,approve`.

use std::str::FromStr;
use std::time::Duration;

use guest_fleet_core::rollout::{Label, Size, Wave};

use super::super::duration;

/// Longest key and value of a label, in bytes.
const LABEL_BYTES: usize = 256;

/// A wave as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaveOption {
    size: Size,
    soak: Option<Duration>,
    needs_approval: bool,
}

// === impl WaveOption ===

impl WaveOption {
    /// The wave; it is watched for `soak` where it says nothing else.
    pub(super) fn wave(&self, soak: Duration) -> Wave {
        Wave {
            size: self.size.clone(),
            soak: self.soak.unwrap_or(soak).as_secs(),
            needs_approval: self.needs_approval,
        }
    }

    /// Whether all agents are in it.
    pub(super) fn is_all(&self) -> bool {
        self.size == Size::Percent(100)
    }
}

impl FromStr for WaveOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',').map(str::trim);
        let size = size(parts.next().unwrap_or_default())?;
        let mut wave = Self { size, soak: None, needs_approval: false };
        for part in parts {
            match part.split_once('=') {
                Some(("soak", length)) => wave.soak = Some(duration::parse(length)?),
                None if part == "approve" => wave.needs_approval = true,
                _ => {
                    return Err(format!(
                        "`{part}` is unknown: after the size of a wave come `soak=30m` and `approve`"
                    ));
                }
            }
        }
        Ok(wave)
    }
}

fn size(text: &str) -> Result<Size, String> {
    let bad = || {
        format!(
            "`{text}` is no size of a wave: write a number such as 5, a share such as 10%, or a label such as \
             ring=canary"
        )
    };
    if let Some((key, value)) = text.split_once('=') {
        let fits = |part: &str| !part.is_empty() && part.len() <= LABEL_BYTES;
        if !fits(key) || !fits(value) || key.starts_with("self.") {
            return Err(bad());
        }
        return Ok(Size::Label(Label { key: key.to_owned(), value: value.to_owned() }));
    }
    if let Some(share) = text.strip_suffix('%') {
        let share = share.parse().ok().filter(|share| (1..=100).contains(share));
        return share.map(Size::Percent).ok_or_else(bad);
    }
    text.parse().ok().filter(|count| *count > 0).map(Size::Count).ok_or_else(bad)
}

/// A size as it is written.
pub(super) fn words(size: &Size) -> String {
    match size {
        Size::Count(count) => count.to_string(),
        Size::Percent(share) => format!("{share}%"),
        Size::Label(label) => format!("{}={}", label.key, label.value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_they_are_written() {
        for text in ["1", "5", "10%", "100%", "ring=canary"] {
            let wave: WaveOption = text.parse().expect(text);
            assert_eq!(words(&wave.size), text);
        }
        let wave: WaveOption = "ring=canary,soak=30m,approve".parse().expect("a wave");
        assert_eq!((wave.soak, wave.needs_approval), (Some(Duration::from_secs(1800)), true));
    }

    #[test]
    fn what_is_no_wave_is_refused_with_what_one_looks_like() {
        for bad in ["", "0", "0%", "101%", "-1", "x", "=x", "x=", "self.rack=r7", "99999999999"] {
            let error = bad.parse::<WaveOption>().expect_err(bad);
            assert!(error.contains("ring=canary"), "{error}");
        }
        for bad in ["5,soon", "5,soak", "5,soak=x", "5,approve=yes"] {
            assert!(bad.parse::<WaveOption>().is_err(), "{bad}");
        }
    }
}
