# Sourced by scripts/nginx.sh: five nginx on ports of their own (three right, one wrong, one out of date), and three proxies.
# Sets direct, direct_h2, direct_tls; proxy, proxy_tls, writes; admin.

statuses=(200 201 202 203 400 401 402 403 404 405 406 409 410 411 412 413 415 416 417 418 422 423 424 426 428 429 431 451 500 501 502 503 504 507)

# What right and stale servers have in common.
locations() {
  local code
  for code in "${statuses[@]}"; do
    printf 'location = /status/%s { default_type text/plain; return %s "status %s\\n"; }\n' "$code" "$code" "$code"
    printf 'location = /bare/%s { return %s; }\n' "$code" "$code"
  done
  for code in 301 302 303 307 308; do
    printf 'location = /status/%s { return %s /elsewhere?code=%s; }\n' "$code" "$code" "$code"
    printf 'location = /away/%s { return %s https://example.org/a?b=c; }\n' "$code" "$code"
  done
  cat <<'CONF'
location = /status/204 { return 204; }
location /old/ { rewrite ^/old/(.*)$ /dir/$1 permanent; }
location /other/ { rewrite ^/other/(.*)$ /dir/$1 redirect; }
location /inside/ { rewrite ^/inside/(.*)$ /dir/$1 last; }
location /private/ { deny all; }
location /auth/ { auth_basic "users only"; auth_basic_user_file PLACE/passwords; }
location /list/ { autoindex on; }
location /ssi/ { ssi on; }
location /sub/ { sub_filter PLACEHOLDER replaced; sub_filter_once off; }
location /trailers/ { add_trailer X-Sum "a sum"; add_trailer X-Other two; }
location /expires/ { expires 1h; }
location /expires-epoch { expires epoch; default_type text/plain; return 200 "long ago\n"; }
location /expires-not { expires -1; default_type text/plain; return 200 "never\n"; }
location /expires-max { expires max; default_type text/plain; return 200 "for ever\n"; }
location = /cookies { add_header Set-Cookie "a=1; Path=/"; add_header Set-Cookie "b=2; HttpOnly"; default_type text/plain; return 200 "cookies\n"; }
location = /headers {
  add_header X-Single one; add_header X-Twice first; add_header X-Twice second; add_header Link "</style.css>; rel=preload";
  add_header Content-Language de; add_header Content-Disposition "attachment; filename=a.txt"; add_header Cache-Control "public, max-age=60";
  add_header X-Empty ""; add_header X-Long LONG; add_header X-Always yes always; default_type text/plain; return 200 "headers\n";
}
location = /headers-of-errors { add_header X-Always yes always; add_header X-Sometimes yes; return 404 "gone\n"; }
location = /packed { add_header Content-Encoding gzip; default_type text/plain; alias PLACE/packed.gz; }
location = /inputs { default_type text/plain; return 200 "$request_method|$args|$host|$http_accept|$http_accept_language|$http_cookie|$content_type|$http_origin|$http_user_agent\n"; }
location /echo/ { default_type text/plain; return 200 "$request_uri|$uri|$args\n"; }
location = /language { add_header Vary Accept-Language; default_type text/plain; return 200 "$language\n"; }
location = /picture { add_header Vary Accept; default_type text/plain; return 200 "$format\n"; }
location = /write { default_type text/plain; return 200 "$request_method|$content_type|$args\n"; }
location = /only-get { limit_except GET { deny all; } }
location = /get-only/page.txt { limit_except GET { deny all; } alias ROOT/dir/sub/page.txt; }
location /dav/ { root OWN; dav_methods PUT DELETE MKCOL; create_full_put_path on; }
CONF
}

configuration() { # number root extra-listens
  local own=$place/server-$1
  mkdir -p "$own/dav/dav"
  [[ $(id -u) != 0 ]] || echo 'user root;'
  cat <<CONF
worker_processes 1;
daemon off;
pid $own/pid;
error_log $own/error.log;
events { worker_connections 512; }
http {
  access_log off;
  client_body_temp_path $own/body; proxy_temp_path $own/proxy; fastcgi_temp_path $own/fastcgi;
  uwsgi_temp_path $own/uwsgi; scgi_temp_path $own/scgi;
  types { text/html html; text/plain txt; text/css css; application/javascript js; application/json json; image/svg+xml svg; image/png png; }
  default_type application/octet-stream;
  charset utf-8;
  gzip on; gzip_vary on; gzip_min_length 1024;
  gzip_types text/plain text/css application/javascript application/json application/xml image/svg+xml application/wasm;
  map \$http_accept_language \$language { default english; ~^de deutsch; ~^fr français; }
  map \$http_accept \$format { default png; ~webp webp; }
  server {
    listen 127.0.0.1:${ports[$1]};
    $3
    server_name site.test;
    ssl_certificate $place/certificate.pem; ssl_certificate_key $place/key.pem;
    root $2;
    # What differs between servers that serve the same: their own port in redirects.
    absolute_redirect off;
    # RFC 9110: a page is not modified if it is not newer; by default nginx wants the very same date.
    if_modified_since before;
    error_page 404 /404.html;
    $4
  }
  server { listen 127.0.0.1:${ports[$1]}; server_name other.test; location / { default_type text/plain; return 200 "another host\n"; } }
}
CONF
}

