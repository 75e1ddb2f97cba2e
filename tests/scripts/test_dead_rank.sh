#!/bin/bash
# test_dead_rank.sh TRAIN PLUGIN: four ranks on four hosts of the demo's network, one of which is gone:
# the others end within ten seconds and say which rank, on which host, and why, whether they wait for
# it or compute.
. "$(dirname "$0")/tap.sh"
. "$top/demo/net.sh"
export train=$1 plugin=$2 scratch top
export HOLMES_JOB_SECRET=221b
seq 1 200000 >"$scratch/text"

# What runs in the network: start OPTION...: four ranks, each on a host of its own.
cat >"$scratch/inside.sh" <<'EOF'
. "$top/demo/net.sh"
net_up || exit 1
hosts=(a0 a1 b0 b1)
small=(--layers 4 --channels 16 --heads 2 --seq-len 16 --batch 8 --microbatch 1)
# A step of minutes, of which the first reaches no other rank.
long=(--layers 4 --channels 512 --heads 8 --seq-len 512 --batch 4096 --microbatch 2)

start() {
    local rank
    for rank in 0 1 2 3; do
        ip netns exec "${hosts[rank]}" "$train" --data "$scratch/text" --data-parallel 4 \
            --rank $rank --world 4 --rendezvous "$(net_address a0):29500" --threads 1 --quiet \
            --host-label "${hosts[rank]}" --steps 1000000 --plugin "$plugin" --overlap off \
            $([ $rank = 0 ] && echo --serve) --log "$scratch/log" "$@" \
            >"$scratch/out.$rank" 2>"$scratch/err.$rank" &
        pids[rank]=$!
    done
}

# ready TEXT: rank 0's log has it.
ready() {
    local end=$((SECONDS + 120))
    until grep -q "$1" "$scratch/log" 2>/dev/null; do
        [ $SECONDS -lt $end ] || { echo "the job does not train"; cat "$scratch"/err.*; exit 1; }
        kill -0 "${pids[0]}" || { cat "$scratch"/err.*; exit 1; }
        read -rt 0.1 <>"$scratch/never"
    done
}

cut() { ip -n "switch-${1%?}" link set "$1" down; } # no FIN, no RST: as if its power went

# ended TEXT RANK...: these end within 10 s of now, with status 3, and each says it.
ended() {
    local text=$1 begin=${EPOCHREALTIME/./} rank rc took
    shift
    for rank in "$@"; do
        wait "${pids[rank]}"
        rc=$?
        took=$(((${EPOCHREALTIME/./} - begin) / 1000))
        echo "rank $rank ends with $rc after $took ms: $(cat "$scratch/err.$rank")"
        [ $rc = 3 ] && [ $took -lt $((10000 * ${HOLMES_TEST_PATIENCE:-1})) ] &&
            grep -q -e "$text" "$scratch/err.$rank" && [ "$(wc -l <"$scratch/err.$rank")" = 1 ] ||
            exit 1
    done
}
EOF

# in_network COMMANDS: a shell in a network of its own runs them; what it says is kept.
in_network() {
    rm -f "$scratch"/log "$scratch"/err.* "$scratch/never"
    mkfifo "$scratch/never"
    # shellcheck disable=SC2046 # a list of words
    timeout 400 $(net_isolation) bash -c ". '$scratch/inside.sh'; $1" >"$scratch/said" 2>&1
    rc=$?
    cat "$scratch/said"
    sed 's/^/# /' "$scratch/said" >>"$scratch/figures"
    return $rc
}

gone="rank 3 on b1 .*: its host does not answer any more"
killed="rank 3 on b1 .*: its process ended without a word"

if net_isolation >/dev/null; then
    claim "a host that is cut off ends the job on all others" \
        in_network "start \"\${small[@]}\"; ready '\"step\",'; cut b1; ended '$gone' 0 1 2"
    claim "a host that is cut off ends the job while the others compute" \
        in_network "start \"\${long[@]}\"; ready '\"config\"'; cut b1; ended '$gone' 0 1 2"
    claim "a rank that is killed ends the job while the others compute" \
        in_network "start \"\${long[@]}\"; ready '\"config\"'; kill -9 \${pids[3]}
            ended '$killed' 0 1 2"
    claim "the host of the rendezvous is named when it is cut off" \
        in_network "start \"\${small[@]}\"; ready '\"step\",'; cut a0
            ended 'the rendezvous at 10.77.0.10 port 29500 does not answer any more' 1 2 3"
    cat "$scratch/figures"
else
    skip "a host that is cut off ends the job on all others" "no namespaces here"
fi
