//! What an INSTALL does, seen from all sides.

use crate::harness::{Bed, orders};

#[tokio::test]
async fn an_installed_plugin_runs_and_is_reported_in_order() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.expect_events("echo", &[1, 4, 3]).await;
    let status = bed.running("echo", "1").await;
    assert_eq!(bed.processes("echo"), [status.pid.unwrap()]);
    let listed = bed.listed("echo").await.unwrap();
    assert_eq!(listed.current_revision_id, "1");
    assert_eq!(listed.current_plugin_status.unwrap().status, 2);
    bed.finish().await;
}
