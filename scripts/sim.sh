#!/usr/bin/env bash
# Runs simulations on fixed seeds with the binary of the test build: every run of CI tries the same worlds.
#   scripts/sim.sh [MINUTES]     at most this many minutes (default 8)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$root"

minutes=${1:-8}
cargo test --workspace --no-run --quiet
# The first 200 seeds always run; the rest of the time goes to further fixed seeds.
tidings sim all --seeds 1..200
tidings sim all --seeds 1000..1000000 --minutes "$minutes"
