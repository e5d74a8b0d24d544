#!/usr/bin/env bash
# Kills real servers (SIGKILL) under load, one node and the leader of three, and checks every acknowledged write.
#   scripts/kill.sh [SECONDS]    altogether (default 40)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$root"

seconds=${1:-40}
KILL_SECONDS=$((seconds / 2)) cargo test --workspace --quiet --test it -- --ignored kill_loop
