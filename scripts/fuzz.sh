#!/usr/bin/env bash
# Checks that the fuzz target compiles: a package of its own, so nothing else would notice that it no longer does. To run it
# takes nightly; crates/wire/fuzz/Cargo.toml says how.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$root"

# The versions of the workspace, with libFuzzer beside them.
cp Cargo.lock crates/wire/fuzz/Cargo.lock
# Nothing is linked here, so libFuzzer itself, and a C++ compiler for it, can be missing.
CUSTOM_LIBFUZZER_PATH=/missing/libfuzzer.a cargo check --manifest-path crates/wire/fuzz/Cargo.toml
