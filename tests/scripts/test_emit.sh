#!/bin/bash
# test_emit.sh TOPO: emit and draw as programs: what they write where, what a shell makes of it, and
# what they say of bad input.
. "$(dirname "$0")/tap.sh"
topo=$1
plan=$top/tests/fuzz/seeds/plan/uneven.json # 16 ranks, tensor 1
split=$top/tests/fuzz/seeds/plan/two.json   # 64 ranks, tensor 2
job=$scratch/job

refuses() { # refuses TEXT ARGUMENT...
    text=$1
    shift
    gives 2 "$topo" "$@" && says err "$text"
}

bad_usage() {
    refuses "--for FORM is missing" emit "$plan" &&
        refuses "there are: megatron torchrun slurm" emit "$plan" --for deepspeed &&
        refuses "there are: batch hostfile nodelist" emit "$plan" --for slurm --part x &&
        refuses "name a plan" emit --for slurm && refuses "name a plan" draw &&
        refuses '--port "0"' emit "$plan" --for slurm --port 0 &&
        refuses "--naive goes with --for holmes" emit "$plan" --for slurm --naive &&
        refuses "--master: nothing is given" emit "$plan" --for slurm --master= &&
        refuses "--program: tabs and line ends" emit "$plan" --for slurm --program $'a\nb' &&
        refuses "an absolute path is right" emit "$plan" --for slurm --plugin x.so &&
        refuses "one plan at a time" draw "$plan" "$plan"
}

bad_plans() {
    sed 's/"layers": 9/"layers": 8/' "$plan" >"$scratch/bad.json"
    refuses "/nonexistent: No such file" draw /nonexistent &&
        refuses "bad.json: plan.stages[1].first_layer is 9" draw "$scratch/bad.json" &&
        refuses "line 1" emit "$0" --for slurm
}

every_form_into_a_folder() {
    for form in megatron torchrun slurm mpirun holmes fabrics; do
        rm -rf "$job"
        gives 0 "$topo" emit "$plan" --for $form -o "$job" || return 1
        for file in "$job"/*; do
            [ -s "$file" ] || return 1
        done
    done
}

parts_are_their_files() {
    gives 0 "$topo" emit "$plan" --for slurm -o "$job" &&
        gives 0 "$topo" emit "$plan" --for slurm --part batch &&
        diff "$scratch/out" "$job/job.sbatch" &&
        gives 0 "$topo" emit "$split" --for holmes --part args &&
        says out "--pipeline 4 --data-parallel 8 --tensor 2 --rank-order 0,1," &&
        gives 0 "$topo" emit "$plan" --for slurm && says out "==> job.sbatch <==" &&
        says out "==> rankmap <==" && [ -x "$job/job.sbatch" ] && [ ! -x "$job/env.sh" ] &&
        [ "$(wc -l <"$job/hostfile")" = 16 ]
}

scripts_are_shell() {
    gives 0 "$topo" emit "$split" --for mpirun -o "$job" && bash -n "$job/run.sh" &&
        sh -n "$job/env.sh" && bash -n "$job/args.sh" &&
        gives 0 "$topo" emit "$split" --for slurm -o "$job" && bash -n "$job/job.sbatch" &&
        gives 0 "$topo" emit "$split" --for torchrun --part commands || return 1
    grep -v '^#' "$scratch/out" | cut -f 2 >"$scratch/commands"
    bash -n "$scratch/commands" && [ "$(wc -l <"$scratch/commands")" = 8 ]
}

# What stands in for torchrun prints its arguments: each node's command gives it the node's own.
commands_run() {
    gives 0 "$topo" emit "$plan" --for torchrun -o "$job" --program train.py || return 1
    mkdir -p "$scratch/bin"
    printf '#!/bin/sh\nprintf "%%s|" "$@"; echo\n' >"$scratch/bin/torchrun"
    chmod +x "$scratch/bin/torchrun"
    (cd "$job" && grep -v '^#' commands | while IFS=$'\t' read -r host command; do
        PATH=$scratch/bin:$PATH bash -c "$command" | sed "s/^/$host|/"
    done) >"$scratch/out"
    says out "big1|--nnodes=8|--node-rank=0|--nproc-per-node=4|--master-addr=big1|" &&
        says out "late|--nnodes=8|--node-rank=7|--nproc-per-node=1|" &&
        says out "|train.py|--tensor-model-parallel-size|1|" &&
        says out "|--pipeline-model-parallel-layout|Et*9|t*3|t*5|t*7L|"
}

draws() {
    gives 0 "$topo" draw "$split" -o "$scratch/plan.svg" &&
        python3 -c 'import sys, xml.dom.minidom as x; x.parse(sys.argv[1])' "$scratch/plan.svg" &&
        gives 0 "$topo" draw "$split" -o - && diff "$scratch/out" "$scratch/plan.svg"
}

# A file is there whole or as it was.
keeps_what_was_there() {
    echo old >"$scratch/kept"
    gives 1 "$topo" draw "$split" -o "$scratch/none/plan.svg" && says err "No such file" &&
        gives 1 "$topo" draw "$split" -o /dev/full && says err "No space left" &&
        gives 2 "$topo" draw "$scratch/bad.json" -o "$scratch/kept" &&
        [ "$(cat "$scratch/kept")" = old ] && [ -z "$(ls "$scratch"/kept.* 2>/dev/null)" ]
}

claim "emit and draw refuse bad usage by name" bad_usage
claim "emit and draw refuse bad plans by name" bad_plans
claim "every form is written into a folder" every_form_into_a_folder
claim "a part on the output is what its file has" parts_are_their_files
claim "scripts are good shell" scripts_are_shell
claim "each node's command gives torchrun its own place" commands_run
claim "draw writes a well-formed picture" draws
claim "a failure leaves what was there" keeps_what_was_there
