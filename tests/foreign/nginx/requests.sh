# Sourced by scripts/nginx.sh: what is asked. Each line is a request that must be answered as nginx answers it.

files=(/ /index.html /page.html /digits.txt /empty.txt /one.txt /text-1023.txt /text-1024.txt /style.css /app.js /data.json
  /picture.svg /picture.png /data.bin /large.bin /dir/ /dir/sub/page.txt /list/ /missing /dir/missing.html /private/page.txt)

# Files, with and without a body, compressed or not.
for path in "${files[@]}"; do
  same "$path"
  same "$path" -I
  # nginx compresses what it makes up as it goes, however short.
  [[ $path == /list/ ]] || same "$path" --compressed
done
for path in /page.html /app.js /picture.png /missing; do
  same "$path" -I -H 'Accept-Encoding: gzip'
done
# Longer than what the proxy compresses: the same page all the same.
same /large.txt
same /large.txt -I
for coding in identity br 'gzip;q=0' 'deflate, br' ''; do
  same /app.js -H "Accept-Encoding: $coding"
done
same /packed
same /packed -r 0-99

# HTTP/2, without and with TLS; HTTP/1.1 with TLS; HTTP/1.0; offers of HTTP/2.
for via in h2 tls; do
  for path in "${files[@]}" /headers /cookies /status/302; do
    same "$path"
  done
  same /app.js --compressed
  same /page.html -I
  same /page.html -I -H 'If-Match: "x"'
  same /data.bin -r 100-199
  same /digits.txt -r 0-1,4-5
  same /missing -I
done
via=tls
same /page.html --http1.1
same /data.bin --http1.1 -r -100
via=h1
for path in / /page.html /data.bin /missing /status/302; do
  same "$path" --http1.0
  same "$path" --http2
done
same /page.html -H 'Connection: close'
same /page.html -H 'Connection: keep-alive, X-Own' -H 'X-Own: 1'

# Ranges.
for path in /digits.txt /app.js /data.bin /large.bin; do
  for range in 0-0 0-4 2- -3 5-5 0-9999999999 -9999999999; do
    same "$path" -r "$range"
  done
  same "$path" -r 0-1,4-5
  same "$path" -r '0-0, 2-2, -1'
done
for range in 9-9 9-100 10- 10-20 4-0 -0 x- - 1 0-1, ,0-1 '0-1,x' 0-99999999999999999999 '0 - 1' '1-2 ,4-5' 7-8,0-1 8-9,20-30 20-30,40- \
  0-5,4-9 0-8,1-9 0-9,0-9 '-1,-2' '0-,-1'; do
  same /digits.txt -H "Range: bytes=$range"
done
for range in 'lines=0-1' 'bytes=' 'bytes' 'bytes 0-1' 'BYTES=0-1'; do
  same /digits.txt -H "Range: $range"
done
for path in /empty.txt /one.txt; do
  for range in 0- 0-0 -1 -0 1- 0-0,1-1; do
    same "$path" -H "Range: bytes=$range"
  done
done
same /missing -r 0-1
same /status/302 -r 0-1
same /dir/sub/page.txt -r 0-1

# Conditions.
for path in /page.html /digits.txt; do
  knows "$path"
  for method in '' -I; do
    for condition in 'If-None-Match: @ETAG@' 'If-None-Match: W/@ETAG@' 'If-None-Match: "x"' 'If-None-Match: "x", @ETAG@' 'If-None-Match: *' \
      'If-Match: @ETAG@' 'If-Match: "x"' 'If-Match: *' 'If-Match: "x", @ETAG@' \
      'If-Modified-Since: Mon, 06 May 2024 07:08:09 GMT' 'If-Modified-Since: Mon, 06 May 2024 07:08:08 GMT' \
      'If-Modified-Since: Mon, 06 May 2024 07:08:10 GMT' 'If-Modified-Since: Monday, 06-May-24 07:08:09 GMT' \
      'If-Modified-Since: Mon May  6 07:08:09 2024' 'If-Modified-Since: nonsense' \
      'If-Unmodified-Since: Mon, 06 May 2024 07:08:09 GMT' 'If-Unmodified-Since: Mon, 06 May 2024 07:08:08 GMT'; do
      same "$path" $method -H "$condition"
    done
  done
  same "$path" -H 'If-None-Match: "x"' -H 'If-Modified-Since: Mon, 06 May 2024 07:08:10 GMT'
  same "$path" -H 'If-None-Match: @ETAG@' -H 'If-Modified-Since: Mon, 06 May 2024 07:08:09 GMT'
  same "$path" -r 0-1 -H 'If-None-Match: @ETAG@'
  same "$path" -r 0-1 -H 'If-Match: "x"'
  for condition in 'If-Range: @ETAG@' 'If-Range: "x"' 'If-Range: W/@ETAG@' 'If-Range: Mon, 06 May 2024 07:08:09 GMT' \
    'If-Range: Mon, 06 May 2024 07:08:10 GMT' 'If-Range: Mon, 06 May 2024 07:08:08 GMT'; do
    same "$path" -r 2-4 -H "$condition"
    same "$path" -r 1-2,4-5 -H "$condition"
  done
done
knows /app.js --compressed
same /app.js --compressed -H 'If-None-Match: @ETAG@'
same /missing -H 'If-None-Match: *'
same /missing -H 'If-Modified-Since: Mon, 06 May 2024 07:08:10 GMT'
same /status/302 -H 'If-None-Match: *'

