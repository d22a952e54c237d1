//! Charts as SVG: a line in a table cell, and one with axes. Pure, and whole without a script.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use maud::{Markup, html};

use crate::display::bytes;

/// Size of a line in a table cell.
const SPARK: (f64, f64) = (120.0, 28.0);

/// Size of a chart, and what of it the axes take.
const CHART: (f64, f64) = (560.0, 180.0);
const LEFT: f64 = 76.0;
const BOTTOM: f64 = 22.0;
const TOP: f64 = 10.0;

/// What a chart shows, oldest first.
#[derive(Clone, Debug)]
pub(super) struct Series {
    /// What it is, such as `CPU`.
    pub(super) name: &'static str,
    /// What its values are.
    pub(super) unit: Unit,
    /// When and how much.
    pub(super) points: Vec<(SystemTime, f64)>,
    /// What it may not go beyond, where there is such a bound.
    pub(super) limit: Option<f64>,
}

/// What values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Percent of one core.
    Percent,
    Bytes,
}

// === impl Unit ===

impl Unit {
    /// A value as people read it.
    pub(super) fn show(self, value: f64) -> String {
        match self {
            Self::Percent if value >= 9.95 || value == 0.0 => format!("{value:.0}%"),
            Self::Percent => format!("{value:.1}%"),
            Self::Bytes => bytes(whole(value)),
        }
    }

    /// The end of an axis that has room for a value, at a number that is easily read.
    fn ceiling(self, value: f64) -> f64 {
        match self {
            Self::Percent => {
                let value = value.clamp(1.0, 1e6);
                let step = 10_f64.powf(value.log10().floor());
                let steps = [1.0, 2.0, 4.0, 5.0, 8.0, 10.0];
                steps.iter().map(|it| it * step).find(|it| *it >= value).unwrap_or(10.0 * step)
            }
            Self::Bytes => {
                let value = value.clamp(1_048_576.0, 1e18);
                let step = 2_f64.powf(value.log2().floor());
                let steps = [1.0, 1.25, 1.5, 1.75, 2.0];
                steps.iter().map(|it| it * step).find(|it| *it >= value).unwrap_or(2.0 * step)
            }
        }
    }
}

// === impl Series ===

impl Series {
    /// The newest value.
    pub(super) fn last(&self) -> Option<f64> {
        self.points.last().map(|(_, value)| *value)
    }

    fn highest(&self) -> f64 {
        self.points.iter().map(|(_, value)| *value).fold(0.0, f64::max)
    }

    /// The time that it covers.
    fn span(&self) -> Option<(SystemTime, Duration)> {
        let (first, last) = (self.points.first()?.0, self.points.last()?.0);
        Some((first, last.duration_since(first).unwrap_or_default()))
    }

    /// The chart as a sentence, for screen readers.
    fn described(&self) -> String {
        let (Some(last), Some((_, span))) = (self.last(), self.span()) else {
            return format!("{}: nothing is measured yet", self.name);
        };
        let (last, highest) = (self.unit.show(last), self.unit.show(self.highest()));
        let minutes = span.as_secs().div_ceil(60);
        format!("{}: now {last}, at most {highest} in the last {minutes} min", self.name)
    }

    /// The line, in parts where nothing was measured for a while, within a frame from 0 to
    /// `ceiling`.
    fn lines(&self, frame: Frame, ceiling: f64) -> Vec<Vec<(f64, f64)>> {
        let Some((first, span)) = self.span() else { return Vec::new() };
        let pause = self.longest_usual_pause();
        let place = |at: SystemTime, value: f64| {
            let since = at.duration_since(first).unwrap_or_default().as_secs_f64();
            let along = if span.is_zero() { 1.0 } else { since / span.as_secs_f64() };
            let up = (value / ceiling).clamp(0.0, 1.0);
            (
                frame.left + along.clamp(0.0, 1.0) * frame.width,
                frame.top + (1.0 - up) * frame.height,
            )
        };
        let mut lines: Vec<Vec<(f64, f64)>> = Vec::new();
        let mut before: Option<SystemTime> = None;
        for (at, value) in &self.points {
            let place = place(*at, *value);
            let goes_on =
                before.is_some_and(|then| at.duration_since(then).unwrap_or_default() <= pause);
            match lines.last_mut() {
                Some(line) if goes_on => line.push(place),
                _ => lines.push(vec![place]),
            }
            before = Some(*at);
        }
        lines
    }

    /// Samples further apart than this have a gap between them.
    fn longest_usual_pause(&self) -> Duration {
        let pairs = self.points.windows(2);
        let mut pauses: Vec<Duration> =
            pairs.map(|pair| pair[1].0.duration_since(pair[0].0).unwrap_or_default()).collect();
        pauses.sort_unstable();
        let usual = pauses.get(pauses.len() / 2).copied().unwrap_or_default();
        usual.saturating_mul(3).max(Duration::from_secs(5))
    }
}

