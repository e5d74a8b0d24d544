#!/usr/bin/env bash
# Kills real servers under load (SIGKILL; the cell's master, placement's leader and its owners also with SIGSTOP): one node, the
# store's leader of three, the cell's master of three (under writers and locks; under readers with caches, whose history is
# judged), placement's leader and owners, any of three under listeners; and checks every acknowledged write, lock, session,
# cached read and version, and that no key has two owners or stays without one.
#   scripts/kill.sh [SECONDS|MINUTESm]    altogether (default 60; `15m` is fifteen minutes)
#   KILL_CLIENTS=2000 scripts/kill.sh 15m  and under a crowd of so many WebSocket clients, of which nobody may end stale
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$root"

duration=${1:-60}
case $duration in
  *m) seconds=$((${duration%m} * 60)) ;;
  *) seconds=$duration ;;
esac
if [[ -n ${KILL_CLIENTS:-} ]]; then
  export KILL_CLIENTS
  KILL_SECONDS=$((seconds / 7)) cargo test --workspace --quiet --test it -- --ignored kill_loop kill_crowd
else
  KILL_SECONDS=$((seconds / 6)) cargo test --workspace --quiet --test it -- --ignored kill_loop
fi
