# What the scripts of this directory share. Sourced by them, in the root of the repository.
# shellcheck shell=bash

export CARGO_TERM_COLOR=never
export CARGO_INCREMENTAL=0 # everything is built once: it would only cost time, and several GB of disk
export CARGO_PROFILE_DEV_DEBUG=0 # nine tenths of a test program is debug information, and a panic names its line without

step() { printf '\n=== %s (%ss)\n' "$1" "$SECONDS"; }

die() {
  printf '\n%s\n' "$1" >&2
  exit 1
}

# Whether TASKD_SKIP, a list with commas, names WORD.
is_skipped() { # WORD
  [[ ",${TASKD_SKIP:-}," == *",$1,"* ]]
}

# Installs Debian packages where that can be done, if one of the PROGRAMs is missing.
need_programs() { # SKIP_WORD "PROGRAM..." "PACKAGE..."
  local program missing=
  for program in $2; do
    command -v "$program" >/dev/null || missing+=" $program"
  done
  [[ -n $missing ]] || return 0
  if [[ $EUID == 0 ]] && command -v apt-get >/dev/null; then
    # shellcheck disable=SC2086
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $3; } >&2 &&
      return 0
  fi
  die "$1 needs${missing}: install the Debian packages $3, or leave it out with TASKD_SKIP=$1"
}
