#!/bin/bash
# Installs into a temporary folder and compares every file and mode with the list below: with the default variables, then
# with each of them set. Nothing is built for it: the programs are stand-ins that leave a trace when somebody runs them,
# as do the compilers on PATH. As root, the install runs as a user who may only read the tree.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
chmod 755 "$work"

fail() {
    echo "install: $*" >&2
    exit 1
}

# A tree of what a release contains, that nobody can write to.
tree=$work/tree
mkdir -p "$tree/out put" "$tree/docs" "$work/tools"
cp Makefile README.md CHANGELOG.md LICENSE-* "$tree/"
cp -R docs/. "$tree/docs/"
for stand_in in "$tree/out put/usher" "$tree/out put/usherd" "$work"/tools/{cargo,rustc,cc}; do
    printf '#!/bin/sh\necho %q >>%q\n' "${stand_in##*/}" "$work/ran" >"$stand_in"
    chmod 700 "$stand_in"
done
: >"$work/ran"
chmod 666 "$work/ran"
chmod -R a+rX,a-w "$tree" "$work/tools"

as_another=()
if [ "$(id -u)" = 0 ]; then
    as_another=(setpriv --reuid 65534 --regid 65534 --clear-groups)
fi

# A fresh environment: what the caller's make was given must not reach this one. The umask is the strictest in use.
run_make() {
    (umask 077 && cd "$tree" && "${as_another[@]}" env -i PATH="$work/tools:$PATH" make --silent "$@")
}

listing() {
    (cd "$1" && find . -type f -printf '%m %P\n' -o -type d -printf '%m %P/\n' -o -printf 'neither file nor folder: %P\n') |
        LC_ALL=C sort -k 2
}

# Modes and paths, one a line: expected BIN DAEMON MAN DOC LICENSE, folders as they are under DESTDIR.
expected() {
    local file folder
    {
        echo "755 $1/usher"
        echo "755 $2/usherd"
        for file in docs/man/*.[1-8]; do
            if [ -e "$file" ]; then echo "644 $3/man${file##*.}/${file##*/}"; fi
        done
        for file in README.md CHANGELOG.md docs/*.md; do echo "644 $4/$file"; done
        for file in LICENSE-APACHE LICENSE-MIT; do echo "644 $5/$file"; done
    } >"$work/files"
    {
        cat "$work/files"
        echo "755 /"
        while read -r _ folder; do
            while folder=${folder%/*} && [ -n "$folder" ]; do
                echo "755 $folder/"
                case $folder in */*) ;; *) break ;; esac
            done
        done <"$work/files"
    } | LC_ALL=C sort -u -k 2
}

# check WHAT BIN DAEMON MAN DOC LICENSE [VARIABLE=VALUE]...
check() {
    local what=$1 stage="$work/stage of $1"
    local folders=("${@:2:5}") given=("BUILD_DIR=out put" "DESTDIR=$stage" "${@:7}")
    mkdir -m 755 "$stage"
    if [ "$(id -u)" = 0 ]; then chown 65534:65534 "$stage"; fi

    expected "${folders[@]}" >"$work/expected"
    for round in first second; do
        run_make install "${given[@]}"
        diff -u "$work/expected" <(listing "$stage") || fail "$what, $round time: not what was expected"
    done
    cmp -s "$tree/out put/usherd" "$stage/${folders[1]}/usherd" || fail "$what: usherd was altered"

    # What is not ours stays, and so does its folder.
    echo kept | "${as_another[@]}" tee "$stage/${folders[0]}/other" >/dev/null
    for round in first second; do
        run_make uninstall "${given[@]}"
        [ "$(cd "$stage" && find . -type f)" = "./${folders[0]}/other" ] || fail "$what: uninstall left a file, or took another's"
        [ -z "$(find "$stage" -mindepth 1 -name 'usher*')" ] || fail "$what: uninstall left a folder, the $round time"
    done
}

listing "$tree" >"$work/before"

check defaults usr/local/bin usr/local/bin usr/local/share/man usr/local/share/doc/usher usr/local/share/licenses/usher
check prefix usr/bin usr/bin usr/share/man usr/share/doc/usher usr/share/licenses/usher PREFIX=/usr
check 'every variable' b l/usher m d/usher c/usher \
    PREFIX=/unused BINDIR=/b LIBEXECDIR=/l/usher MANDIR=/m DOCDIR=/d/usher LICENSEDIR=/c/usher

mkdir -m 777 "$work/none"
if run_make install "DESTDIR=$work/none" BUILD_DIR=nowhere 2>"$work/said"; then
    fail 'succeeded without the programs'
fi
grep -q "run 'make all' first" "$work/said" || fail "did not say what to do without the programs: $(cat "$work/said")"
[ -z "$(ls -A "$work/none")" ] || fail 'began without the programs'

[ ! -s "$work/ran" ] || fail "ran $(sort -u "$work/ran")"
diff -u "$work/before" <(listing "$tree") || fail 'wrote into the source tree'
echo "install: $(wc -l <"$work/files") files, modes and folders as they should be"
