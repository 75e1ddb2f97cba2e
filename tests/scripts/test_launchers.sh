#!/bin/bash
# test_launchers.sh TRAIN PLUGIN [TOPO]: holmes-train under launchers: Open MPI's mpirun itself where
# it is installed, and stand-ins that start processes with the variables of srun and torchrun. With
# TOPO, from a plan.
. "$(dirname "$0")/tap.sh"
train=$1 plugin=$2 topo=${3-}
seq 1 20000 >"$scratch/text"
job=("$train" --data "$scratch/text" --layers 2 --channels 16 --heads 2 --seq-len 16 --batch 8
    --microbatch 1 --threads 1 --steps 5 --quiet --plugin "$plugin")
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
unset HOLMES_JOB_SECRET MASTER_ADDR MASTER_PORT RANK WORLD_SIZE

# What rank 0 says of a run, without its speed.
result() { sed -n 's/.*\(loss [a-z ]*[0-9.]*\).*/\1/p' "$scratch/out" | grep '[0-9]' | head -n 2; }

# under NAME N COMMAND...: N processes with what that launcher tells them; fails when one does.
under() {
    local kind=$1 n=$2 pids=() rank rc=0
    shift 2
    for ((rank = 0; rank < n; rank++)); do
        local set=()
        case $kind in
        srun) set=("SLURM_PROCID=$rank" "SLURM_STEP_NUM_TASKS=$n" "SLURM_NTASKS=$n"
            "SLURM_LOCALID=$rank" SLURM_NODEID=0 "SLURM_STEP_TASKS_PER_NODE=$n"
            "SLURM_STEP_NODELIST=localhost" SLURM_JOB_ID=$$) ;;
        torchrun) set=("RANK=$rank" "WORLD_SIZE=$n" "LOCAL_RANK=$rank" "LOCAL_WORLD_SIZE=$n"
            MASTER_ADDR=localhost "MASTER_PORT=$((10000 + $$ % 10000))" TORCHELASTIC_RUN_ID=none) ;;
        esac
        env "${set[@]}" "$@" &
        pids+=($!)
    done
    for rank in "${pids[@]}"; do
        wait "$rank" || rc=$?
    done
    return $rc
}

alone() { gives 0 "${job[@]}" && result >"$scratch/alone" && [ -s "$scratch/alone" ]; }

as_alone() { # as_alone COMMAND...
    gives 0 "$@" && says out "trained 5 steps" && result | diff "$scratch/alone" -
}

# shellcheck disable=SC2016 # the sentence has the command in it
without_a_secret() {
    gives 2 under srun 2 "${job[@]}" --pipeline 2 &&
        says err 'export HOLMES_JOB_SECRET=$(openssl rand -hex 16) before srun' &&
        [ "$(grep -c . "$scratch/err")" = 2 ]
}

by_a_secret_file() {
    (umask 077 && echo 221b >"$scratch/secret")
    as_alone under srun 2 "${job[@]}" --pipeline 2 --secret-file "$scratch/secret" || return 1
    chmod 640 "$scratch/secret"
    gives 2 under srun 2 "${job[@]}" --pipeline 2 --secret-file "$scratch/secret" &&
        says err "others may read or change it (mode 0640): chmod 600 it"
}

sizes_that_differ() {
    gives 2 under torchrun 2 "${job[@]}" --pipeline 3 --layers 3 && says err "there are 2"
}

mpirun_says_no_secret() {
    gives 2 mpirun -n 2 "${job[@]}" --pipeline 2 && says err "mpirun -x HOLMES_JOB_SECRET"
}

# Signalled when its log has a step; mpirun passes it on.
stopped_by_mpirun() {
    local deadline=$((SECONDS + 120))
    mpirun -n 2 "${job[@]}" --pipeline 2 --steps 1000000 --save "$scratch/saved" \
        --log "$scratch/log" >"$scratch/out" 2>"$scratch/err" </dev/null &
    local pid=$! status=0
    until grep -q '"record":"step"' "$scratch/log" 2>/dev/null || [ $SECONDS -gt $deadline ]; do :; done
    kill -USR1 "$pid"
    wait "$pid" || status=$?
    [ $status = 4 ] || { echo "status $status" && cat "$scratch/err" && return 1; }
    says out "stopped by a signal after step" && compgen -G "$scratch/saved/step-*" >/dev/null
}

mpirun_and_local() {
    gives 2 mpirun -n 2 "${job[@]}" --pipeline 2 --local 2 &&
        says err "mpirun has started this process as one of 2 (OMPI_COMM_WORLD_SIZE)"
}

planned() {
    cat >"$scratch/cluster.yaml" <<'END'
holmes-cluster: 1
node-types:
- {name: cpu, gpus: 4, gpu: CPU, tflops: 0.05, memory-gib: 1, nics: [{name: lo, kind: ethernet, gbps: 10}]}
nodes:
- {hosts: localhost, type: cpu, fabric: A}
END
    gives 0 "$topo" plan "$scratch/cluster.yaml" --holmes-train --layers 2 --hidden 16 --heads 2 \
        --sequence 16 --vocabulary 256 --untied --global-batch 8 --micro-batch 1 --tensor 1 \
        --pipeline 2 --data 2 -o "$scratch/plan.json" &&
        gives 0 "$topo" emit "$scratch/plan.json" --for holmes -o "$scratch/job"
}

config=("$train" --config "$scratch/job/config.yaml" --data "$scratch/text" --threads 1 --steps 5
    --quiet --plugin "$plugin")

planned_places() {
    gives 0 "${config[@]}" --print-config && says out "rank-order: [0, 1, 2, 3]" &&
        says out "stage-layers: [1, 1]" && says out "cluster: [A, A, A, A]" &&
        says out "planned-hosts: [localhost, localhost, localhost, localhost]"
}

claim "a process alone trains" alone
claim "srun's ranks without a secret are told how to make one" without_a_secret
claim "torchrun's ranks must be as many as the split has" sizes_that_differ
claim "a secret may come from a file that nobody else reads" by_a_secret_file
export HOLMES_JOB_SECRET=221b
claim "ranks with srun's variables train as one process does" \
    as_alone under srun 4 "${job[@]}" --pipeline 2 --data-parallel 2
claim "ranks with torchrun's variables train as one process does" \
    as_alone under torchrun 2 "${job[@]}" --data-parallel 2
claim "a rendezvous that is given goes before srun's" \
    as_alone under srun 2 "${job[@]}" --pipeline 2 --rendezvous "127.0.0.1:$((10000 + $$ % 10000))"
if command -v mpirun >/dev/null; then
    claim "mpirun's ranks train as one process does" \
        as_alone mpirun -n 4 "${job[@]}" --pipeline 2 --data-parallel 2
    claim "mpirun's ranks save and end with 4 when it gets SIGUSR1" stopped_by_mpirun
    if [ -n "$topo" ]; then
        claim "a plan becomes a config and a hostfile" planned
        claim "the config has the plan's places" planned_places
        claim "mpirun's ranks take config and hostfile of a plan" \
            as_alone mpirun --hostfile "$scratch/job/hostfile" --map-by slot --bind-to none "${config[@]}"
    fi
    claim "mpirun and --local are one too many" mpirun_and_local
    unset HOLMES_JOB_SECRET
    claim "mpirun's ranks without a secret are told how to pass it" mpirun_says_no_secret
else
    skip "mpirun's ranks train as one process does" "mpirun is not installed"
fi
