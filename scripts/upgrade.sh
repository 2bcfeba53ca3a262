#!/bin/bash
# Upgrades with builds for release: makes three builds of the committed tree that differ in version and protocol only, says in
# a manifest what they are, lets them take each other's place in every way, under load and 200 times over, and has the
# evidence judged. usage: scripts/upgrade.sh [FOLDER]
#
# FOLDER (target/upgrade when absent) is made anew; manifest.json and evidence.json stay there.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
folder=${1:-target/upgrade}
flags='--cfg usher_fixture'

fail() {
    echo "upgrade: $*" >&2
    exit 1
}

sha256() {
    if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi | cut -d ' ' -f 1
}

# Nothing is removed but what was made here.
mark=made-by-upgrade.sh
if [ -e "$folder" ] && [ ! -e "$folder/$mark" ]; then
    fail "$folder is there and was not made here: name another folder"
fi
[ -z "$(git status --porcelain)" ] || fail 'the tree has changes that are not committed: what is built has to have a name'
rm -rf "$folder"
mkdir -p "$folder/source"
folder=$(cd "$folder" && pwd)
: >"$folder/$mark"
git archive HEAD | tar -x -C "$folder/source"

build() {
    (cd "$folder/source" && CARGO_TARGET_DIR=$folder/target "$cargo" build --release --locked --bins --quiet)
}

if USHER_FIXTURE=2 build 2>/dev/null; then
    fail 'an ordinary build took the number of a protocol'
fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
builds=
for number in 1 2 3; do
    name=$(printf ABC | cut -c "$number")
    echo "==> build $name speaks protocol $number"
    RUSTFLAGS=$flags USHER_FIXTURE=$number build
    mkdir "$folder/$name"
    cp "$folder/target/release/usher" "$folder/target/release/usherd" "$folder/$name"
    said=$("$folder/$name/usherd" --version)
    [ "$said" = "usherd $version+protocol.$number (protocol $number to $number)" ] || fail "build $name says: $said"
    builds+=$(printf '%s"%s":{"protocol":%s,"version":"%s","usher":"%s","usherd":"%s"}' "${builds:+,}" \
        "$name" "$number" "$version+protocol.$number" "$(sha256 <"$folder/$name/usher")" "$(sha256 <"$folder/$name/usherd")")
done

lock=$(sha256 <Cargo.lock)
compiler=$("${RUSTC:-rustc}" -vV | paste -sd ';' -)
settings="$flags, USHER_FIXTURE is the protocol, profile release"
inputs=$(printf '%s\n%s\n%s' "$lock" "$compiler" "$settings" | sha256)
printf '{"manifest":1,"form":"full","source":"tree:%s","inputs":{"digest":"%s","lock":"%s","compiler":"%s","flags":"%s"},"builds":{%s}}\n' \
    "$(git rev-parse 'HEAD^{tree}')" "$inputs" "$lock" "$compiler" "$settings" "$builds" >"$folder/manifest.json"

echo '==> upgrades of every kind'
USHER_UPGRADE=$folder "$cargo" test --locked --test main upgrades_of_every_kind_cost_no_session -- --ignored --nocapture
echo '==> the evidence'
scripts/check-upgrade.py "$folder/manifest.json" "$folder/evidence.json"
echo "$folder/evidence.json $(sha256 <"$folder/evidence.json")"
