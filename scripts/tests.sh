#!/usr/bin/env bash
# The README's test command, with a second chance for tests of real processes: what failed while everything ran at once is run
# again alone, one test at a time. Red twice is red; red once is told at the end, and is a defect of that test.
#   scripts/tests.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$root"

mkdir -p "$CARGO_TARGET_DIR"
said=$CARGO_TARGET_DIR/tests.out
if cargo test --workspace --no-fail-fast 2>&1 | tee "$said"; then
  exit 0
fi

mapfile -t failed < <(sed -nE 's/^test ([^ ]+)( - should panic)? \.\.\. FAILED$/\1/p' "$said" | sort -u)
count() { grep -cE "$1" "$said" || true; }
# Nothing compiled, more is red than haste explains, a document's example failed, or a test program died.
if ((${#failed[@]} == 0 || ${#failed[@]} > 5)) \
  || (($(count '^test .* \.\.\. FAILED$') != $(count '^test [^ ]+( - should panic)? \.\.\. FAILED$'))) \
  || (($(count '^test result: FAILED') != $(count "^    \`.*\`$"))); then
  echo "red: ${#failed[@]} tests"
  exit 1
fi

printf '\nfailed, and tried again alone:\n'
printf '  %s\n' "${failed[@]}"
again=$CARGO_TARGET_DIR/tests-again.out
cargo test --workspace --no-fail-fast --lib --bins --tests -- --exact "${failed[@]}" --test-threads 1 2>&1 | tee "$again"
for name in "${failed[@]}"; do
  if ! grep -qF "test $name ... ok" "$again" && ! grep -qF "test $name - should panic ... ok" "$again"; then
    echo "$name did not run again"
    exit 1
  fi
done
printf '\nunsteady: green alone, red among the others:\n'
printf '  %s\n' "${failed[@]}"
