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
# Says how fast it went, too: hours of simulated time in a minute of ours.
simulate() {
  local said=$CARGO_TARGET_DIR/sim.out from=$EPOCHREALTIME
  tidings sim "$@" | tee "$said"
  awk -v from="$from" -v to="$EPOCHREALTIME" '/ simulated hours,/ { for (i = 2; i <= NF; i++) if ($i == "simulated") hours += $(i - 1) }
    END { if (to > from) printf "%.0f simulated hours a minute\n", hours * 60 / (to - from) }' "$said"
}
# The openraft binding under the suite that the model passes, on more seeds than in the tests.
TIDINGS_SEEDS=200..206 cargo test --workspace --quiet --test it -- --ignored the_binding_does_it_with_many_seeds
# The first seeds always run to the end; the rest of the time goes to further ones.
simulate wire --seeds 1..30
simulate store --seeds 1..150
simulate cell --seeds 1..12
simulate cell-directed --seeds 1..4
simulate cell-guarded --seeds 1..2
simulate placement --seeds 1..30
simulate placement-directed --seeds 1..4
simulate notify --seeds 19..21
simulate notify-directed --seeds 1..3
simulate tables --seeds 4..6
simulate sketch --seeds 1..3
simulate sketch-direct --seeds 1..3
left=$((minutes * 60 - (SECONDS - begin)))
if ((left > 10)); then
  simulate store --seeds 1001..1000000 --minutes "$(awk "BEGIN { print $left / 60 }")"
elif ((left < 0)); then
  echo "the first seeds alone took $((SECONDS - begin)) s, more than the $minutes minutes there are: take fewer of them"
  # A busy machine may be slow for a while; twice as long is too much.
  ((left > -minutes * 60))
fi
