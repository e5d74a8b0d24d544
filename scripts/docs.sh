#!/usr/bin/env bash
# Builds the book and the Rust documentation, and checks that every relative link of the book leads somewhere.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$root"

mdbook build docs --dest-dir "$CARGO_TARGET_DIR/book"

broken=0
for page in README.md ARCHITECTURE.md CONTRIBUTING.md docs/*.md docs/decisions/*.md docs/protocol/*.md; do
  while read -r target; do
    if [[ ! -e $(dirname "$page")/$target ]]; then
      echo "$page links to $target, which does not exist" >&2
      broken=1
    fi
  done < <(grep -oE '\]\([^)#]+' "$page" | sed 's/^](//' | grep -vE '^[a-z]+:' || true)
done
((broken == 0))

RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