# Statuses, redirects, errors; with text of their own and with nginx's pages.
for code in "${statuses[@]}"; do
  same "/status/$code"
  same "/bare/$code"
done
for code in 301 302 303 307 308; do
  same "/status/$code"
  same "/status/$code" -I
  same "/away/$code"
done
same /status/204
same /status/204 -I
same /dir
same '/dir?a=b'
same /dir/sub
same /old/sub/page.txt
same '/old/sub/page.txt?a=b'
same /other/sub/page.txt
same /inside/sub/page.txt
same /dir -L
same /old/sub/page.txt -L

# Headers, and what they decide.
for path in /headers /headers-of-errors /cookies /expires/page.txt /expires-epoch /expires-not /expires-max; do
  same "$path"
  same "$path" -I
done
same /expires/page.txt -H 'If-Modified-Since: Mon, 06 May 2024 07:08:09 GMT'
same /inputs -A test -H 'Accept: text/html' -H 'Accept-Language: de' -b 'a=1; b=2' -H 'Origin: https://example.org'
same '/inputs?q=1&r=2' -A other
same /inputs -A test -H 'Content-Type: text/plain'
for language in de fr en 'de-AT, en;q=0.5' ''; do
  same /language -H "Accept-Language: $language"
done
same /picture -H 'Accept: image/webp,*/*'
same /picture -H 'Accept: image/png'
same /auth/page.txt
same /auth/page.txt -u user:secret
same /auth/page.txt -u user:wrong
same /auth/page.txt -u user:secret -r 0-4
same / -H 'Host: other.test'
same / -H 'Host: SITE.test:8080'
same / -H 'Host: a b'
same / -b "a=$(printf 'c%.0s' {1..3000})"
same / -b "a=$(printf 'c%.0s' {1..40000})"
same /ssi/page.html
same '/ssi/page.html?a=b'
same /ssi/page.html -I
same /sub/page.html
same /trailers/page.txt -H 'TE: trailers' -H 'Connection: TE'
same /trailers/page.txt -I

# Paths as they are written.
for path in '/echo/a?b=c' '/echo/a?' '/echo/a?a=1&a=2&b' '/echo/%61' '/echo/a%2Fb' '/echo/a%20b' '/echo/a+b' '/echo/a;b=c' '/echo/a//b' \
  '/echo/./a' '/echo/b/../a' '/echo/%E2%82%AC' '/echo/a?%E2%82%AC' '/echo/(a)[b]~!$&*,=:@' '/echo/a?x={y}|z' \
  '/with%20space/a%20b.txt' '/gr%C3%B6%C3%9Fe.txt' '//digits.txt' '/dir/../digits.txt' '/../digits.txt' '/%00' '/%zz' '/dir/sub/page.txt/' \
  "/echo/$(printf 'p%.0s' {1..3000})" "/echo/a?$(printf 'q%.0s' {1..3000})" "/echo/$(printf 'r%.0s' {1..20000})"; do
  same "$path"
done

# Methods.
for method in POST PUT PATCH DELETE OPTIONS PROPFIND; do
  via=writes
  same /write -X "$method"
  same '/write?a=b' -X "$method" -d 'x=1'
  same /digits.txt -X "$method"
done
same /write --data-binary @"$place/right/data.bin"
same /write -H 'Transfer-Encoding: chunked' --data-binary @"$place/right/data.bin"
same /write -H 'Expect: 100-continue' -d 'x=1'
same /write -H 'Content-Type: application/json' -d '{}'
same /write -H 'Content-Type: multipart/form-data; boundary=b' --data-binary $'--b\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--b--\r\n'
same /get-only/page.txt
same /get-only/page.txt -X POST -d x
same /missing -X POST -d x
same /dir -X POST -d x
same /status/204 -X POST -d x
same /dav/@SIDE@.txt -T "$place/right/one.txt"
same /dav/@SIDE@/new/ -X MKCOL
same /dav/none -X DELETE
# The same refusals in the proxy's own words.
differs 413 413 /digits.txt --data-binary @"$place/right/large.txt"
differs 405 405 /digits.txt -X TRACE
via=h1

# Where they part on purpose.
# RFC 9110 §9.3.1: a body of GET has no meaning, and servers that do not expect one take it for the next request.
differs 200 400 /digits.txt -X GET -d 'a body'
# RFC 9110 §14.2: ranges are of GET alone.
differs 206 200 /digits.txt -I -H 'Range: bytes=0-1'
# A range is one of the page as it is; nginx compresses and forgets the range.
differs 200 206 /app.js -H 'Accept-Encoding: gzip' -r 0-9
# Trailers are of the whole page; and nginx has none for HTTP/2.
differs 206 206 /trailers/page.txt -r 0-9
# Whoever wants a WebSocket hears that there is none.
differs 200 501 /digits.txt -H 'Connection: Upgrade' -H 'Upgrade: websocket'
# Without --writes-to-one nothing is written.
differs 200 405 /write -X POST -d x
# RFC 9110 §13.2.2: tags decide where they are given, and dates otherwise.
knows /page.html
differs 200 304 /page.html -H 'If-None-Match: @ETAG@' -H 'If-Modified-Since: Mon, 06 May 2024 07:08:08 GMT'
differs 412 200 /page.html -H 'If-Match: @ETAG@' -H 'If-Unmodified-Since: Mon, 06 May 2024 07:08:08 GMT'
# RFC 9110 §13.1.4: a date that cannot be understood is none.
differs 412 200 /page.html -H 'If-Unmodified-Since: nonsense'
