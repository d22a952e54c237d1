# What CI does, and the parts of it.

default: ci

fmt:
    cargo fmt --all

lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --all-features --locked -- -D warnings

# `just deny advisories` asks the advisory database too, which needs a network.
deny *what="bans licenses sources":
    cargo deny check {{what}}

docs:
    mdbook build
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

test:
    tests/run

# Explores, for minutes or hours: `just soak`, `just soak fleets`; see docs/development.md.
soak *parts:
    tests/run soak {{parts}}

# Builds the programs that ship and their packages, and tries them: `just ship`, `just ship deb`; see docs/development.md.
ship *parts:
    tests/run ship {{parts}}

# Ten thousand plugins that come, crash and go, and what the agent keeps of them; takes many minutes.
leak cycles="10000":
    LEAK_CYCLES={{cycles}} tests/run soak leak

# A whole fleet through long damage, and rollouts through damage, on SQLite and on NATS, with one seed after the other; takes hours. A
# failure prints its seed.
fleet-nightly runs="10" seconds="600":
    for run in $(seq {{runs}}); do FLEET_SECONDS={{seconds}} tests/run soak fleets || exit 1; done

# Rollouts with all their processes on a ledger that fails, seed after seed; a failure prints its seed.
rollouts-nightly seeds="5000":
    ROLLOUT_SEEDS={{seeds}} cargo test --workspace --locked --lib rollouts::simulation::a_rollout -- --nocapture

# What small things cost, as multiples of reference workloads beside them; fails where a cost crept in.
bench-micro *filter:
    cargo bench --package guest-agent --locked --bench micro -- {{filter}}

# Stores what they cost now as what they may cost.
bench-micro-renew:
    UPDATE_REFERENCE=1 cargo bench --package guest-agent --locked --bench micro

# The package on a whole Debian with systemd, in a virtual machine or a container; see tests/vm/README.md.
vm-test:
    tests/vm/get-debian "${CARGO_TARGET_DIR:-target}"
    tests/package/build-deb "${CARGO_TARGET_DIR:-target}/debian"
    cargo test --workspace --locked vm::debian -- --include-ignored --nocapture

# Writes what is generated: protobuf code, reference pages and the lifecycle diagram.
gen:
    UPDATE_GENERATED=1 cargo test -p guest-agent-proto --test generated
    UPDATE_GENERATED=1 cargo test --test documentation
    UPDATE_GENERATED=1 cargo test --workspace --lib schemas::published
    UPDATE_GENERATED=1 cargo test -p guest-fleet-server --lib observe::tests
    UPDATE_GENERATED=1 cargo test -p guest-fleet-server --test bounds
    UPDATE_DIAGRAM=1 cargo test -p guest-agent-actors --test machine lifecycle_diagram

# The Debian package, in the target folder's debian/; `just package-test` installs and purges it in a chroot. `just deb guest-fleet`
# makes that of the control plane.
deb package="guest-agent":
    tests/package/build-deb "${CARGO_TARGET_DIR:-target}/debian" "" {{package}}

package-test package="guest-agent":
    tests/package/chroot-test "$(tests/package/build-deb "${CARGO_TARGET_DIR:-target}/debian" "" {{package}})"

rpm package="guest-agent":
    tests/package/rpm-test "$(tests/package/build-rpm "${CARGO_TARGET_DIR:-target}/rpm" "" {{package}})"

# The program that ships: static, for any distribution.
musl package="guest-agent":
    tests/package/build-program {{package}}

# Measures the program that ships against baselines and writes docs/performance.md, in about half an hour; `just bench
# --short` makes fewer rounds and writes nothing. Both build it first.
bench *args:
    cargo bench -p guest-agent --bench whole -- {{args}}

# Pictures of what people see, in the target folder's screenshots/.
screenshots:
    tests/console/get-chromium
    cargo test --workspace --test agent console::screenshots -- --ignored --nocapture
    tests/screenshots/top

run *args:
    cargo run -- dev {{args}}

ci:
    .ci/run
