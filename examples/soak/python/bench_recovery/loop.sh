#!/usr/bin/env bash
# Shell loop that restarts processes of bench_recovery without a launcher.
#
#   loop.sh ranks COUNT PORT COMMAND...   COUNT ranks; when one ends, the others are killed and all restart
#   loop.sh one COMMAND...                one process, restarted whenever it ends
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
    port=$((port + 1)) # the old ranks may still be ending: new ones use another port, to avoid them
done
