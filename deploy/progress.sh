# shellcheck shell=bash
# Sourced: how the scripts of this folder speak, and how they show that a long step moves.

say() { printf '[%4ds] %s\n' "$SECONDS" "$*"; }

die() {
    printf '\n%s\n' "$*" >&2
    exit 1
}

# Runs a long command and shows that it moves: every build step and at most one other line in two seconds, each behind
# the seconds since the script began. When the command fails, the end of what it said.
run_logged() {
    local log status=0
    log=$(mktemp)
    "$@" 2>&1 </dev/null | tee "$log" | show_progress || status=$?
    if [ "$status" != 0 ]; then tail -n 30 "$log"; fi
    rm -f "$log"
    return "$status"
}

show_progress() {
    local line shown=-2
    sed -u 's/\x1b\[[0-9;]*m//g' | while IFS= read -r line; do
        [[ $line == Step* || $((SECONDS - shown)) -ge 2 ]] || continue
        shown=$SECONDS
        say "  ${line:0:110}"
    done
}
