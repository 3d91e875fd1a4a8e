# shellcheck shell=bash
# Sourced from the project's root: the engine that `docker` speaks to is the one the worker will use: AW_DOCKER_HOST from
# the environment or var/env, else what Docker's own client would take.

if [ -z "${AW_DOCKER_HOST:-}" ] && [ -r var/env ]; then
    AW_DOCKER_HOST=$(sed -n "s/^ *\(export \)\? *AW_DOCKER_HOST *= *[\"']\?\([^\"']*\).*/\2/p" var/env | tail -n 1)
fi
export DOCKER_HOST=${AW_DOCKER_HOST:-${DOCKER_HOST:-unix:///var/run/docker.sock}}

engine_answers() { timeout 5 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }
