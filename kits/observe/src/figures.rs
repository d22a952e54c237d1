//! Values of metrics as samples, and where they are written.

use std::fmt;

use crate::histogram::{Bounds, Histogram};
use crate::metric::{Kind, Metric};

/// The labels of a sample, in the order of the catalogue.
pub type Values<'a> = Vec<&'a str>;

/// The value of a sample.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A value that goes up and down.
    Gauge(f64),
    /// A count so far.
    Counter(u64),
    /// A number of seconds so far.
    Seconds(f64),
    /// A histogram of durations.
    Times {
        /// The sum of all durations, in seconds.
        sum: f64,
        /// How many durations.
        count: u64,
        /// The upper bound of each bucket in seconds, and how many durations are in it and in no
        /// bucket before it.
        buckets: Vec<(f64, u64)>,
    },
    /// No value: the labels have the information.
    Info,
}

/// Writes figures.
pub trait Sink {
    /// One metric, with its samples. One without samples is left out.
    ///
    /// # Errors
    /// The sink cannot write it.
    fn family<'v>(
        &mut self,
        metric: &'static Metric,
        samples: impl Iterator<Item = (Values<'v>, Value)>,
    ) -> fmt::Result;
}

// === impl Writer ===

/// Writes families, each with values of its kind.
pub struct Writer<'a, S>(pub &'a mut S);

impl<S: Sink> Writer<'_, S> {
    /// A gauge without labels; left out where its value is not known.
    ///
    /// # Errors
    /// The sink cannot write it.
    pub fn gauge(&mut self, metric: &'static Metric, value: Option<f64>) -> fmt::Result {
        self.gauges(metric, value.map(|value| (Vec::new(), value)))
    }

    /// A counter without labels.
    ///
    /// # Errors
    /// The sink cannot write it.
    pub fn counter(&mut self, metric: &'static Metric, value: u64) -> fmt::Result {
        self.counters(metric, [(Vec::new(), value)])
    }

    /// A gauge with labels.
    ///
    /// # Errors
    /// The sink cannot write it.
    pub fn gauges<'v>(
        &mut self,
        metric: &'static Metric,
        samples: impl IntoIterator<Item = (Values<'v>, f64)>,
    ) -> fmt::Result {
        self.family(metric, Kind::Gauge, samples, Value::Gauge)
    }

    /// A counter with labels.
    ///
    /// # Errors
    /// The sink cannot write it.
    pub fn counters<'v>(
        &mut self,
        metric: &'static Metric,
        samples: impl IntoIterator<Item = (Values<'v>, u64)>,
    ) -> fmt::Result {
        self.family(metric, Kind::Counter, samples, Value::Counter)
    }

    /// A counter of seconds, with labels.
    ///
    /// # Errors
    /// The sink cannot write it.
    pub fn seconds_counters<'v>(
        &mut self,
        metric: &'static Metric,
        samples: impl IntoIterator<Item = (Values<'v>, f64)>,
    ) -> fmt::Result {
        self.family(metric, Kind::Counter, samples, Value::Seconds)
    }

    /// Information: the labels have it.
    ///
    /// # Errors
    /// The sink cannot write it.
    pub fn infos<'v>(
        &mut self,
        metric: &'static Metric,
        samples: impl IntoIterator<Item = Values<'v>>,
    ) -> fmt::Result {
        let samples = samples.into_iter().map(|values| (values, ()));
        self.family(metric, Kind::Info, samples, |()| Value::Info)
    }

    /// A histogram without labels.
    ///
    /// # Errors
    /// The sink cannot write it.
    pub fn histogram<B: Bounds>(
        &mut self,
        metric: &'static Metric,
        histogram: &Histogram<B>,
    ) -> fmt::Result {
        self.histograms(metric, [(Vec::new(), histogram)])
    }

    /// A histogram with labels.
    ///
    /// # Errors
    /// The sink cannot write it.
    pub fn histograms<'v, 'h, B: Bounds + 'h>(
        &mut self,
        metric: &'static Metric,
        samples: impl IntoIterator<Item = (Values<'v>, &'h Histogram<B>)>,
    ) -> fmt::Result {
        self.family(metric, Kind::Histogram, samples, |histogram| Value::Times {
            sum: histogram.sum(),
            count: histogram.count(),
            buckets: histogram.buckets(),
        })
    }

    fn family<'v, V>(
        &mut self,
        metric: &'static Metric,
        kind: Kind,
        samples: impl IntoIterator<Item = (Values<'v>, V)>,
        value: impl Fn(V) -> Value,
    ) -> fmt::Result {
        debug_assert_eq!(metric.kind, kind, "{}", metric.name);
        let samples = samples.into_iter().map(|(values, of)| {
            debug_assert_eq!(values.len(), metric.labels.len(), "{}", metric.name);
            (values, value(of))
        });
        self.0.family(metric, samples)
    }
}
