//! Compares ratios with those that are stored.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::Path;

/// How many times its stored ratio something may cost. Less differs between runs and processors already.
const LIMIT: f64 = 1.5;

/// What is stored.
pub(crate) struct Stored {
    limit: f64,
    ratios: BTreeMap<String, f64>,
}

/// What is thought of one ratio.
#[derive(Clone)]
pub(crate) struct Judgement {
    name: &'static str,
    ratio: f64,
    stored: Option<f64>,
    limit: f64,
}

#[derive(serde::Deserialize)]
struct File {
    limit: f64,
    ratio: BTreeMap<String, f64>,
}

// === impl Stored ===

impl Stored {
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => "nothing is stored yet: `just bench-micro-renew`".to_owned(),
            _ => error.to_string(),
        })?;
        let File { limit, ratio } = toml::from_str(&text).map_err(|error| error.to_string())?;
        if !(limit > 1.0 && ratio.values().all(|ratio| *ratio > 0.0)) {
            return Err("limits are above 1 and ratios above 0".to_owned());
        }
        Ok(Self { limit, ratios: ratio })
    }

    pub(crate) fn judge(&self, name: &'static str, ratio: f64) -> Judgement {
        Judgement { name, ratio, stored: self.ratios.get(name).copied(), limit: self.limit }
    }

    pub(crate) fn limit(&self) -> f64 {
        self.limit
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.ratios.keys().map(String::as_str)
    }
}

// === impl Judgement ===

impl Judgement {
    pub(crate) fn is_good(&self) -> bool {
        self.stored.is_some_and(|stored| self.ratio <= stored * self.limit)
    }

    /// The better one of two.
    pub(crate) fn or(self, other: Self) -> Self {
        if other.ratio < self.ratio { other } else { self }
    }
}

/// All of them, for people.
pub(crate) fn table(judged: &[Judgement], limit: f64) -> String {
    let mut text = format!("{:<16} {:>9} {:>9}\n", "cost", "ratio", "stored");
    for judgement in judged {
        let Judgement { name, ratio, stored, .. } = judgement;
        let line = match stored {
            None => format!(
                "{name:<16} {ratio:>9.3} {:>9}  FAILED: renew benches/micro/reference.toml",
                "none"
            ),
            Some(stored) => {
                let percent = (ratio / stored - 1.0) * 100.0;
                let mark = if judgement.is_good() { "" } else { "  FAILED: beyond the limit" };
                let side = if percent < 0.0 { "below" } else { "above" };
                format!(
                    "{name:<16} {ratio:>9.3} {stored:>9.3}  {:.0} % {side} its reference{mark}",
                    percent.abs()
                )
            }
        };
        writeln!(text, "{line}").expect("memory is writable");
    }
    let percent = (limit - 1.0) * 100.0;
    writeln!(text, "Beyond {percent:.0} % above its reference a cost fails the run.")
        .expect("memory is writable");
    text
}

/// The file with the medians of so many runs.
pub(crate) fn render(runs: usize, seen: Vec<(&'static str, Vec<f64>)>) -> String {
    let mut text = format!(
        "# What each micro-benchmark costs as a multiple of its reference workload, which runs beside it.\n\
         # Written by `just bench-micro-renew`, on a machine with nothing else to do: medians of {runs} runs,\n\
         # with the lowest and the highest behind them. Renew it when a cost changed for a good reason, and\n\
         # say the reason in the commit.\n\
         # Processor: {}.\n\n\
         # A ratio may be this many times its stored value.\n\
         limit = {LIMIT:?}\n\n[ratio]\n",
        processor(),
    );
    for (name, mut ratios) in seen {
        ratios.sort_by(f64::total_cmp);
        let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
        let median = ratios[ratios.len() / 2];
        writeln!(text, "{name} = {median:.3} # {least:.3} to {most:.3}")
            .expect("memory is writable");
    }
    text
}

fn processor() -> String {
    let known = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = known.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.map(|rest| rest.trim_start_matches(['\t', ' ', ':']).to_owned());
    model.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}
