//! Waves as people write them: `5`, `10%` or `ring=canary`, each with `,soak=30m` and `,approve`.

use std::fmt;
use std::str::FromStr;

use super::{Label, Size, StrategyWave, WAVES};
use crate::duration;

/// Longest key and value of a label, in bytes.
const LABEL_BYTES: usize = 256;

/// Whether waves reach all agents; else why not, and what puts that right.
///
/// # Errors
/// They are too many, or the last one is a part of the agents.
pub fn reach_all(waves: &[StrategyWave]) -> Result<(), (String, String)> {
    if waves.len() > WAVES {
        let reason = format!("{} waves are too many", waves.len());
        return Err((reason, format!("give at most {WAVES}")));
    }
    match waves.last() {
        Some(StrategyWave { size: Size::Percent(100), .. }) | None => Ok(()),
        Some(_) => {
            let reason = "the last wave does not reach all agents".to_owned();
            Err((reason, "end with the wave 100%".to_owned()))
        }
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

// === impl StrategyWave ===

impl FromStr for StrategyWave {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',').map(str::trim);
        let size = size(parts.next().unwrap_or_default())?;
        let mut wave = Self { size, soak: None, needs_approval: false };
        for part in parts {
            match part.split_once('=') {
                Some(("soak", length)) => wave.soak = Some(duration::parse(length)?.as_secs()),
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

impl fmt::Display for StrategyWave {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.size.fmt(f)?;
        if let Some(soak) = self.soak {
            write!(f, ",soak={}", duration::words(soak))?;
        }
        f.write_str(if self.needs_approval { ",approve" } else { "" })
    }
}

// === impl Size ===

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => count.fmt(f),
            Self::Percent(share) => write!(f, "{share}%"),
            Self::Label(label) => write!(f, "{}={}", label.key, label.value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waves_are_read_as_they_are_written() {
        for text in
            ["1", "5", "10%", "100%", "ring=canary", "5,soak=1h", "ring=canary,soak=30m,approve"]
        {
            assert_eq!(text.parse::<StrategyWave>().expect(text).to_string(), text);
        }
        let wave: StrategyWave = "ring=canary,soak=30m,approve".parse().expect("a wave");
        assert_eq!((wave.soak, wave.needs_approval), (Some(1800), true));
    }

    #[test]
    fn what_is_no_wave_is_refused_with_what_one_looks_like() {
        for bad in ["", "0", "0%", "101%", "-1", "x", "=x", "x=", "self.rack=r7", "99999999999"] {
            let error = bad.parse::<StrategyWave>().expect_err(bad);
            assert!(error.contains("ring=canary"), "{error}");
        }
        for bad in ["5,soon", "5,soak", "5,soak=x", "5,approve=yes"] {
            assert!(bad.parse::<StrategyWave>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_last_wave_is_all_agents() {
        let check = |texts: &[&str]| {
            let waves = texts.iter().map(|text| text.parse().expect(text));
            reach_all(&waves.collect::<Vec<StrategyWave>>()).is_ok()
        };
        assert!(check(&[]) && check(&["1", "100%"]));
        assert!(!check(&["1"]) && !check(&["100%", "ring=canary"]));
        assert!(!check(&vec!["100%"; WAVES + 1]));
    }
}
