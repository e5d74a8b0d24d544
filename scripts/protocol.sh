#!/usr/bin/env bash
# A client of Notify that knows nothing but docs/protocol/notify.md, on somebody else's WebSockets, against a real node.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$root"

packages=(websockets==15.0.1 xxhash==3.5.0)
python=$cache/python
mark=$python/.$(printf '%s-' "${packages[@]}")
unchecked() {
  echo "the protocol: NOT checked with a foreign client, $1"
  exit 0
}
if [[ ! -e $mark ]] || ! "$python/venv/bin/python" -c '' 2>/dev/null; then
  mkdir -p "$python"
  python3 -m venv --clear "$python/venv" || unchecked "there is no python3 with venv here"
  timeout 60 "$python/venv/bin/pip" download --quiet --dest "$python/packages" "${packages[@]}" ||
    unchecked "its packages (${packages[*]}) are out of reach from here"
  "$python/venv/bin/pip" install --quiet --no-index --find-links "$python/packages" "${packages[@]}"
  touch "$mark"
fi

cargo test --workspace --no-run --quiet
"$python/venv/bin/python" tests/foreign/notify.py "$CARGO_TARGET_DIR/debug/tidings"
