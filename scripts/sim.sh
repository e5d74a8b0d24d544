#!/usr/bin/env bash
# Runs simulations on fixed seeds with the binary of the test build: every run of CI tries the same worlds, as many of
# them as fit into the time.
#   scripts/sim.sh [MINUTES]     altogether (default 8)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$root"

minutes=${1:-8}
cargo test --workspace --no-run --quiet
begin=$SECONDS
# The openraft binding under the suite that the model passes, on more seeds than in the tests.
TIDINGS_SEEDS=200..206 cargo test --workspace --quiet --test it -- --ignored the_binding_does_it_with_many_seeds
# The first seeds always run to the end; the rest of the time goes to further ones.
tidings sim store --seeds 1..200
tidings sim cell --seeds 1..20
tidings sim cell-directed --seeds 1..6
tidings sim placement --seeds 1..40
tidings sim placement-directed --seeds 1..6
tidings sim notify --seeds 1..4
left=$((minutes * 60 - (SECONDS - begin)))
if ((left > 10)); then
  tidings sim store --seeds 1001..1000000 --minutes "$(awk "BEGIN { print $left / 60 }")"
fi
