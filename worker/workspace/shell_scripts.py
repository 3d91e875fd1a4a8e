"""The shell scripts of the workspace setup, for any POSIX shell in a sandbox.

`with_variables` sets their variables: no value is part of the code.
"""

import shlex
from typing import Protocol

from shared.agent_server.responses import CommandResult
from shared.users.secrets import MAX_VALUE_BYTES

# How much of the end of a script's output is read: more than the longest secret and the part that is shown together.
# The rest of a secret whose beginning was not read can't be hidden, so it must not be in that part.
MAX_OUTPUT_BYTES = MAX_VALUE_BYTES + 16_000


class Shell(Protocol):
    """The methods of an agent server that run these scripts."""

    def run_command(self, command: str, cwd: str | None = None, timeout: float = 30.0) -> CommandResult:
        """Run a shell command and wait for it."""

    def upload(self, path: str, content: bytes) -> None:
        """Write a file."""


def with_variables(script: str, **variables: str) -> str:
    """The script, preceded by the assignments of its variables."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items()) + script


CONFIGURE = """\
# Two conversations of one sandbox may contend for git's lock on its configuration.
retry() { "$@" || { sleep 1; "$@"; }; }
mkdir -p -- "$folder" || exit
[ -z "$author" ] || retry git config --global user.name "$author" || exit
[ -z "$address" ] || retry git config --global user.email "$address" || exit
"""

INIT = """\
git -C "$folder" rev-parse --git-dir >/dev/null 2>&1 || git init --quiet -- "$folder" || exit
"""

# Lists the project's scripts: a start runs no command for a script that does not exist.
LIST_SCRIPTS = """\
for script in setup.sh pre-commit.sh; do
    if [ -f "$project/.openhands/$script" ]; then echo "brings $script"; fi
done
"""

FIND_HEAD = """\
[ -n "$(ls -A -- "$folder" 2>/dev/null)" ] || exit 0
[ "$(git -C "$folder" config --local remote.origin.url)" = "$url" ] || exit
echo cloned
cd -- "$folder" || exit
head=$(git symbolic-ref --quiet --short HEAD)
# The branch in a request may be a tag.
tag=$(git rev-parse --quiet --verify "refs/tags/$branch^{commit}")
if [ -z "$head" ] && [ -n "$tag" ] && [ "$tag" = "$(git rev-parse HEAD)" ]; then head=$branch; fi
echo "$head"
"""

# Removes the private folders of earlier attempts, and makes one. The command that runs git removes it. If that command
# never comes, because the start was cancelled or its worker has died, a process removes it after five minutes.
HIDE = """\
expire() {
    left=60
    while [ "$left" -gt 0 ]; do
        sleep 5
        [ -d "$1" ] || return
        left=$((left - 1))
    done
    rm -rf -- "$1"
}
hide() {
    for root; do rm -rf -- "$root/$prefix"*; done
    for root; do
        mkdir -m 700 -- "$root/$name" || continue
        echo "$root/$name"
        # A process with this command's output would keep the command from ending. Without the parentheses, it has it.
        (expire "$root/$name") </dev/null >/dev/null 2>&1 &
        return
    done
    return 1
}
"""

# `remote` runs git with this credential only.
REMOTE = """\
export GIT_TERMINAL_PROMPT=0 GIT_ASKPASS= SSH_ASKPASS= LC_ALL=C
# No background maintenance: it would keep this command's output open.
remote() {
    timeout -k 5 "$seconds" git \\
        -c credential.helper= -c credential.helper="store --file=$private/credential" -c core.askPass= \\
        -c protocol.allow=never -c protocol.http.allow=always -c protocol.https.allow=always \\
        -c gc.auto=0 -c maintenance.auto=false "$@"
}
"""

CLONE = """\
work=$unfinished-$attempt
trap 'rm -rf -- "$private" "$work"' EXIT
trap 'exit 143' HUP INT TERM
# This makes an abandoned attempt fail that still runs: the newest attempt wins.
rm -rf -- "$unfinished"-*
make() {
    remote clone --quiet ${depth:+--depth "$depth"} ${branch:+--branch "$branch"} -- "$url" "$work" || return
    [ -n "$branch" ] || git -C "$work" checkout --quiet -b "$new_branch" || return
    mv -T -- "$work" "$project"
}
make
code=$?
# Another attempt may have finished first.
[ -e "$project/.git" ] || exit "$code"
"""

# For an existing clone; changes that are not committed stay as they are.
SWITCH = """\
trap 'rm -rf -- "$private"' EXIT
trap 'exit 143' HUP INT TERM
cd -- "$project" || exit
if [ -n "$(git status --porcelain --untracked-files=no)" ]; then
    echo "the clone is on ${head:-no branch}, with changes that are not committed" >&2
    exit 1
