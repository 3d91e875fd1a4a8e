#!/usr/bin/env bash
# What the official images of PostgreSQL and Valkey do with the commands and variables that our deployments use.
set -euo pipefail

main() {
    [ "$1" = postgres ] || exec "$@"
    [ -s "$PGDATA/PG_VERSION" ] || create
    run exec postgres -c listen_addresses='*' -c unix_socket_directories=/tmp
}

create() {
    chown postgres "$PGDATA"
    run initdb --username "$POSTGRES_USER" --pwfile "$POSTGRES_PASSWORD_FILE" --auth scram-sha-256
    echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
    echo "CREATE DATABASE $POSTGRES_USER" | run postgres --single postgres
}

run() {
    local prefix=()
    [ "$1" != exec ] || { prefix=(exec) && shift; }
    "${prefix[@]}" setpriv --reuid=postgres --regid=postgres --clear-groups "$@"
}

main "$@"
