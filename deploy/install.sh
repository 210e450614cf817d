#!/bin/sh
# Installs what an archive of a release has, for everybody on this machine: the
# program, manual pages, shell completion. install.sh [PREFIX], which is
# /usr/local unless it is said; DESTDIR stands before it, as packagers want it.
set -eu
from=$(cd "$(dirname "$0")/.." && pwd)
to=${DESTDIR:-}${1:-/usr/local}
[ -f "$from/parley" ] || { echo "$from has no program parley: unpack an archive of a release, and run the script in it" >&2; exit 1; }

put() { # MODE DIRECTORY FILE…
  mode=$1 dir=$to/$2
  shift 2
  mkdir -p "$dir"
  for file; do install -m "$mode" "$file" "$dir/"; done
}
put 0755 bin "$from/parley"
put 0644 share/man/man1 "$from"/man/man1/*.1
put 0644 share/zsh/site-functions "$from/completion/_parley"
put 0644 share/fish/vendor_completions.d "$from/completion/parley.fish"
put 0644 share/bash-completion/completions "$from/completion/parley.bash"
# bash looks for it under the name of the program
mv "$to/share/bash-completion/completions/parley.bash" "$to/share/bash-completion/completions/parley"
echo "installed in $to: $("$to/bin/parley" version)"
