//! Gauges as SVG: how a whole is made of parts, and how far a value is from its limit. Pure, and whole
//! without a script. What they show is written beside them as well, so no gauge says anything alone.

use maud::{Markup, html};

use crate::pieces::class;
use crate::text::{Tone, one_line};

/// The width of a gauge in its own units; the sheet gives it a size.
const WIDTH: u128 = 1000;

/// The least width of a part that has anything, so that one of a million is seen.
const LEAST: u128 = 6;

/// A part of a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// How good or bad it is.
    pub tone: Tone,
    /// What it is.
    pub name: String,
    /// How much it is.
    pub count: u64,
}

/// The parts of a whole as one bar, with what each of them is below it. Parts of nothing are left out.
#[must_use]
pub fn slices(name: &str, slices: &[Slice]) -> Markup {
    let shown: Vec<&Slice> = slices.iter().filter(|slice| slice.count > 0).collect();
    let said = shown.iter().map(|it| format!("{} {}", it.count, one_line(&it.name)));
    let said = format!("{name}: {}", said.collect::<Vec<_>>().join(", "));
    html! {
        div class="gauge" {
            svg viewBox=(format!("0 0 {WIDTH} 10")) role="img" aria-label=(said)
                preserveAspectRatio="none" {
                rect class="ground" x="0" y="0" width=(WIDTH) height="10" {}
                @for (slice, (from, width)) in shown.iter().zip(places(&shown)) {
                    rect class={ "slice " (class(slice.tone)) } x=(from) y="0" width=(width) height="10" {}
                }
            }
            ul class="legend" {
                @for slice in &shown {
                    li class=(class(slice.tone)) {
                        span class="number" { (slice.count) } " " (one_line(&slice.name))
                    }
                }
            }
        }
    }
}

/// Where the parts begin and how wide they are: together as wide as the bar.
fn places(shown: &[&Slice]) -> Vec<(u128, u128)> {
    let sum = shown.iter().map(|slice| u128::from(slice.count)).sum::<u128>().max(1);
    let reserved = LEAST * u128::try_from(shown.len()).unwrap_or(0);
    let room = WIDTH.saturating_sub(reserved);
    let mut from = 0;
    let mut before = 0;
    shown
        .iter()
        .zip(1_u128..)
        .map(|(slice, number)| {
            before += u128::from(slice.count);
            let to = room * before / sum + LEAST * number;
            let place = (from, to - from);
            from = to;
            place
        })
        .collect()
}

/// How far a value is on its way to a limit, from 0; what is beyond the limit is drawn as the limit.
#[must_use]
pub fn meter(said: &str, value: f64, limit: f64) -> Markup {
    let share =
        if limit > 0.0 && value.is_finite() { (value / limit).clamp(0.0, 1.0) } else { 0.0 };
    let tone = match share {
        share if share >= 1.0 => Tone::Bad,
        share if share >= 0.5 => Tone::Busy,
        _ => Tone::Good,
    };
    html! {
        svg class="meter" viewBox="0 0 1000 10" role="img" aria-label=(one_line(said))
            preserveAspectRatio="none" {
            rect class="ground" x="0" y="0" width="1000" height="10" {}
            rect class={ "slice " (class(tone)) } x="0" y="0" width=(format!("{:.0}", share * 1000.0))
                height="10" {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(count: u64) -> Slice {
        Slice { tone: Tone::Good, name: "<done>".to_owned(), count }
    }

    #[test]
    fn parts_fill_the_bar_and_the_smallest_is_seen() {
        let all = [slice(1_000_000), slice(1), slice(u64::MAX)];
        let all: Vec<&Slice> = all.iter().collect();
        let places = places(&all);
        assert!(places.iter().all(|(_, width)| *width >= LEAST), "{places:?}");
        assert_eq!(places.iter().map(|(_, width)| width).sum::<u128>(), WIDTH);
        assert!(places.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0), "{places:?}");
    }

    #[test]
    fn parts_of_nothing_are_left_out_and_names_are_text() {
        let bar = slices("Agents", &[slice(0), slice(2)]).into_string();
        assert_eq!(bar.matches("<li").count(), 1, "{bar}");
        assert!(bar.contains("&lt;done&gt;") && !bar.contains("<done>"), "{bar}");
        assert!(slices("Agents", &[]).into_string().contains("<svg"));
    }

    #[test]
    fn a_meter_ends_at_its_limit() {
        assert!(meter("m", 9.0, 4.0).into_string().contains("slice bad"));
        assert!(meter("m", 0.0, 4.0).into_string().contains(r#"width="0""#));
        assert!(meter("m", 1.0, 0.0).into_string().contains(r#"width="0""#), "without a limit");
        assert!(meter("m", f64::NAN, 4.0).into_string().contains(r#"width="0""#));
    }
}
