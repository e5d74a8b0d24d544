#!/usr/bin/env bash
# The BFT group's long tests on its real engine: the suite of the order with 4 and 7 replicas under the engine's deterministic
# runtime, and four replicas over TCP of which one is stopped, comes back, and loses its disk; then groups of 4, 7, 10 and 13
# processes of the real binary, which are killed, stopped and away for long, and of which some lie.
#   scripts/bft.sh             all of it, some ten minutes
#   scripts/bft.sh --liars     groups of which some lie, and nothing else: part of .ci/run
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$root"

# All crates are named, so that nothing is built again with other features.
if [[ ${1:-} == --liars ]]; then
  cargo test --locked --workspace --features bft-sins --test bft -- who_lies two_liars
  exit
fi
step "the group on its engine" cargo test --locked --workspace --features tidings-bft/engine-tests --test engine -- --test-threads=1
step "replicas as processes, killed and lying" cargo test --locked --workspace --features bft-sins --test bft