# Ports that nobody listens on at this moment; whoever takes one in between makes a server fail, and others are tried.
free_ports() { # how many
  local port
  while ((${#ports[@]} < $1)); do
    port=$((20000 + RANDOM % 12000))
    if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && [[ " ${ports[*]} " != *" $port "* ]]; then
      ports+=("$port")
    fi
  done
}

answers() { # port pid
  local tries
  for ((tries = 0; tries < 300; tries++)); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then return 0; fi
    kill -0 "$2" 2>/dev/null || return 1
    sleep 0.1
  done
  return 1
}

start_servers() {
  local number pid common root extra own_locations begun=()
  ports=()
  free_ports 7
  direct_h2_port=${ports[5]} direct_tls_port=${ports[6]}
  common=$(locations)
  common=${common//LONG/$(printf 'long%.0s' {1..1000})}
  for number in 0 1 2 3 4; do
    root=$place/right extra='' own_locations=$common
    ((number != 0)) || extra="listen 127.0.0.1:$direct_h2_port http2; listen 127.0.0.1:$direct_tls_port ssl http2;"
    ((number != 3)) || own_locations='location / { default_type text/html; return 200 "made up"; }'
    ((number != 4)) || root=$place/stale
    own_locations=${own_locations//PLACE\//$place/}
    own_locations=${own_locations//OWN/$place/server-$number/dav}
    own_locations=${own_locations//ROOT/$root}
    configuration "$number" "$root" "$extra" "$own_locations" >"$place/nginx-$number.conf"
    nginx -c "$place/nginx-$number.conf" </dev/null >"$place/server-$number/out" 2>&1 &
    pid=$!
    started+=("$pid") begun+=("$pid")
  done
  for number in 0 1 2 3 4; do
    answers "${ports[number]}" "${begun[number]}" || return 1
  done
  answers "$direct_h2_port" "${begun[0]}" && answers "$direct_tls_port" "${begun[0]}"
}

gzip -nc <"$place/right/app.js" >"$place/packed.gz"
touch -d '2024-05-06 07:08:09 UTC' "$place/packed.gz"
for attempt in 1 2 3 4 5; do
  if start_servers; then break; fi
  ((attempt < 5)) || { echo "nginx does not start:"; cat "$place"/server-*/out "$place"/server-*/error.log; exit 1; }
  for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
  started=()
done

# start_proxy NAME origins… -- arguments… : its address is the value of NAME, and of NAME_admin.
start_proxy() {
  local name=$1 tries origins=() out=$place/$1.out
  shift
  while [[ $1 != -- ]]; do
    origins+=(--origin "http://127.0.0.1:${ports[$1]}")
    shift
  done
  shift
  : >"$out"
  # The program itself and not the function `tidings`, so that its id is known.
  "$CARGO_TARGET_DIR/debug/tidings" sketch run "${origins[@]}" --listen 127.0.0.1:0 --admin 127.0.0.1:0 --log error "$@" </dev/null >"$out" 2>"$out.err" &
  started+=($!)
  for ((tries = 0; tries < 300; tries++)); do
    if grep -q /metrics "$out"; then break; fi
    sleep 0.1
  done
  printf -v "$name" %s "$(sed -n 's|.*listening on \(https*://[0-9.:]*\);.*|\1|p' "$out")"
  printf -v "${name}_admin" %s "$(sed -n 's|.*http://\([0-9.:]*\)/metrics.*|\1|p' "$out")"
  [[ -n ${!name} ]] || { echo "the proxy does not start:"; cat "$out" "$out.err"; exit 1; }
}

direct=http://127.0.0.1:${ports[0]} direct_h2=http://127.0.0.1:$direct_h2_port direct_tls=https://127.0.0.1:$direct_tls_port
start_proxy proxy 0 1 2 3 4 -- --health-path /digits.txt
start_proxy proxy_tls 0 1 2 3 4 -- --certificate "$place/certificate.pem" --key "$place/key.pem"
# A write goes to one server and nobody looks: here to a right one.
start_proxy writes 0 1 2 -- --writes-to-one
