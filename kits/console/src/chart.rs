//! Charts as SVG: a line in a table cell, and one with axes. Pure, and whole without a script.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use maud::{Markup, html};

use crate::text::bytes;

/// Size of a line in a table cell.
const SPARK: (f64, f64) = (120.0, 28.0);

/// The plane of a chart. The sheet gives it a size; what is written beside it is no part of the
/// picture, so that it has the size of other text however wide the chart is.
const CHART: (f64, f64) = (1000.0, 300.0);

/// What a chart shows, oldest first.
#[derive(Clone, Debug)]
pub struct Series {
    /// What it is, such as `CPU`.
    pub name: &'static str,
    /// What its values are.
    pub unit: Unit,
    /// When and how much.
    pub points: Vec<(SystemTime, f64)>,
    /// What it may not go beyond, where there is such a bound.
    pub limit: Option<f64>,
}

/// What values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Percent of one core.
    Percent,
    /// Bytes.
    Bytes,
}

// === impl Unit ===

impl Unit {
    /// A value as people read it.
    #[must_use]
    pub fn show(self, value: f64) -> String {
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
    #[must_use]
    pub fn last(&self) -> Option<f64> {
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
#[must_use]
pub fn spark(series: &Series) -> Markup {
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
#[must_use]
pub fn chart(series: &Series) -> Markup {
    let Some((first, span)) = series.span() else {
        return html! {
            figure class="chart" {
                figcaption { (series.name) }
                p class="quiet" { "Nothing is measured yet. Samples come every few seconds while it runs." }
            }
        };
    };
    let (width, height) = CHART;
    let frame = Frame { left: 0.0, top: 0.0, width, height };
    let highest = series.highest();
    // The caption names a limit far above the samples. Drawing it would flatten their line.
    let near = series.limit.filter(|limit| *limit <= highest * 4.0);
    let ceiling = series.unit.ceiling(near.unwrap_or(0.0).max(highest) * 1.05);
    let level = |part: f64| tenth((1.0 - part) * height);
    html! {
        figure class="chart" {
            figcaption {
                (series.name) " "
                strong class="number" { (series.unit.show(series.last().unwrap_or_default())) }
                @if let Some(limit) = series.limit {
                    span class="quiet" { " of " (series.unit.show(limit)) " allowed" }
                }
            }
            div class="plot" {
                div class="axis values" aria-hidden="true" {
                    @for part in [1.0, 0.5, 0.0] { span { (series.unit.show(ceiling * part)) } }
                }
                svg viewBox=(format!("0 0 {width} {height}")) role="img" aria-label=(series.described())
                    preserveAspectRatio="none" {
                    @for part in [0.0, 0.5, 1.0] {
                        line class="grid" x1="0" x2=(width) y1=(level(part)) y2=(level(part)) {}
                    }
                    @if let Some(limit) = near {
                        @let level = level(limit / ceiling);
                        line class="limit" x1="0" x2=(width) y1=(level) y2=(level) {}
                    }
                    (drawn(&series.lines(frame, ceiling), frame))
                }
                div class="axis times" aria-hidden="true" {
                    @for part in [0.0, 0.5, 1.0] { span { (clock(first + span.mul_f64(part))) } }
                }
            }
        }
    }
}

/// How often something happened in each of some equal parts of a time, as bars. `bad` of each part
/// are drawn in the colour of failures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How many there are in each part, and how many of those are bad; the oldest part first.
    pub parts: Vec<(usize, usize)>,
    /// The chart as a sentence, for screen readers.
    pub described: String,
}

// === impl Counts ===

impl Counts {
    /// Counts times in `parts` equal parts between the first and the last moment.
    #[must_use]
    pub fn of(
        times: &[(Timestamp, bool)],
        (from, to): (Timestamp, Timestamp),
        parts: usize,
        described: String,
    ) -> Self {
        let mut counted = vec![(0, 0); parts.max(1)];
        let length = (to.as_millisecond() - from.as_millisecond()).max(1);
        for (at, is_bad) in times {
            let along = at.as_millisecond() - from.as_millisecond();
            if !(0..=length).contains(&along) {
                continue;
            }
            let last = counted.len() - 1;
            let index = i128::from(along) * i128::try_from(counted.len()).unwrap_or(1);
            let index = usize::try_from(index / i128::from(length)).unwrap_or(last).min(last);
            counted[index].0 += 1;
            counted[index].1 += usize::from(*is_bad);
        }
        Self { parts: counted, described }
    }

    /// The bars.
    #[must_use]
    pub fn bars(&self) -> Markup {
        const HEIGHT: usize = 100;
        const STEP: usize = 10;
        let most = self.parts.iter().map(|(all, _)| *all).max().unwrap_or_default().max(1);
        // What happened at all is seen, however seldom it is beside the rest.
        let tall = |count: usize| if count == 0 { 0 } else { (count * HEIGHT / most).max(6) };
        let width = self.parts.len() * STEP;
        html! {
            svg class="bars" viewBox=(format!("0 0 {width} {HEIGHT}")) role="img"
                aria-label=(self.described) preserveAspectRatio="none" {
                @for (index, (all, bad)) in self.parts.iter().enumerate() {
                    @let (x, tall_all, tall_bad) = (index * STEP + 1, tall(*all), tall(*bad));
                    @if *all > *bad {
                        rect class="bar" x=(x) y=(HEIGHT - tall_all) width=(STEP - 2) height=(tall_all) {}
                    }
                    @if *bad > 0 {
                        rect class="bar bad" x=(x) y=(HEIGHT - tall_bad) width=(STEP - 2) height=(tall_bad) {}
                    }
                }
            }
        }
    }
}

fn drawn(lines: &[Vec<(f64, f64)>], frame: Frame) -> Markup {
    let floor = tenth(frame.top + frame.height);
    html! {
        @for line in lines {
            @if let [(x, y)] = line.as_slice() {
                // A line without length has round ends, which no stretching distorts.
                path class="line dot" d=(format!("M{0} {1}L{0} {1}", tenth(*x), tenth(*y))) {}
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn each_time_is_counted_once_and_only_within_the_time_that_is_shown() {
        let times =
            [(at(0), false), (at(49), true), (at(50), false), (at(100), true), (at(101), true)];
        let counts = Counts::of(&times, (at(0), at(100)), 2, String::new());
        assert_eq!(counts.parts, [(2, 1), (2, 1)]);
        let one = Counts::of(&[(at(5), false)], (at(5), at(5)), 0, String::new());
        assert_eq!(one.parts, [(1, 0)]);
        let far = (Timestamp::MIN, Timestamp::MAX);
        assert_eq!(Counts::of(&[(Timestamp::MAX, true)], far, 3, String::new()).parts[2], (1, 1));
    }

    #[test]
    fn what_is_written_beside_a_chart_is_no_part_of_the_picture() {
        let points = (0..9).map(|n| (SystemTime::UNIX_EPOCH + Duration::from_secs(n * 5), 3.0));
        let points = points.collect();
        let series = Series { name: "CPU", unit: Unit::Percent, points, limit: Some(4.0) };
        let chart = chart(&series).into_string();
        assert!(!chart.contains("<text"), "{chart}");
        assert!(chart.contains("of 4.0% allowed") && chart.contains(">00:00:40<"), "{chart}");
    }
}
