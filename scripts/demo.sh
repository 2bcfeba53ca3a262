#!/bin/sh
# The main job from end to end, in a private folder that is removed at the end: a daemon that starts by itself, a live
# program that a git hook reloads, a script that waits for a person's yes, an agent that cannot give it to itself and whose
# key is taken back in the middle of its work, and the record of all that, verified.
#
# usage: scripts/demo.sh FOLDER-OF-THE-PROGRAMS
set -eu

programs=$(cd "${1:?usage: demo.sh FOLDER-OF-THE-PROGRAMS}" && pwd)
PATH=$programs:$PATH
export PATH

work=$(mktemp -d "${TMPDIR:-/tmp}/usher-demo.XXXXXX")
work=$(cd "$work" && pwd -P)
USHER_DIR=$work/usher
export USHER_DIR
unset USHER_SESSION USHER_CREDENTIAL TMUX TMUX_PANE
GIT_CONFIG_GLOBAL=/dev/null
GIT_CONFIG_SYSTEM=/dev/null
export GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM

clean_up() {
    usher stop --force >/dev/null 2>&1 || true
    in_window end >/dev/null 2>&1 || true
    rm -rf "$work"
}

# Windows: tmux where it is installed, else script(1), so that the programs own a real terminal in either case.
if command -v tmux >/dev/null 2>&1; then
    in_window() {
        case $1 in
        open) tmux -S "$work/tmux" new-session -d -x 72 -y 12 -s "$2" "$3" ;;
        show) tmux -S "$work/tmux" capture-pane -p -t "$2" ;;
        end) tmux -S "$work/tmux" kill-server ;;
        esac
    }
else
    in_window() {
        case $1 in
        open) script -qfc "$3" "$work/$2.screen" >/dev/null 2>&1 </dev/null & ;;
        show) tail -n 12 "$work/$2.screen" | tr -d '\r' ;;
        end) ;;
        esac
    }
fi

trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say() {
    printf '\n── %s\n' "$1"
}

# Shows a command and runs it.
run() {
    printf '$ %s\n' "$*"
    "$@"
}

# Waits until a window shows a text.
until_shown() {
    tries=0
    while ! in_window show "$1" | grep -q -- "$2"; do
        tries=$((tries + 1))
        [ "$tries" -lt 100 ] || {
            echo "demo: the window $1 never showed: $2" >&2
            in_window show "$1" >&2
            exit 1
        }
        sleep 0.1
    done
}

show_window() {
    in_window show "$1" | sed -e 's/[[:space:]]*$//' -e '/^$/d' -e 's/^/    │ /'
}

mkdir "$work/site" "$work/diary"
cd "$work/site"
git init -q -b main
git config user.name Demo
git config user.email demo@localhost

# A program that stays: it shows the latest commit and draws itself anew when it is told to.
cat >board.sh <<'BOARD'
echo $$ >.git/board.pid
draw() {
    printf '\033[2J\033[H'
    echo "board · drawn $drawn times"
    git log -3 --format='  %h  %s'
    drawn=$((drawn + 1))
}
drawn=1
trap draw USR1
trap 'exit 0' TERM HUP
draw
while :; do sleep 0.2 & wait $! || :; done
BOARD
git add board.sh
git commit -qm "begin the site"

say "no daemon is running yet"
run usher list

say "open the board in a window of its own; the daemon starts by itself"
# The session's shell expands this, not ours.
# shellcheck disable=SC2016
reload='kill -USR1 "$(cat .git/board.pid)" && git log -1 --format=%h'
cat >"$work/open-board.sh" <<OPEN
cd "$work/site"
exec usher run --title board --label kind=board --on reload='$reload' -- sh board.sh
OPEN
in_window open board "sh $work/open-board.sh"
run usher wait --repo . --timeout 20s >/dev/null
until_shown board 'drawn 1 times'
echo "usher run --title board --on reload=… -- sh board.sh, in its window:"
show_window board

say "and another program, in another folder"
cat >"$work/open-diary.sh" <<OPEN
cd "$work/diary"
exec usher run --title diary -- sh -c 'trap "exit 0" TERM HUP; while :; do sleep 0.2 & wait \$! || :; done'
OPEN
in_window open diary "sh $work/open-diary.sh"
usher wait --title diary --timeout 20s >/dev/null
run usher list

say "a real git hook reloads the board after each commit"
cat >.git/hooks/post-commit <<'HOOK'
#!/bin/sh
echo "hook: the board now shows $(usher send --repo . reload)"
HOOK
chmod +x .git/hooks/post-commit
cat .git/hooks/post-commit
echo 'a page' >page.txt
git add page.txt
run git commit -qm "add a page"
until_shown board 'add a page'
show_window board