fi
# A fetch with a depth would cut off the history of a whole clone.
[ "$(git rev-parse --is-shallow-repository)" = true ] || depth=
fetch() { remote fetch --quiet ${depth:+--depth "$depth"} origin "+$1:$2"; }
known() { git show-ref --verify --quiet "$1"; }
if ! known "refs/heads/$branch" && ! known "refs/tags/$branch"; then
    if fetch "refs/heads/$branch" "refs/remotes/origin/$branch"; then
        git remote set-branches --add origin "$branch" || exit
        git checkout --quiet -b "$branch" --track "origin/$branch"
        exit
    fi
    fetch "refs/tags/$branch" "refs/tags/$branch" || exit
fi
git checkout --quiet "$branch" --
"""

# Runs the project's script; `start` is the idempotency key. The attempt of a worker that died may still run: the next
# attempt waits for its end, and has the same result.
SETUP = """\
cd -- "$folder" || exit
[ -f .openhands/setup.sh ] || exit 0
umask_before=$(umask)
umask 077
state=${XDG_STATE_HOME:-$HOME/.local/state}/agent-workspace
mkdir -p -- "$state" || exit
record=$state/setup-$start
exec 9>"$record.lock" || exit
if command -v flock >/dev/null; then timeout "$seconds" flock 9 || exit; fi
if [ ! -f "$record.code" ]; then
    umask "$umask_before"
    # Output to a file: a service that the script leaves running would keep this command's output open, and the lock.
    timeout -k 5 "$seconds" sh -c 'exec 9>&-; exec bash .openhands/setup.sh' >"$record.log" 2>&1 </dev/null
    echo $? >"$record.new" && mv -- "$record.new" "$record.code" || exit
fi
tail -c "$max_length" -- "$record.log"
exit "$(cat -- "$record.code")"
"""

# Arguments of `install`: keys of git's configuration, each with the helper's arguments before git's own argument.
LOGINS = """\
retry() { "$@" >/dev/null || { sleep 1; "$@"; }; }
umask 077
folder=${XDG_CONFIG_HOME:-$HOME/.config}/agent-workspace
mkdir -p -- "$folder" && chmod 700 -- "$folder" || exit
printf '%s' "$helper" >"$folder/git-login.new" && chmod 700 -- "$folder/git-login.new" || exit
mv -- "$folder/git-login.new" "$folder/git-login" || exit
printf '%s' "$address" >"$folder/address" || exit
install() {
    while [ $# -gt 1 ]; do
        retry git config --global --replace-all "$1" "!'$folder/git-login' $2" || exit
        shift 2
    done
    echo "$folder"
}
"""

LOGIN = """\
#!/bin/sh
# Installed by Agent Workspace: git asks this helper for a login, and the helper asks the service for the token.
provider=$1 user=$2
[ "$3" = get ] || exit 0
cd -- "${0%/*}" || exit
address=$(cat address)/${provider}_token
if command -v curl >/dev/null; then
    token=$(curl --silent --fail --max-time 10 --header @key -- "$address") || exit 0
else
    token=$(python3 -c 'import sys, urllib.request as web
name, value = open("key").read().split(": ", 1)
print(web.urlopen(web.Request(sys.argv[1], headers={name: value.strip()}), timeout=10).read().decode())
' "$address" 2>/dev/null) || exit 0
fi
# App passwords are stored with the user name.
case $provider:$token in
    bitbucket:*:* | bitbucket_data_center:*:*) user=${token%%:*} token=${token#*:} ;;
esac
printf 'username=%s\\npassword=%s\\n' "$user" "$token"
"""

# Tools such as pre-commit keep the hook that they find, as `pre-commit.legacy`, and run it before their own check. If
# that hook were this one, it and the tool's would run each other.
HOOKS = """\
cd -- "$folder" || exit
[ -f .openhands/pre-commit.sh ] || exit 0
hooks=$(git rev-parse --git-path hooks) && mkdir -p -- "$hooks" || exit
ours() { grep -qs 'Agent Workspace' "$1"; }
if [ -e "$hooks/pre-commit" ] && ! ours "$hooks/pre-commit"; then
    mv -- "$hooks/pre-commit" "$hooks/pre-commit.local" || exit
fi
if ours "$hooks/pre-commit.legacy"; then rm -f -- "$hooks/pre-commit.legacy"; fi
printf '%s' "$hook" >"$hooks/pre-commit.new" && chmod 755 "$hooks/pre-commit.new" || exit
mv -- "$hooks/pre-commit.new" "$hooks/pre-commit"
"""

PRE_COMMIT = """\
#!/bin/sh
# Installed by Agent Workspace: the project's own check, then the former hook.
if [ -f .openhands/pre-commit.sh ]; then bash .openhands/pre-commit.sh || exit; fi
before=${0%/*}/pre-commit.local
# A tool that was installed again runs this hook, and then its own check. Its hooks begin alike, and may differ then.
begins() { head -n 3 -- "$1"; }
if [ -x "$before" ] && [ "$(begins "$before")" != "$(begins "${0%/*}/pre-commit")" ]; then exec "$before" "$@"; fi
"""
