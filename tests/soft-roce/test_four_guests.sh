#!/bin/sh
# Two clusters of two hosts, each host a guest (four-guests): which wire each pair gets, a training
# job across the clusters, links and devices that fail. The steps are in in_two_clusters.sh.
#   test_four_guests.sh BUILD
# What the guests and the programs in them said stays in BUILD/soft-roce/clusters.
. "$(dirname "$0")/../scripts/tap.sh"
. "$(dirname "$0")/outside.sh"
build=$1
share=$build/soft-roce/clusters
text=$top/docs/protocol.md

guests_or_skip "two clusters in four guests"
rm -rf "$share"
mkdir -p "$share"
# 100 times as many bytes of gradients and weights as of activations in a step
[ ! -x "$build/trainer/holmes-train" ] ||
    echo --layers 4 --channels 128 --heads 4 --seq-len 16 --batch 8 --microbatch 2 --steps 4 \
        --warmup 2 --seed 1 --pipeline 2 --data-parallel 2 --threads 1 --eval-sequences 0 \
        >"$share/model"

all_guests_end_well() {
    "$here/four-guests" -t 560 -s "$share" "$here/in_two_clusters.sh" "$build" "$text" && return
    for host in a0 a1 b0 b1; do
        echo "== $host"
        tail -n 20 "$share/$host.output"
    done
    return 1
}

same_losses() {
    # shellcheck disable=SC2046 # words
    "$build/trainer/holmes-train" --data "$text" --plugin "$build/plugin/libnccl-net-holmes.so" \
        --local 4 --log "$share/loopback.jsonl" $(cat "$share/model") &&
        python3 "$here/losses.py" "$share/training/job.jsonl" "$share/loopback.jsonl"
}

claim "four guests go through all steps" all_guests_end_well
take_over "$share/report" "$share/a0.output"
if [ -e "$share/model" ]; then
    claim "the job's losses are those of a run on loopback" same_losses
fi
