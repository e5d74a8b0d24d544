#!/usr/bin/env bash
# site.sh DIR: makes the pages of three kinds of server in DIR: right ones, made-up ones, and what was there before; a certificate.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$1"

# Bytes that look random and are always the same.
noise() { # length seed
  head -c "$1" /dev/zero | openssl enc -aes-128-ctr -nosalt -K "$(printf '%032x' "$2")" -iv 00000000000000000000000000000000
}
# Text of a length.
text() { # length word
  yes "the quick brown $2 jumps over the lazy dog, and then again;" 2>/dev/null | head -c "$1" || true
}

pages() { # directory word seed
  local at=$1 word=$2 seed=$3
  mkdir -p "$at"/{dir/sub,list,private,auth,ssi,sub,trailers,expires,browser,"with space"}
  printf '<html><body>%s</body></html>\n' "$word" >"$at/index.html"
  printf '<html>%s</html>\n' "$(text 3000 "$word")" >"$at/page.html"
  printf '0123456789' >"$at/digits.txt"
  [[ $word != old ]] || printf '9876543210' >"$at/digits.txt"
  : >"$at/empty.txt"
  printf 'x' >"$at/one.txt"
  text 1023 "$word" >"$at/text-1023.txt"
  text 1024 "$word" >"$at/text-1024.txt"
  text 5000 "$word" >"$at/style.css"
  text 20000 "$word" >"$at/app.js"
  printf '{"%s":"%s"}' "$word" "$(text 8000 "$word")" >"$at/data.json"
  printf '<svg xmlns="http://www.w3.org/2000/svg"><!-- %s --></svg>' "$(text 2000 "$word")" >"$at/picture.svg"
  noise 4096 "$seed" >"$at/picture.png"
  noise 100000 "$seed" >"$at/data.bin"
  noise 3000000 "$seed" >"$at/large.bin"
  text 2000000 "$word" >"$at/large.txt"
  printf 'in a directory: %s\n' "$word" >"$at/dir/index.html"
  printf 'below: %s\n' "$word" >"$at/dir/sub/page.txt"
  printf 'spaces: %s\n' "$word" >"$at/with space/a b.txt"
  printf 'letters: %s\n' "$word" >"$at/größe.txt"
  printf 'a' >"$at/list/a.txt"
  printf '%s' "$word" >"$at/list/b.txt"
  printf 'hidden\n' >"$at/private/page.txt"
  printf 'for users: %s\n' "$word" >"$at/auth/page.txt"
  printf 'included: <!--# echo var="arg_a" default="none" --> %s\n' "$word" >"$at/ssi/page.html"
  printf '<p>PLACEHOLDER %s</p>\n' "$word" >"$at/sub/page.html"
  text 3000 "$word" >"$at/trailers/page.txt"
  text 3000 "$word" >"$at/expires/page.txt"
  printf '<html>not here: %s</html>\n' "$(text 2000 "$word")" >"$at/404.html"
  cp "$here/browser.html" "$at/browser/index.html"
  printf 'body { color: rgb(1, 2, %s); }\n' "$seed" >"$at/browser/look.css"
  printf 'window.program = "%s";\n' "$word" >"$at/browser/program.js"
  printf '<svg xmlns="http://www.w3.org/2000/svg" width="1%s" height="20"></svg>\n' "$seed" >"$at/browser/picture.svg"
  find "$at" -exec touch -d "$4" {} +
}

pages right fox 1 '2024-05-06 07:08:09 UTC'
pages stale old 2 '2023-01-02 03:04:05 UTC'
rm -rf stale/list stale/sub
printf 'user:{PLAIN}secret\n' >passwords
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=site.test -keyout key.pem -out certificate.pem 2>/dev/null
