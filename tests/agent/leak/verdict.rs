//! Whether what was looked at again and again grows.
//!
//! The median of the last third of all looks is compared with that of the first third, so that
//! neither a single high look nor a single low one counts. Two thirds of the cycles lie between
//! them: with 10,000 cycles an allowance of 2 MiB is some 300 bytes for each plugin that came and
//! went, with 60 it is 50 KiB.

use std::fmt;

use super::gauges::{GAUGES, NAMES, Readings};

/// Looks, each after so many cycles.
#[derive(Default)]
pub(super) struct Series(Vec<(usize, Readings)>);

/// A gauge that rose.
#[derive(Debug, PartialEq)]
pub(super) struct Growth {
    name: &'static str,
    first_third: u64,
    last_third: u64,
    allowed: u64,
}

impl Series {
    pub(super) fn push(&mut self, cycles: usize, readings: Readings) {
        self.0.push((cycles, readings));
    }

    /// The gauges that are higher in the end than they may be. Those in KiB may be so much higher
    /// beside.
    pub(super) fn grown(&self, settling_kib: u64) -> Vec<Growth> {
        let gauges = NAMES.into_iter().enumerate().map(|(gauge, (name, allowed))| {
            let allowed = if name.ends_with("KiB") { allowed + settling_kib } else { allowed };
            let (first_third, last_third) = self.ends(gauge);
            Growth { name, first_third, last_third, allowed }
        });
        gauges.filter(|it| it.last_third > it.first_third + it.allowed).collect()
    }

    /// The medians of the first and of the last third.
    fn ends(&self, gauge: usize) -> (u64, u64) {
        let third = self.0.len().div_ceil(3);
        let of = |part: &[(usize, Readings)]| {
            median(part.iter().map(|(_, readings)| readings[gauge]).collect())
        };
        (of(&self.0[..third]), of(&self.0[self.0.len() - third..]))
    }
}

impl fmt::Display for Series {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:>8}", "cycles")?;
        for (name, _) in NAMES {
            write!(out, " {name:>15}")?;
        }
        for (cycles, readings) in &self.0 {
            write!(out, "\n{cycles:>8}")?;
            for reading in readings {
                write!(out, " {reading:>15}")?;
            }
        }
        write!(out, "\n{:>8}", "growth")?;
        for gauge in 0..GAUGES {
            let (first, last) = self.ends(gauge);
            write!(out, " {:>15}", i128::from(last) - i128::from(first))?;
        }
        Ok(())
    }
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which gauges are found to grow when all of them read the same.
    fn found(reading: impl Fn(u64) -> u64) -> Vec<&'static str> {
        let mut series = Series::default();
        for look in 0..21_u64 {
            series.push(0, [reading(look); GAUGES]);
        }
        series.grown(0).iter().map(|growth| growth.name).collect()
    }

    #[test]
    fn whatever_rises_for_ever_is_found() {
        // A file in every second look, and a KiB more each time.
        assert!(found(|look| 100 + look / 2).contains(&"files"));
        let all = NAMES.map(|(name, _)| name);
        assert_eq!(found(|look| 10_000 + look * 1000), all);
    }

    /// Memory as it was seen: up and down by a MiB. Under that each plugin leaves so many bytes.
    fn finds_memory(bytes_each: u64) -> bool {
        let mut series = Series::default();
        for look in 0..=20_u64 {
            let cycles = look * 500;
            let noise = look * 7919 % 1024;
            let mut readings = [0; GAUGES];
            readings[1] = 35_000 + noise + cycles * bytes_each / 1024;
            series.push(usize::try_from(cycles).unwrap(), readings);
        }
        series.grown(0).iter().any(|growth| growth.name == "anonymous KiB")
    }

    #[test]
    fn some_hundred_bytes_of_each_of_ten_thousand_plugins_are_found_under_noise() {
        assert!(!finds_memory(0));
        assert!(finds_memory(500));
    }

    /// The short form, with one thing left behind by each plugin.
    #[test]
    fn one_thing_of_each_of_some_dozens_of_plugins_is_found() {
        let mut series = Series::default();
        for look in 0..=6_u64 {
            series.push(0, [10_000 + look * 10; GAUGES]);
        }
        let found: Vec<_> = series.grown(2048).iter().map(|growth| growth.name).collect();
        assert_eq!(found, ["descriptors", "threads", "child processes", "control groups", "files"]);
    }

    #[test]
    fn noise_peaks_and_what_shrinks_are_not() {
        let none: [&str; 0] = [];
        assert_eq!(found(|look| 10_000 + look % 2), none);
        assert_eq!(found(|look| if look == 19 { 90_000 } else { 10_000 }), none);
        assert_eq!(found(|look| 90_000 - look * 1000), none);
    }
}