say "a script stops at usher ask, in a window of its own"
cat >deploy.sh <<'DEPLOY'
#!/bin/sh
set -e
git log -1 --format='would publish %h (%s)' >plan.txt
usher ask 'publish the site?' --detail-file plan.txt
echo 'published' | tee published
DEPLOY
chmod +x deploy.sh
cat deploy.sh
in_window open deploy "sh -c './deploy.sh; echo \"it exits \$?\"; sleep 60'"
until_shown deploy 'waiting for approval'
echo
echo "its window:"
show_window deploy

say "a person looks at it and answers, in another terminal"
run usher approvals
question=$(usher approvals --json | sed 's/.*"approval_id":"\([^"]*\)".*/\1/')
run usher approvals "$(printf '%.6s' "$question")"
[ ! -e published ]
run usher approve "$(printf '%.6s' "$question")" --reason 'looks right'
until_shown deploy 'it exits 0'
echo
echo "the script's window:"
show_window deploy
[ -e published ]

say "a key for an agent: it may list this repository's sessions, send reload, and ask; for 8 hours"
run usher keys new --label agent --scope session.list --scope session.send --scope approval.request \
    --repo . --command reload --expires 8h --out "$work/agent"
echo
echo "the agent sees the board and not the diary:"
USHER_CREDENTIAL=$work/agent run usher list
echo
echo "it may reload, and nothing else:"
USHER_CREDENTIAL=$work/agent run usher send --repo . reload
code=0
USHER_CREDENTIAL=$work/agent run usher send --repo . signal '"TERM"' || code=$?
echo "exit code $code"
[ "$code" -eq 5 ]

say "the agent asks, and tries to answer itself"
USHER_CREDENTIAL=$work/agent usher ask 'may I delete the old pages?' 2>"$work/agent.stderr" &
asking=$!
tries=0
until usher approvals --json | grep -q 'old pages'; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || exit 1
    sleep 0.1
done
question=$(usher approvals --json | sed 's/.*"approval_id":"\([^"]*\)".*/\1/')
code=0
USHER_CREDENTIAL=$work/agent run usher approve "$question" || code=$?
echo "exit code $code"
[ "$code" -eq 5 ]
run usher reject "$question" --reason 'keep them'
code=0
wait "$asking" || code=$?
echo "the agent hears (exit code $code):"
sed 's/^/    /' "$work/agent.stderr"
[ "$code" -eq 1 ]

say "the agent works on and on; its key is taken back in the middle of that"
(
    sent=0
    code=0
    while [ "$code" -eq 0 ]; do
        USHER_CREDENTIAL=$work/agent usher send --repo . reload >/dev/null 2>"$work/agent.stderr" && sent=$((sent + 1)) || code=$?
        echo "$sent $code" >"$work/agent.state.new"
        mv "$work/agent.state.new" "$work/agent.state"
    done
) &
agent=$!
tries=0
until [ -e "$work/agent.state" ] && read -r sent _ <"$work/agent.state" && [ "$sent" -ge 10 ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || exit 1
    sleep 0.1
done
run usher keys revoke agent --receipt "$work/revocation.json"
wait "$agent"
read -r sent code <"$work/agent.state"
echo "the agent had reloaded $sent times when it was cut (exit code $code):"
sed 's/^/    /' "$work/agent.stderr"
code=0
USHER_CREDENTIAL=$work/agent usher list >/dev/null 2>"$work/agent.stderr" || code=$?
echo "and now (exit code $code):"
sed 's/^/    /' "$work/agent.stderr"
[ "$code" -eq 5 ]

say "the daemon signed that revocation; anybody with its public key can check it, offline"
run usher verify "$work/revocation.json"

say "what has happened, as whoever follows it is told"
run usher events --kind session-registered --kind awaiting-approval --kind approval-decided --kind paired --kind credential-revoked

say "and the record of it, which nobody can alter unseen"
usher audit | tail -n 6
run usher audit --verify

say "everything stops and nothing is left behind"
run usher send --title board signal '"TERM"' >/dev/null
run usher send --title diary signal '"TERM"' >/dev/null
tries=0
until usher stop >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || exit 1
    sleep 0.1
done
echo '$ usher stop'
in_window end >/dev/null 2>&1 || true
tries=0
while pgrep -f "$work" >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || {
        echo "demo: still running:" >&2
        pgrep -af "$work" >&2
        exit 1
    }
    sleep 0.1
done
cd /
clean_up
trap - EXIT
[ ! -e "$work" ]
echo "no process, no file"
