# Sourced by scripts/nginx.sh: a browser as it is loads a page that asks for many things, from nginx and three times from the
# proxy, by HTTP/1.1 and by HTTP/2 with TLS. What it got is the same.

# Where Chromium cannot be installed, that is said.
browser() {
  command -v chromium && return 0
  command -v chromium-browser && return 0
  if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -q -y -o DPkg::Lock::Timeout=120 install --no-install-recommends chromium \
      </dev/null >/dev/null 2>&1 && command -v chromium
  fi
}

# What the page wrote down; each time by a browser that knows nothing yet.
dump() { # base -> lines
  local own
  own=$(mktemp -d "$place/browser.XXXXXX")
  timeout 120 "$chromium" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-extensions \
    --disable-background-networking --disable-component-update --ignore-certificate-errors --user-data-dir="$own" \
    --virtual-time-budget=60000 --dump-dom "$1/browser/" </dev/null 2>"$own.err" |
    sed -n '/<pre id="results">/,/<\/pre>/p' | sed 's/.*<pre id="results">//; s/<\/pre>.*//'
  rm -rf "$own"
}

by_browser() { # what direct proxy
  local round
  dump "$2" >"$place/browser-direct"
  if ! grep -q '^all asked' "$place/browser-direct"; then
    echo "the browser did not get to the end of the page that nginx gave it:"
    cat "$place/browser-direct" "$place"/browser.*.err
    exit 1
  fi
  for round in 1 2 3; do
    dump "$3" >"$place/browser-proxy"
    if ! diff "$place/browser-direct" "$place/browser-proxy"; then
      echo "round $round, $1: the browser gets (>) what nginx does not give it (<)"
      exit 1
    fi
  done
  echo "Chromium, $1: $(wc -l <"$place/browser-direct") lines of what it got, three times the same as from nginx"
}

if chromium=$(browser); then
  by_browser "HTTP/1.1" "$direct" "$proxy"
  by_browser "HTTP/2 with TLS" "$direct_tls" "$proxy_tls"
else
  echo "NOT checked with a browser: Chromium is not here and cannot be installed"
fi
