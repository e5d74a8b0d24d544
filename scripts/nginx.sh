#!/usr/bin/env bash
# Five real nginx behind `tidings sketch run`, of which one is wrong and one out of date: whoever asks the proxy with curl gets
# what a right nginx says: the same statuses, bodies and headers. Every request is put to nginx once and to the proxy twice, so
# that both ways of the proxy are taken: agreed, then fast. Then a browser, Chromium as it is, loads a page of many requests.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$root"

unchecked() {
  echo "the proxy: NOT checked before nginx, $1"
  exit 0
}

# Nothing of the system's nginx is used but its program: no service, no port 80, no file of /etc.
install() {
  local missing=() program
  for program in nginx curl openssl; do
    PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || missing+=("$program")
  done
  ((${#missing[@]})) || return 0
  command -v apt-get >/dev/null || unchecked "there is no apt-get here to install ${missing[*]}"
  [[ $(id -u) == 0 ]] || unchecked "only root can install ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  local get=(timeout 300 apt-get -q -y -o DPkg::Lock::Timeout=120)
  if ! "${get[@]}" install --no-install-recommends "${missing[@]}" </dev/null >/dev/null 2>&1; then
    "${get[@]}" update </dev/null >/dev/null 2>&1 || true
    "${get[@]}" install --no-install-recommends "${missing[@]}" </dev/null >/dev/null ||
      unchecked "${missing[*]} cannot be installed from here"
  fi
}
install
export PATH=$PATH:/usr/sbin
cargo test --workspace --no-run --quiet

place=$(mktemp -d "${TMPDIR:-/tmp}/tidings-nginx.XXXXXX")
started=()
# Ends what was started here, and nothing else.
finish() {
  local pid
  for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${started[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$place"
}
trap finish EXIT

"$root/tests/foreign/nginx/site.sh" "$place"
source "$root/tests/foreign/nginx/servers.sh"
source "$root/tests/foreign/nginx/asking.sh"
source "$root/tests/foreign/nginx/requests.sh"
conclude
source "$root/tests/foreign/nginx/browser.sh"
