#!/usr/bin/env bash
# What bench_recovery starts where no launcher is: a loop of the shell.
#
#   loop.sh ranks COUNT PORT COMMAND...   as many as there are ranks; when one ends the others are killed, and all start again
#   loop.sh one COMMAND...                one process, again and again
set -u

if [ "$1" = one ]; then
    shift
    while :; do
        "$@"
    done
fi

count=$2 port=$3
shift 3
while :; do
    ranks=()
    for ((rank = 0; rank < count; rank++)); do
        RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$count MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$@" &
        ranks+=($!)
    done
    wait -n "${ranks[@]}"
    kill -9 "${ranks[@]}" 2> /dev/null
    port=$((port + 1)) # no rank is waited for: those that come have a port where they do not meet those that go
done
