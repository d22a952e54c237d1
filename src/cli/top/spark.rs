//! Small charts in one line of text.

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The last values, one column each, right-aligned in `width` columns. The highest value is a full
/// bar, unless it is below `least`: noise must not look like load.
pub(super) fn spark(values: &[f64], width: usize, least: f64) -> String {
    let shown = &values[values.len().saturating_sub(width)..];
    let top = shown.iter().copied().filter(|value| value.is_finite()).fold(least, f64::max);
    let mut text = " ".repeat(width - shown.len());
    text.extend(shown.iter().map(|value| bar(value / top)));
    text
}

fn bar(part: f64) -> char {
    // This also avoids a division by zero.
    let part = if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 };
    let steps = [0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875];
    BARS[steps.iter().filter(|step| part > **step).count()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_highest_value_is_a_full_bar() {
        assert_eq!(spark(&[0.0, 50.0, 100.0], 5, 1.0), "  ▁▄█");
        assert_eq!(spark(&[1.0, 2.0, 3.0, 4.0], 2, 1.0), "▆█");
        assert_eq!(spark(&[0.1], 1, 10.0), "▁", "noise is no load");
        assert_eq!(spark(&[], 3, 1.0), "   ");
    }

    proptest! {
        #[test]
        fn law_a_chart_is_as_wide_as_asked(
            values in proptest::collection::vec(proptest::num::f64::ANY, 0..20),
            width in 0_usize..30,
            least in proptest::num::f64::ANY,
        ) {
            prop_assert_eq!(spark(&values, width, least).chars().count(), width);
        }
    }
}
