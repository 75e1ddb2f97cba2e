#!/bin/bash
# test_plan.sh TOPO: plan as a program: the example of docs/plan.md, the shuffled hosts of Slurm,
# hostfiles, what is refused.
. "$(dirname "$0")/tap.sh"
topo=$1
cluster=$scratch/two.yaml
slurm=$scratch/slurm.yaml
hosts=$scratch/hosts

# shellcheck disable=SC2016 # the backquotes are markdown's
sed -n '/^```yaml$/,/^```$/p' "$top/docs/plan.md" | sed '/^```/d' >"$cluster"
printf 'h1 slots=8\nh2 slots=2\nh3 slots=4\nh4 slots=1\n' >"$hosts"
cat >"$slurm" <<'END'
holmes-cluster: 1
node-types:
- name: ib
  gpus: 8
  nics: [{name: mlx5_0, kind: infiniband, gbps: 200}, {name: eth0, kind: ethernet, gbps: 25}]
- name: roce
  gpus: 8
  nics: [{name: mlx5_0, kind: roce, gbps: 200}, {name: eth0, kind: ethernet, gbps: 25}]
nodes:
- {hosts: n1, type: ib, fabric: A}
- {hosts: n2, type: roce, fabric: B}
- {hosts: n3, type: ib, fabric: A}
- {hosts: n4, type: roce, fabric: B}
END

plan() { # plan STATUS ARGUMENT...
    want=$1
    shift
    gives "$want" "$topo" plan "$@"
}

# Every line of the document's first console block, but for its wrapped notes, is printed.
the_documented_example() {
    plan 0 "$cluster" --model gpt-7.5b --global-batch 512 --tensor 8 --pipeline 2 --explain ||
        return 1
    # shellcheck disable=SC2016
    awk '/^```console/ {n++; next} /^```/ {if (n) exit} n == 1' "$top/docs/plan.md" |
        grep -v -e '^\$' -e '^note' -e '^    ' >"$scratch/lines"
    [ "$(wc -l <"$scratch/lines")" -gt 30 ] || return 1
    while read -r line; do
        says out "$line" || return 1
    done <"$scratch/lines"
}

slurm_order() {
    plan 0 "$slurm" --model gpt-3.6b --global-batch 64 --tensor 8 --pipeline 2 -o "$scratch/p.json" &&
        says out "n1,n3" && says out "n2,n4" && says out "tensor 8 x pipeline 2 x data 2" &&
        gives 0 "$topo" emit "$scratch/p.json" --for megatron --part hostfile &&
        [ "$(grep -o 'n[1-4]' "$scratch/out" | tr -d '\n')" = n1n3n2n4 ]
}

# Many activations and small gradients: across the link they cost more than the gradients would.
a_faster_order() {
    plan 0 "$slurm" --layers 8 --hidden 4096 --heads 32 --global-batch 1536 --tensor 8 \
        --pipeline 2 &&
        says out "even layers would take 0." && says out "messages between stages cost more"
}

small_models() {
    plan 0 "$slurm" --layers 4 --hidden 384 --heads 6 --sequence 32 --vocabulary 256 --untied \
        --global-batch 16 --tensor 1 --pipeline 2 --data 2 &&
        awk '/^ *0 - 1 / { good = $8 > 0 } END { exit !good }' "$scratch/out"
}

layers() { # layers COUNT STAGES EXPECTED
    plan 0 "$slurm" --layers "$1" --hidden 3072 --heads 32 --global-batch 64 --pipeline "$2" --json &&
        [ "$(grep -o '"layers": [0-9]*' "$scratch/out" | tail -n +2 | grep -o '[0-9]*$' |
            paste -s -d ,)" = "$3" ]
}

megatrons_layers() {
    layers 30 4 7,8,8,7 && layers 5 4 1,1,1,2 && layers 24 1 24 &&
        plan 2 "$slurm" --layers 3 --hidden 3072 --heads 32 --global-batch 64 --pipeline 4 &&
        says err "3 layers are fewer than 4"
}

hostfile() {
    plan 0 --hostfile "$hosts" --model gpt2-124m --global-batch 12 --tensor 4 &&
        says out "12 of 15 GPUs on 2 nodes" && says out "2 GPUs: a tensor group needs 4" &&
        says out "1 GPU: a tensor group needs 4" &&
        printf 'a\nb\n' >"$scratch/bare" &&
        plan 2 --hostfile "$scratch/bare" --model gpt2-124m --global-batch 8 &&
        says err "host a has no slots: give --gpus-per-node" &&
        plan 0 --hostfile "$scratch/bare" --gpus-per-node 4 --model gpt2-124m --global-batch 8
}

straddling() {
    set -- "$slurm" --model gpt-3.6b --global-batch 64 --tensor 8 --pipeline 1 --data 4
    plan 2 "$@" && says err "--allow-cross" && plan 0 "$@" --allow-cross &&
        says out "warning: the data groups of stage 0 straddle"
}

bad_usage() {
    plan 2 && says err "which cluster file" &&
        plan 2 "$slurm" --model gpt-3.6b && says err "--global-batch is needed" &&
        plan 2 "$slurm" --model gpt-9 --global-batch 8 && says err "gpt2-124m" &&
        plan 2 "$slurm" --global-batch 8 && says err "--layers, --hidden and --heads" &&
        plan 2 "$slurm" --model gpt-3.6b --global-batch 8x && says err '"8x": give a whole number' &&
        plan 2 "$slurm" "$slurm" --model gpt-3.6b --global-batch 8 && says err "one cluster file" &&
        plan 2 "$slurm" --hostfile "$hosts" --model gpt-3.6b --global-batch 8 &&
        says err "one of them" &&
        plan 2 /nonexistent --model gpt-3.6b --global-batch 8 && says err "/nonexistent" &&
        plan 2 "$slurm" --model gpt-3.6b --global-batch 8 --efficiency 2 && says err "share above 0"
}

json_is_the_file() {
    set -- "$slurm" --model gpt-3.6b --global-batch 64
    plan 0 "$@" -o "$scratch/p.json" && plan 0 "$@" --json && diff "$scratch/out" "$scratch/p.json" &&
        plan 0 "$@" -o - && diff "$scratch/out" "$scratch/p.json"
}

full_disk() {
    [ -w /dev/full ] || return 0
    "$topo" plan "$slurm" --model gpt-3.6b --global-batch 64 >/dev/full 2>"$scratch/err"
    [ $? = 1 ] && says err "the output"
}

claim "an order that crosses and is faster is said to be" a_faster_order
claim "bytes of small models are not rounded to nothing" small_models
claim "the documented example is what it prints" the_documented_example
claim "Slurm's shuffled hosts come together by fabric" slurm_order
claim "layers are those that Megatron-LM's flags say" megatrons_layers
claim "a hostfile will do" hostfile
claim "data groups straddle only where allowed" straddling
claim "bad usage is refused with what would be right" bad_usage
claim "--json is the file" json_is_the_file
claim "a full disk is a failure" full_disk
