#!/usr/bin/env bash
# Runs simulations on fresh seeds: a thousand of the cell and of the store and a hundred of the cell under aimed faults in any
# case, the BFT group's engine under its deterministic runtime on eight, then everything for as long as asked. A failure prints the
# line that replays it; of the engine's, TIDINGS_ORDER_SEEDS=SEED..SEED before the command that stands below.
#   scripts/soak.sh [MINUTES]    default 60
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$root"

minutes=${1:-60}
first=$(($(date +%s) * 1000))
cargo test --workspace --no-run --quiet
echo "fresh seeds from $first"
tidings sim wire --seeds "$first..$((first + 999))"
tidings sim cell --seeds "$first..$((first + 999))"
tidings sim store --seeds "$first..$((first + 999))"
tidings sim cell-directed --seeds "$first..$((first + 99))"
tidings sim cell-guarded --seeds "$first..$((first + 99))"
tidings sim placement --seeds "$first..$((first + 999))"
tidings sim placement-directed --seeds "$first..$((first + 99))"
tidings sim notify --seeds "$first..$((first + 999))"
tidings sim notify-directed --seeds "$first..$((first + 99))"
tidings sim tables --seeds "$first..$((first + 999))"
tidings sim sketch --seeds "$first..$((first + 999))"
# Some twenty seconds a seed: with four replicas, and with seven.
TIDINGS_ORDER_SEEDS="$first..$((first + 7))" nice cargo test --workspace --features tidings-bft/engine-tests --test engine \
  -- --test-threads=1 --nocapture ordered
tidings sim all --seeds "$first..$((first + 1000000))" --minutes "$minutes"
