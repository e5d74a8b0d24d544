#!/usr/bin/env bash
# The BFT group on its real engine: the suite of the order with 4 and 7 replicas under the engine's deterministic runtime, and
# four replicas over TCP of which one is stopped, comes back, and loses its disk; then groups of 4, 7, 10 and 13 processes of
# the real binary, which are killed and stopped, and of which some lie. The engine builds for minutes, with features of its
# own, so it has a target directory of its own. Not part of .ci/run.
#   scripts/bft.sh [FILTER]    tests whose names hold this
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$root"
export CARGO_TARGET_DIR=$CARGO_TARGET_DIR/bft

step "the engine's own pieces" cargo test --locked -p tidings-bft --features engine --lib -- engine:: mark::
step "the group on its engine" cargo test --locked -p tidings-bft --features engine --test engine -- --test-threads=1 "${1:-}"
step "replicas as processes, killed and lying" cargo test --locked --features bft-sins --test bft -- "${1:-}"
