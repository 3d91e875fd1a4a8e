# shellcheck shell=bash
# Sourced from the project's root. Point `docker` to the worker's engine: AW_DOCKER_HOST from the environment or var/env,
# otherwise the default of Docker's client.

if [ -z "${AW_DOCKER_HOST:-}" ] && [ -r var/env ]; then
    AW_DOCKER_HOST=$(sed -n "s/^ *\(export \)\? *AW_DOCKER_HOST *= *[\"']\?\([^\"']*\).*/\2/p" var/env | tail -n 1)
fi
export DOCKER_HOST=${AW_DOCKER_HOST:-${DOCKER_HOST:-unix:///var/run/docker.sock}}

engine_responds() { timeout 5 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }
