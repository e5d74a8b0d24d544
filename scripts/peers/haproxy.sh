#!/usr/bin/env bash
# Installs Debian's HAProxy for `tidings bench sketch --peer haproxy`. The bench starts its own, with its own configuration and port.
set -euo pipefail

if PATH=$PATH:/usr/sbin command -v haproxy >/dev/null; then
  PATH=$PATH:/usr/sbin haproxy -v | head -n 1
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
get=(timeout 300 apt-get -q -y -o DPkg::Lock::Timeout=120)
"${get[@]}" install --no-install-recommends haproxy </dev/null >/dev/null 2>&1 || {
  "${get[@]}" update </dev/null >/dev/null
  "${get[@]}" install --no-install-recommends haproxy </dev/null >/dev/null
}
PATH=$PATH:/usr/sbin haproxy -v | head -n 1
