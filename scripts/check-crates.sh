#!/bin/bash
# Counts the crates that a build of the two programs takes, ours included: every one is code that users have to trust and
# packagers have to carry.
set -euo pipefail
cd "$(dirname "$0")/.."

most=46

# A crate that stands in the tree twice is printed twice, the second time with a mark: name and version are what counts.
crates=$("${CARGO:-cargo}" tree --locked -e normal --prefix none | awk 'NF { print $1, $2 }' | sort -u)
count=$(wc -l <<<"$crates")

if [ "$count" -gt "$most" ]; then
    echo "$crates" >&2
    echo "crates: $count, at most $most allowed" >&2
    exit 1
fi
echo "crates: $count of at most $most"
