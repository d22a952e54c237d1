//! Compares ratios with those that are stored.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::Path;

/// How many times its stored ratio something may cost. Less differs between runs already.
const LIMIT: f64 = 1.5;

const HEADER: &str = "\
# What each micro-benchmark costs as a multiple of its reference workload, which runs beside it, by processor:
# between two kinds the ratios differ by more than what is allowed. Written by `just bench-micro-renew`, on a
# machine with nothing else to do: it makes the section of that machine's processor anew, from the medians of several
# runs. Renew it when a cost changed for a good reason, and say the reason in the commit.
";

/// What is stored.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    limit: f64,
    by_processor: BTreeMap<String, Ratios>,
}

/// What was measured on one processor, by the names of the costs.
type Ratios = BTreeMap<String, Ratio>;

/// A cost as a multiple of its reference.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
struct Ratio {
    median: f64,
    least: f64,
    most: f64,
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
    #[serde(default)]
    ratio: BTreeMap<String, Ratios>,
}

// === impl Stored ===

impl Stored {
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => "nothing is stored yet: `just bench-micro-renew`".to_owned(),
            _ => error.to_string(),
        })?;
        let File { limit, ratio } = toml::from_str(&text).map_err(|error| error.to_string())?;
        let is_sound =
            |ratio: &Ratio| [ratio.median, ratio.least, ratio.most].iter().all(|it| *it > 0.0);
        if !(limit > 1.0 && ratio.values().flat_map(Ratios::values).all(is_sound)) {
            return Err("limits are above 1 and ratios above 0".to_owned());
        }
        Ok(Self { limit, by_processor: ratio })
    }

    /// Judges what was measured on this processor. One that is not known may cost as much as the
    /// one that costs most.
    pub(crate) fn judge(&self, processor: &str, name: &'static str, ratio: f64) -> Judgement {
        let of = |ratios: &Ratios| ratios.get(name).map(|ratio| ratio.median);
        let stored = match self.by_processor.get(processor) {
            Some(ratios) => of(ratios),
            None => self.by_processor.values().filter_map(of).max_by(f64::total_cmp),
        };
        Judgement { name, ratio, stored, limit: self.limit }
    }

    pub(crate) fn knows(&self, processor: &str) -> bool {
        self.by_processor.contains_key(processor)
    }

    pub(crate) fn limit(&self) -> f64 {
        self.limit
    }

    /// All costs of which anything is stored.
    pub(crate) fn names(&self) -> BTreeSet<&str> {
        self.by_processor.values().flat_map(Ratios::keys).map(String::as_str).collect()
    }

    /// Replaces what is known of a processor by what several runs came to.
    pub(crate) fn renew(&mut self, processor: &str, seen: Vec<(&'static str, Vec<f64>)>) {
        let ratios = seen.into_iter().map(|(name, mut ratios)| {
            ratios.sort_by(f64::total_cmp);
            let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
            (name.to_owned(), Ratio { median: ratios[ratios.len() / 2], least, most })
        });
        self.limit = LIMIT;
        self.by_processor.insert(processor.to_owned(), ratios.collect());
    }

    /// The file.
    pub(crate) fn render(&self) -> String {
        let mut text = format!(
            "{HEADER}\n# A ratio may be this many times its stored median.\nlimit = {:?}\n",
            self.limit
        );
        for (processor, ratios) in &self.by_processor {
            let processor = toml::Value::String(processor.clone());
            writeln!(text, "\n[ratio.{processor}]").expect("memory is writable");
            for (name, Ratio { median, least, most }) in ratios {
                writeln!(
                    text,
                    "{name} = {{ median = {median:.3}, least = {least:.3}, most = {most:.3} }}"
                )
                .expect("memory is writable");
            }
        }
        text
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
