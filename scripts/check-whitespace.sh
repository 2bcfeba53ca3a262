#!/bin/bash
# Fails on trailing blanks, conflict markers and blank lines at the end of a file, in what is committed and in what is
# not yet. Test vectors are bytes and not ours to straighten.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ ! -e .git ]; then
    echo 'whitespace: not a git checkout, nothing to compare'
    exit 0
fi

nothing=$(git hash-object -t tree /dev/null)
git diff --check "$nothing" HEAD -- . ':!tests/vectors'
git diff --check HEAD -- . ':!tests/vectors'
