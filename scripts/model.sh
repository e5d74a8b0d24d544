#!/usr/bin/env bash
# Explores the models of placement further than the tests do: ten minutes on a quiet machine, each exploration
# bounded by itself. Not part of .ci/run.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$root"

step "models, explored" cargo test -p tidings-placement --test it -- --ignored --nocapture nothing_is_wrong_for_ten_minutes
step "models, walked" cargo test -p tidings-placement --test it -- --ignored --nocapture nothing_goes_wrong_on_many_walks
