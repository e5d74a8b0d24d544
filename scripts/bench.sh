#!/usr/bin/env bash
# Sees that every bench runs to its end. For figures to keep: cargo run --release -- bench store wire cell placement tables notify sketch bft
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$root"

cargo test --workspace --no-run --quiet
tidings bench store wire cell placement tables notify sketch bft --quick --dir "$CARGO_TARGET_DIR" --json >/dev/null
