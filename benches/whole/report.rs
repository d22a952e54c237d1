//! What was measured, as lines for a terminal and as the page `docs/performance.md`.

use crate::machine::Machine;
use crate::samples::Samples;

const INTRODUCTION: &str = "\
# Performance

Written by `cargo bench -p guest-agent --bench whole` (`just bench`), which takes about half an hour on two cores when all is built; `just bench --short`
makes fewer rounds and writes nothing. Every figure stands beside a baseline from the same machine in the same run: read the ratios. A figure
is the median of its rounds, with the smallest and the largest. Where installations are measured nothing is deleted between rounds, and the memory that a
round needs is touched before it, because both would be measured otherwise. Where a target of ours is missed,
[decision 29](decisions/0029-what-limits-the-figures.md) says why.
";

/// One figure with what it is held against.
pub(crate) struct Row {
    /// What was measured.
    pub(crate) what: String,
    pub(crate) figure: Samples,
    pub(crate) unit: &'static str,
    /// The same machine doing no more than it must; with its name.
    pub(crate) baselines: Vec<Baseline>,
    /// What the figure itself is to be.
    pub(crate) target: Option<Target>,
    /// What has to be known to understand it.
    pub(crate) note: String,
}

/// Something the figure is compared with.
pub(crate) struct Baseline {
    pub(crate) what: String,
    pub(crate) figure: Samples,
    /// What the figure may be.
    pub(crate) allowed: Option<Allowed>,
}

/// A limit for a figure that a baseline sets.
#[derive(Clone, Copy)]
pub(crate) enum Allowed {
    /// So many times the baseline.
    Times(f64),
    /// So much more than the baseline, in the unit of both.
    Plus(f64),
}

/// A limit for a figure.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    AtMost(f64),
    AtLeast(f64),
}

// === impl Row ===

impl Row {
    /// A figure with nothing beside it yet.
    pub(crate) fn new(what: impl Into<String>, figure: Samples, unit: &'static str) -> Self {
        let (baselines, target, note) = (Vec::new(), None, String::new());
        Self { what: what.into(), figure, unit, baselines, target, note }
    }

    /// Compares it with another figure, which nothing is demanded of.
    pub(crate) fn beside(self, what: &str, figure: Samples) -> Self {
        self.compared(what, figure, None)
    }

    /// Compares it with another figure, of which it may be a multiple.
    pub(crate) fn times(self, times: f64, what: &str, figure: Samples) -> Self {
        self.compared(what, figure, Some(Allowed::Times(times)))
    }

    /// Compares it with another figure, which it may exceed by so much.
    pub(crate) fn plus(self, plus: f64, what: &str, figure: Samples) -> Self {
        self.compared(what, figure, Some(Allowed::Plus(plus)))
    }

    fn compared(mut self, what: &str, figure: Samples, allowed: Option<Allowed>) -> Self {
        self.baselines.push(Baseline { what: what.to_owned(), figure, allowed });
        self
    }

    /// What the figure itself is to be.
    pub(crate) fn target(mut self, target: Target) -> Self {
        self.target = Some(target);
        self
    }

    /// Explains it.
    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// For a terminal.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("{}: {}", self.what, shown(&self.figure, self.unit))];
        lines.extend(self.baselines.iter().map(|baseline| {
            let (ratio, what) = (self.ratio(baseline), &baseline.what);
            let figure = shown(&baseline.figure, self.unit);
            let allowed = baseline.allowed.map(|it| format!(" [{}]", self.verdict(baseline, it)));
            format!("    {ratio} of {what}: {figure}{}", allowed.unwrap_or_default())
        }));
        lines.extend(self.target.map(|target| format!("    [{}]", self.judged(target))));
        lines
    }

    /// For the page.
    fn of_table(&self) -> Vec<String> {
        let figure = shown(&self.figure, self.unit);
        let target = self.target.map(|target| self.judged(target));
        if self.baselines.is_empty() {
            return vec![format!(
                "| {} | {figure} | | | {} |",
                self.what,
                target.unwrap_or_default()
            )];
        }
        let mut own = Some((&*self.what, &*figure, target));
        let of_baseline = |baseline: &Baseline| {
            let (what, figure, target) = own.take().unwrap_or_default();
            let verdict = baseline.allowed.map(|it| self.verdict(baseline, it));
            let verdicts: Vec<_> = verdict.into_iter().chain(target).collect();
            let (ratio, verdicts) = (self.ratio(baseline), verdicts.join("; "));
            let beside = format!("{}: {}", baseline.what, shown(&baseline.figure, self.unit));
            format!("| {what} | {figure} | {beside} | {ratio} | {verdicts} |")
        };
        self.baselines.iter().map(of_baseline).collect()
    }

    fn ratio(&self, baseline: &Baseline) -> String {
        format!("{:.2} ×", self.figure.median() / baseline.figure.median())
    }

    fn verdict(&self, baseline: &Baseline, allowed: Allowed) -> String {
        let of = baseline.figure.median();
        let (most, wanted) = match allowed {
            Allowed::Times(times) => (of * times, format!("≤ {times} ×")),
            Allowed::Plus(plus) => (of + plus, format!("≤ it + {plus} {}", self.unit)),
        };
        format!("{wanted}: {}", kept(self.figure.median() <= most))
    }

    fn judged(&self, target: Target) -> String {
        let median = self.figure.median();
        match target {
            Target::AtMost(most) => {
                format!("≤ {} {}: {}", number(most), self.unit, kept(median <= most))
            }
            Target::AtLeast(least) => {
                format!("≥ {} {}: {}", number(least), self.unit, kept(median >= least))
            }
        }
    }
}

const fn kept(is_kept: bool) -> &'static str {
    if is_kept { "kept" } else { "**missed**" }
}

fn shown(samples: &Samples, unit: &str) -> String {
    let median = format!("{} {unit}", number(samples.median()));
    if samples.rounds() == 1 {
        return median;
    }
    let (least, most) = samples.spread();
    format!("{median} ({} to {})", number(least), number(most))
}

/// Three significant digits, or all before the point.
fn number(figure: f64) -> String {
    let digits = match figure.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    format!("{figure:.digits$}")
}

/// The page.
pub(crate) fn page(rows: &[Row], machine: &Machine) -> String {
    let mut lines = vec![
        INTRODUCTION.to_owned(),
        machine.to_string(),
        String::new(),
        "| what | figure | beside | ratio | target |".to_owned(),
        "|---|---|---|---|---|".to_owned(),
    ];
    lines.extend(rows.iter().flat_map(Row::of_table));
    lines.push("\nWhat has to be known of them:\n".to_owned());
    let notes = rows.iter().filter(|row| !row.note.is_empty());
    lines.extend(notes.map(|row| format!("- *{}*: {}.", row.what, row.note)));
    lines.join("\n") + "\n"
}
