# Sourced by .ci/run and the scripts: headings, durations, and the directories outside the clone.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${TIDINGS_CACHE:-$HOME/.cache/tidings}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$cache/target}
export PATH=$cache/tools/bin:$PATH

# step "what it is" command… : a heading, the command, its duration.
step() {
  local what=$1 begin=$SECONDS
  shift
  printf '\n==> %s\n' "$what"
  "$@"
  printf '<== %s: %d s\n' "$what" $((SECONDS - begin))
}

# The binary of the test build, so that nothing is compiled a second time.
tidings() {
  "$CARGO_TARGET_DIR/debug/tidings" "$@"
}
