# shellcheck shell=bash
# Sourced: output of the scripts in this folder, and progress of their long commands.

# `make chaos SECONDS=300` exports that variable, which bash would count on from.
SECONDS=0

say() { printf '[%4ds] %s\n' "$SECONDS" "$*"; }

# Print an error, and where the documentation explains it: die MESSAGE [ENTRY of the troubleshooting page]
die() {
    printf '\n%s\n' "$1" >&2
    if [ "$#" -gt 1 ]; then printf 'More: docs/operate/troubleshooting.md#%s\n' "$2" >&2; fi
    exit 1
}

# Run a long command and show its progress: every line `Step …` and at most one other line in two seconds, with the
# seconds since the start of the script. If the command fails, print the end of its output.
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
