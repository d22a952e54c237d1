//! The link over a vsock, which needs a kernel that has one.

use super::world::World;
use crate::harness::{RESOURCE, orders};

/// A control plane behind a vsock: the machine's own, which leads on to the one outside.
pub(super) async fn vsock_is_a_link(world: &mut World) {
    let (code, said) = world.guest.run("modprobe vsock_loopback && [ -e /dev/vsock ]").await;
    if code != 0 {
        return println!("SKIPPED: the kernel of the machine has no vsock: {said}");
    }
    let relay = "systemd-run --quiet --unit=relay socat VSOCK-LISTEN:5000,fork \
                 OPENSSL:169.254.169.100:443,verify=0";
    world.guest.ok(relay).await;
    let endpoint = "printf '[control_plane]\\nendpoint = \"vsock:1:5000\"\\n' >/etc/guest-agent/conf.d/70-test.toml";
    world.guest.ok(&format!("{endpoint} && systemctl restart guest-agent.service")).await;
    world.connected().await;
    let uses = "ss --vsock --no-header --numeric state connected 2>/dev/null | grep --quiet 5000";
    world.guest.until("the link is a vsock", uses).await;
    world.configure(orders::apply("web", Some("over a vsock"))).await;
    world.event(12, "web").await;
    world.guest.ok("grep --quiet 'over a vsock' /var/lib/guest-agent/test/state/web/told").await;
    let old = world.control_plane.gateway().connection(RESOURCE);
    world
        .guest
        .ok("rm /etc/guest-agent/conf.d/70-test.toml && systemctl restart guest-agent.service")
        .await;
    world.connected().await;
    assert_ne!(
        world.control_plane.gateway().connection(RESOURCE).map(|it| it.stream),
        old.map(|it| it.stream)
    );
    world.guest.ok("systemctl stop relay.service").await;
}
