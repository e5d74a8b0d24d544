#!/usr/bin/env bash
# Removes one guard at a time from a copy of the tree, as scripts/mutants/*.patch say, and expects the test that each
# names to turn red for the reason that it names. The same tests are green before anything is removed.
#   scripts/mutants.sh [NAME…]     these (default: all)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
cd "$root"

tree=$cache/mutants
mkdir -p "$tree"
# The files as they stand now. One that has not changed keeps its time, so that a further run compiles little; one that
# an interrupted run left without its guard differs, and is put back.
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
  if [[ -f $file ]] && ! cmp -s "$file" "$tree/$file"; then
    mkdir -p "$(dirname "$tree/$file")"
    cp "$file" "$tree/$file"
  fi
done
cd "$tree"

if (($#)); then patches=("${@/%/.patch}"); else patches=($(cd scripts/mutants && ls -- *.patch)); fi

field() { sed -n "s/^$2: //p" "scripts/mutants/$1" | head -1; }

# The test that a patch names: its output, and whether it passed.
try() {
  # shellcheck disable=SC2046 # a target is one or two words
  cargo test --quiet -p "$(field "$1" package)" $(field "$1" target) -- --exact "$(field "$1" test)" 2>&1
}

for patch in "${patches[@]}"; do
  if ! said=$(try "$patch") || [[ $said != *"1 passed"* ]]; then
    printf '%s\n%s: its test must pass before anything is removed\n' "$said" "${patch%.patch}" >&2
    exit 1
  fi
done
for patch in "${patches[@]}"; do
  name=${patch%.patch}
  patch --quiet --no-backup-if-mismatch --strip=1 --fuzz=0 <"scripts/mutants/$patch" || {
    echo "$name: the patch does not fit any more; make it anew" >&2
    exit 1
  }
  if said=$(try "$patch") || [[ $said != *"1 failed"* ]] || [[ $said != *"$(field "$patch" because)"* ]]; then
    printf '%s\n%s: not noticed by %s, or for another reason than %s\n' \
      "$said" "$name" "$(field "$patch" test)" "$(field "$patch" because)" >&2
    exit 1
  fi
  printf 'noticed  %s by %s\n' "$name" "$(field "$patch" test)"
  patch --quiet --no-backup-if-mismatch --strip=1 --reverse <"scripts/mutants/$patch"
done