/// Where in a picture a line is.
#[derive(Clone, Copy)]
struct Frame {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

/// A line in a table cell, beside its newest value.
pub(super) fn spark(series: &Series) -> Markup {
    let Some(last) = series.last() else {
        return html! { span class="quiet" { "–" } };
    };
    let (width, height) = SPARK;
    let frame = Frame { left: 1.0, top: 2.0, width: width - 2.0, height: height - 3.0 };
    let ceiling = series.unit.ceiling(series.highest() * 1.1);
    html! {
        span class="spark" {
            svg viewBox=(format!("0 0 {width} {height}")) role="img" aria-label=(series.described())
                preserveAspectRatio="none" {
                (drawn(&series.lines(frame, ceiling), frame))
            }
            span class="number" { (series.unit.show(last)) }
        }
    }
}

/// A chart with axes.
pub(super) fn chart(series: &Series) -> Markup {
    let Some((first, span)) = series.span() else {
        return html! {
            figure class="chart" {
                figcaption { (series.name) }
                p class="quiet" { "Nothing is measured yet. Samples come every few seconds while it runs." }
            }
        };
    };
    let (width, height) = CHART;
    let frame =
        Frame { left: LEFT, top: TOP, width: width - LEFT - 8.0, height: height - TOP - BOTTOM };
    let highest = series.highest();
    // The caption names a limit far above the samples. Drawing it would flatten their line.
    let near = series.limit.filter(|limit| *limit <= highest * 4.0);
    let ceiling = series.unit.ceiling(near.unwrap_or(0.0).max(highest) * 1.05);
    let level = |part: f64| frame.top + (1.0 - part) * frame.height;
    let right = frame.left + frame.width;
    html! {
        figure class="chart" {
            figcaption {
                (series.name) " "
                strong class="number" { (series.unit.show(series.last().unwrap_or_default())) }
                @if let Some(limit) = series.limit {
                    span class="quiet" { " of " (series.unit.show(limit)) " allowed" }
                }
            }
            svg viewBox=(format!("0 0 {width} {height}")) role="img" aria-label=(series.described()) {
                @for part in [0.0, 0.5, 1.0] {
                    line class="grid" x1=(frame.left) x2=(right) y1=(tenth(level(part)))
                        y2=(tenth(level(part))) {}
                    text class="axis" x=(frame.left - 8.0) y=(tenth(level(part) + 4.0))
                        text-anchor="end" { (series.unit.show(ceiling * part)) }
                }
                @for (part, anchor) in [(0.0, "start"), (0.5, "middle"), (1.0, "end")] {
                    text class="axis" x=(tenth(frame.left + part * frame.width)) y=(height - 4.0)
                        text-anchor=(anchor) { (clock(first + span.mul_f64(part))) }
                }
                @if let Some(limit) = near {
                    line class="limit" x1=(frame.left) x2=(right) y1=(tenth(level(limit / ceiling)))
                        y2=(tenth(level(limit / ceiling))) {}
                }
                (drawn(&series.lines(frame, ceiling), frame))
            }
        }
    }
}

fn drawn(lines: &[Vec<(f64, f64)>], frame: Frame) -> Markup {
    let floor = tenth(frame.top + frame.height);
    html! {
        @for line in lines {
            @if let [(x, y)] = line.as_slice() {
                circle class="dot" cx=(tenth(*x)) cy=(tenth(*y)) r="1.5" {}
            } @else if let [(left, _), .., (right, _)] = line.as_slice() {
                path class="area"
                    d=(format!("{}L{} {floor}L{} {floor}Z", path(line), tenth(*right), tenth(*left))) {}
                path class="line" d=(path(line)) {}
            }
        }
    }
}

fn path(line: &[(f64, f64)]) -> String {
    let mut path = String::new();
    for (index, (x, y)) in line.iter().enumerate() {
        let step = if index == 0 { 'M' } else { 'L' };
        path.push(step);
        path.push_str(&tenth(*x));
        path.push(' ');
        path.push_str(&tenth(*y));
    }
    path
}

/// A coordinate, as exact as anybody sees.
fn tenth(value: f64) -> String {
    format!("{value:.1}")
}

/// The time of day in UTC.
fn clock(at: SystemTime) -> String {
    Timestamp::try_from(at).map(|at| at.strftime("%H:%M:%S").to_string()).unwrap_or_default()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is bounded")]
fn whole(value: f64) -> u64 {
    value.clamp(0.0, 1e18) as u64
}
