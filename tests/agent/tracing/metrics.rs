//! The metrics that a collector gets.

use std::collections::{BTreeMap, BTreeSet};

use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::MetricsService;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{Metric, NumberDataPoint};

use super::*;

#[tonic::async_trait]
impl MetricsService for Service {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        authorize(&request)?;
        for resource in request.into_inner().resource_metrics {
            let who = resource.resource.unwrap_or_default().attributes;
            assert!(who.iter().any(|pair| pair.key == "service.instance.id"), "{who:?}");
            let metrics = resource.scope_metrics.into_iter().flat_map(|scope| scope.metrics);
            let mut newest = self.metrics.lock().unwrap();
            newest.extend(metrics.map(|metric| (metric.name.clone(), metric)));
        }
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

fn points(metric: &Metric) -> &[NumberDataPoint] {
    match metric.data.as_ref().unwrap() {
        Data::Gauge(gauge) => &gauge.data_points,
        Data::Sum(sum) => &sum.data_points,
        _ => &[],
    }
}

// === impl Collector ===

impl Collector {
    /// The newest of each metric, by name.
    fn metrics(&self) -> BTreeMap<String, Metric> {
        self.metrics.lock().unwrap().clone()
    }

    /// The value of the only sample that has these labels and no others.
    fn number(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let metrics = self.metrics();
        let has = |point: &&NumberDataPoint| {
            let found = point.attributes.iter();
            let found: BTreeSet<_> =
                found.map(|pair| (pair.key.clone(), plain(pair.value.as_ref()))).collect();
            let wanted = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            found == wanted.collect()
        };
        match points(metrics.get(name)?).iter().find(has)?.value? {
            Value::AsDouble(number) => Some(number),
            Value::AsInt(number) => i32::try_from(number).ok().map(f64::from),
        }
    }

    async fn says(&self, bed: &Bed, name: &str, labels: &[(&str, &str)], expected: f64) {
        bed.until(&format!("{name} {labels:?} is {expected}"), async || {
            (self.number(name, labels) == Some(expected)).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_collector_gets_the_metrics_that_the_page_has() {
    let (mut bed, socket) = bed().await;
    bed.set("telemetry.metrics_interval=200ms");
    bed.set("telemetry.traces=false");
    bed.set("api.http_listen=127.0.0.1:0");
    bed.start_agent().await;
    // The collector comes later than the agent, and gets what was counted before.
    let away = "the collector does not accept metrics";
    bed.until("one warning", async || bed.log().contains(away).then_some(())).await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("web", "r1", &echo).order()]).await;
    bed.running("web", "r1").await;
    let collector = Collector::listen(socket, None);
    let web = ("plugin", "web");
    collector.says(&bed, "guest_agent_plugin_state", &[web, ("state", "RUNNING")], 1.0).await;
    let taken = [("kind", "install"), ("outcome", "taken")];
    collector.says(&bed, "guest_agent_orders", &taken, 1.0).await;
    collector.says(&bed, "guest_agent_installs", &[("outcome", "installed")], 1.0).await;
    collector.says(&bed, "guest_agent_plugin_restarts", &[web], 0.0).await;
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    collector.says(&bed, "guest_agent_build_info", &version, 1.0).await;
    assert_eq!(bed.log().matches(away).count(), 1, "said once");
    // Said when the answer to the first message is there; the collector has it before.
    let back = "the collector accepts metrics again";
    bed.until("its return", async || bed.log().contains(back).then_some(())).await;

    // What Prometheus would make of them is what the page has.
    let page = bed.get("/metrics").await.body;
    let on_page: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    bed.until("all of the page", async || {
        let metrics = collector.metrics();
        let names = metrics.values().map(|metric| {
            let unit = match metric.unit.as_str() {
                "s" => "_seconds",
                "By" => "_bytes",
                _ => "",
            };
            let is_counter = matches!(&metric.data, Some(Data::Sum(sum)) if sum.is_monotonic);
            format!("{}{unit}{}", metric.name, if is_counter { "_total" } else { "" })
        });
        let names: BTreeSet<String> = names.collect();
        on_page.iter().all(|name| names.contains(*name)).then_some(())
    })
    .await;
    let metrics = collector.metrics();
    let Some(Data::Histogram(saves)) = &metrics["guest_agent_save_duration"].data else {
        panic!("{metrics:?}");
    };
    let [saves] = &saves.data_points[..] else { panic!("{saves:?}") };
    assert!(saves.count > 0 && saves.bucket_counts.iter().sum::<u64>() == saves.count);
    let orders = &points(&metrics["guest_agent_orders"])[0];
    assert!(0 < orders.start_time_unix_nano && orders.start_time_unix_nano < orders.time_unix_nano);

    // A crash is counted.
    crate::harness::signal(bed.processes("web")[0], nix::sys::signal::Signal::SIGKILL);
    collector.says(&bed, "guest_agent_plugin_restarts", &[web], 1.0).await;
    assert!(collector.all().is_empty(), "traces were not wanted");
    bed.running("web", "r1").await;
    bed.finish().await;
}
