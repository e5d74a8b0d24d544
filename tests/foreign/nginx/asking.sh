# Sourced by scripts/nginx.sh: puts a request to nginx and twice to the proxy, and compares.
#
#   same PATH [curl arguments…]            the same status, body and headers
#   differs NGINX PROXY PATH [arguments…]  the statuses that they give on purpose, and why is said where it stands
# In arguments @ETAG@ is the tag that each side gave for PATH (after `knows PATH`), and @SIDE@ a name of each request's own.

asked=0
batch=()
mkdir -p "$place/asked" "$place/failed"
via=h1
known_direct='' known_proxy=''

# Where requests go: h1, h2, tls, writes.
sides() {
  case $via in
  h1) side_direct=$direct side_proxy=$proxy ;;
  h2) side_direct=$direct_h2 side_proxy=$proxy ;;
  tls) side_direct=$direct_tls side_proxy=$proxy_tls ;;
  writes) side_direct=$direct side_proxy=$writes ;;
  esac
}

common=(-s -k -g --path-as-is --max-time 60 -H 'Host: site.test')

# One process of curl asks all three; but for HTTP/2 without TLS, where curl cannot use a connection twice.
ask() { # base path arguments…
  local base=$1 path=$2 side url all=() flags=() failed=0
  shift 2
  [[ $via != h2 ]] || flags=(--http2-prior-knowledge)
  [[ $via != tls ]] || flags=(--http2)
  sides
  for side in direct first second; do
    local args=("${@//@SIDE@/side-$side}") known=$known_proxy
    url=$side_proxy
    [[ $side != direct ]] || url=$side_direct known=$known_direct
    args=("${args[@]//@ETAG@/$known}")
    [[ $via != h2 ]] || all=()
    ((${#all[@]} == 0)) || all+=(--next)
    all+=("${common[@]}" "${flags[@]}" "${args[@]}" -o "$base.$side.body" -D "$base.$side.head" "$url${path//@SIDE@/side-$side}")
    [[ $via != h2 ]] || curl -q "${all[@]}" </dev/null 2>>"$base.err" || failed=$?
  done
  [[ $via == h2 ]] || curl -q "${all[@]}" </dev/null 2>"$base.err" || failed=$?
  ((failed == 0)) || echo "curl ended with $failed" >"$base.curl"
}

# Reads the last head of a file into `status` and `fields`; trailers are fields, too.
read_head() {
  local line name
  status=none fields=()
  [[ -e $1 ]] || return 0
  while IFS= read -r line; do
    line=${line%$'\r'}
    case $line in
    HTTP/*) status=${line#* } status=${status%% *} fields=() ;;
    *:*)
      name=${line%%:*} line=${line#*:}
      name=${name,,}
      fields[$name]+="${fields[$name]:+ | }${line# }"
      ;;
    esac
  done <"$1"
}

# Headers that say something of a connection or of who answers, and not of the page.
ignored=' server date connection keep-alive transfer-encoding via tidings-verified etag accept-ranges content-length trailer alt-svc '

compare() { # base side -> what is wrong
  local base=$1 side=$2 name value status own_status
  local -A fields own
  read_head "$base.direct.head"
  own_status=$status
  for name in "${!fields[@]}"; do own[$name]=${fields[$name]}; done
  read_head "$base.$side.head"
  if [[ $status != "$own_status" ]]; then
    echo "$side: status $status instead of $own_status"
    return
  fi
  [[ -n ${fields[date]:-} && ${fields[via]:-} == *tidings* ]] || echo "$side: without Date or Via"
  [[ ${fields[tidings-verified]:-} =~ ^(fast|agreed|no)$ ]] || echo "$side: does not say how it was verified"
  [[ ${fields[content-range]:-} == "${own[content-range]:-}" ]] || echo "$side: Content-Range ${fields[content-range]:-} instead of ${own[content-range]:-}"
  # What the proxy says of conditions and ranges that fail is its own.
  if [[ $status == 412 || $status == 416 ]] && [[ $conditional == yes ]]; then return; fi
  for name in "${!own[@]}"; do
    [[ $ignored != *" $name "* ]] || continue
    # Beside Cache-Control it means nothing, and it differs each second.
    [[ $name != expires || -z ${own[cache-control]:-} ]] || continue
    if [[ $name == content-type && ${own[$name]} == multipart/* ]]; then
      [[ ${fields[$name]:-} == multipart/byteranges\;* ]] || echo "$side: $name is ${fields[$name]:-missing}"
      continue
    fi
    value=${fields[$name]:-}
    [[ ${value//side-$side/side-direct} == "${own[$name]}" ]] || echo "$side: $name is '$value' instead of '${own[$name]}'"
  done
  for name in "${!fields[@]}"; do
    [[ $ignored != *" $name "* && -z ${own[$name]+there} ]] || continue
    [[ $name != vary || ${fields[$name],,} != accept-encoding ]] || continue
    echo "$side: has $name: ${fields[$name]}"
  done
  [[ -z ${own[etag]:-} || -n ${fields[etag]:-} || ! $status =~ ^(200|206|304)$ ]] || echo "$side: has no ETag"
  [[ -z ${own[content-length]:-} || ${fields[content-length]:-} == "${own[content-length]}" ]] ||
    echo "$side: Content-Length ${fields[content-length]:-} instead of ${own[content-length]}"
  if [[ ${own[content-type]:-} == multipart/* ]]; then
    cmp -s <(sed "s/${own[content-type]##*boundary=}/BOUNDARY/" "$base.direct.body") \
      <(sed "s/${fields[content-type]##*boundary=}/BOUNDARY/" "$base.$side.body") || echo "$side: other parts"
  elif [[ $head_only == no ]] && [[ -e $base.direct.body || -e $base.$side.body ]]; then
    cmp -s "$base.direct.body" "$base.$side.body" || echo "$side: another body"
  fi
}

judge() { # what base path arguments…
  local what=$1 base=$2 path=$3 wrong
  shift 3
  conditional=no head_only=no
  # With -I curl writes the head where the body belongs.
  [[ " $* " != *" -I "* ]] || head_only=yes
  [[ " $* " != *[Rr]ange:* && " $* " != *[Ii]f-* && " $* " != *" -r "* ]] || conditional=yes
  ask "$base" "$path" "$@"
  wrong=$([[ ! -e $base.curl ]] || cat "$base.curl" "$base.err"; $what "$base")
  [[ -z $wrong ]] || printf '%s %s %s\n%s\n' "$via" "$path" "$*" "$wrong" >"$place/failed/${base##*/}"
  rm -f "$base".*
}

both_sides() {
  compare "$1" first
  compare "$1" second
}

# A few at a time: processors are few, and the limit on new pages of one address is a second's.
queue() {
  asked=$((asked + 1))
  "$@" &
  batch+=($!)
  if ((${#batch[@]} >= 6)); then settle; fi
}

settle() {
  ((${#batch[@]} == 0)) || wait "${batch[@]}" || { echo "a comparison broke off"; exit 1; }
  batch=()
}

same() {
  local path=$1
  shift
  queue judge both_sides "$place/asked/$asked" "$path" "$@"
}

as_expected() {
  local status side
  local -A fields
  for side in direct first second; do
    read_head "$1.$side.head"
    [[ $side == direct && $status == "$expected_direct" ]] || [[ $side != direct && $status == "$expected_proxy" ]] ||
      echo "$side: status $status; expected of nginx $expected_direct, of the proxy $expected_proxy"
  done
}

differs() {
  expected_direct=$1 expected_proxy=$2
  local path=$3
  shift 3
  queue judge as_expected "$place/asked/$asked" "$path" "$@"
}

# Learns what each side calls a page.
knows() {
  local path=$1 status
  local -A fields
  shift
  settle
  known_direct='' known_proxy=''
  ask "$place/asked/known" "$path" "$@"
  read_head "$place/asked/known.direct.head"
  known_direct=${fields[etag]:-}
  read_head "$place/asked/known.second.head"
  known_proxy=${fields[etag]:-}
  rm -f "$place"/asked/known.*
}

conclude() {
  settle
  local failures=("$place"/failed/*) stats
  if [[ -e ${failures[0]} ]]; then
    cat "${failures[@]}"
    echo "${#failures[@]} of $asked requests are answered otherwise than by nginx"
    exit 1
  fi
  stats=$(curl -q -s --max-time 60 "http://$proxy_admin/stats")
  # The made-up and the old pages were noticed, and most reads cost one server all the same.
  local fast wrong
  fast=$(sed 's/.*"fast":\([0-9]*\).*/\1/' <<<"$stats")
  wrong=$(grep -o '"mismatches":[0-9]*,"silences":[0-9]*,"differed":[0-9]*' <<<"$stats" | awk -F '[:,]' '{ printf "%s%d", sep, $2 + $6; sep = " " }')
  echo "$asked requests, each three times: the same as nginx; $fast fast; differences by server: $wrong"
  local counts
  read -ra counts <<<"$wrong"
  ((fast > 100 && counts[0] + counts[1] + counts[2] == 0 && counts[3] > 0 && counts[4] > 0)) || { echo "that cannot be: $stats"; exit 1; }
}
