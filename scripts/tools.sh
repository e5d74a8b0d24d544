#!/usr/bin/env bash
# Installs the tools that .ci/run uses, outside the clone, once per pinned version. Unoptimised builds: they compile in
# a fraction of the time and are fast enough for a repository of this size.
set -euo pipefail

cache=${TIDINGS_CACHE:-$HOME/.cache/tidings}
tools=$cache/tools
mkdir -p "$tools"

install() { # crate version [flags…]
  local crate=$1 version=$2
  shift 2
  local mark=$tools/.$crate-$version
  if [[ -e $mark ]]; then
    echo "$crate $version is here already"
    return
  fi
  CARGO_TARGET_DIR=$cache/tools-target CARGO_PROFILE_DEV_DEBUG=0 \
    cargo install --quiet --locked --debug --force --root "$tools" --version "=$version" "$@" "$crate"
  touch "$mark"
  # The intermediate files are worth more than a gigabyte and never used again.
  rm -rf "$cache/tools-target"
}

# Without search, watch and serve: the book is built, not served, by CI.
install mdbook 0.5.4 --no-default-features
install cargo-deny 0.20.2
