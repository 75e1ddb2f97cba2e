#!/bin/sh
# Two clusters whose CPUs differ in speed, as namespaces on this machine, and one pipeline over both:
# the step time with as many layers on each stage, and with the layers that holmes-topo plans from
# the measured speeds, in turns. `bench/uneven.sh --help`; docs/uneven.md.
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
PATH=$PATH:/usr/sbin:/sbin # for users whose PATH lacks ip and tc
# shellcheck source=../demo/net.sh
. "$top/demo/net.sh"
build=${BUILD:-$top/build}
train=$build/trainer/holmes-train
topo=$build/topology/holmes-topo
plugin=$build/plugin/libnccl-net-holmes.so

model="--layers 12 --hidden 256 --heads 4 --sequence 64 --vocabulary 256 --untied --holmes-train"
batch=16 microbatch=2

usage() {
    cat <<'EOT'
Usage: bench/uneven.sh [OPTION...]

Cluster A is one core, cluster B half of another: by the quota of a cgroup, or where there is none to
be had by a load that shares the core. Needs two cores, and root or user namespaces.

  --rounds N   runs of each partition, in turns (5)
  --steps N    steps of a run (12)
  --share X    of a core that cluster B gets, in percent (50)
  --out DIR    where cluster file, plan and logs go (uneven-out)
EOT
}

say() { printf '%s\n' "$*"; }
fail() {
    printf 'uneven: %s\n' "$*" >&2
    exit 1
}

rounds=5 steps=12 share=50 out=uneven-out
while [ $# -gt 0 ]; do
    case $1 in
    --rounds | --steps | --share | --out)
        [ $# -gt 1 ] || fail "$1 needs a value"
        case $1 in
        --rounds) rounds=$2 ;;
        --steps) steps=$2 ;;
        --share) share=$2 ;;
        --out) out=$2 ;;
        esac
        shift
        ;;
    -h | --help) usage && exit ;;
    *) fail "no option '$1' (see bench/uneven.sh --help)" ;;
    esac
    shift
done
for number in "$rounds" "$steps" "$share"; do
    case $number in
    '' | *[!0-9]* | 0*) fail "'$number': a whole number from 1 is right" ;;
    esac
done
[ "$share" -le 100 ] || fail "--share $share: at most 100 percent of a core"
for built in "$train" "$topo" "$plugin"; do
    [ -e "$built" ] || fail "$built is not there: build first (ninja -C $build)"
done

# --- a place of our own -----------------------------------------------------------------------

if [ -z "${uneven_inside-}" ]; then
    isolation=$(net_isolation) || fail "needs network namespaces: root, or user namespaces"
    # shellcheck disable=SC2086 # a list of words
    uneven_inside=1 $isolation "$0" --rounds "$rounds" --steps "$steps" --share "$share" \
        --out "$out" && exit
    exit $?
fi

cores=$(taskset -cp $$ | sed 's/.*: //' | tr ',' '\n' |
    awk -F- '{ for (c = $1; c <= (NF > 1 ? $2 : $1); c++) print c }' | head -n 2 | tr '\n' ' ')
# shellcheck disable=SC2086 # two numbers
set -- $cores
[ $# = 2 ] || fail "needs two cores, has: $cores"
fast_core=$1 slow_core=$2

load='' cgroups='' ranks=''
clean_up() {
    trap - EXIT INT TERM HUP
    for pid in $ranks $load; do kill "$pid" 2>/dev/null || true; done
    wait
    for group in $cgroups; do rmdir "$group" 2>/dev/null || true; done
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# --- half a core ------------------------------------------------------------------------------

# cgroup_make NAME PERCENT: a group that may use so much of a core and goes before what else runs
# here. A period of 10 ms: shorter than a layer's work, so that a rank is slow and not now fast, now
# away. Sets $group.
cgroup_make() {
    quota=$((10000 * $2 / 100))
    for root in /sys/fs/cgroup/cpu /sys/fs/cgroup; do
        group=$root/holmes-uneven-$1.$(od -An -N4 -tx4 /dev/urandom | tr -d ' ')
        mkdir "$group" 2>/dev/null || continue
        cgroups="$cgroups $group"
        if [ -e "$group/cpu.cfs_quota_us" ]; then
            { echo 10000 >"$group/cpu.cfs_period_us" && echo $quota >"$group/cpu.cfs_quota_us" &&
                echo 262144 >"$group/cpu.shares"; } 2>/dev/null && return 0
        elif [ -e "$group/cpu.max" ]; then
            { echo "$quota 10000" >"$group/cpu.max" && echo 10000 >"$group/cpu.weight"; } \
                2>/dev/null && return 0
        fi
    done
    return 1
}

fast_group='' slow_group=''
if cgroup_make fast 100 && fast_group=$group && cgroup_make slow "$share"; then
    slow_group=$group
    say "Cluster A: core $fast_core. B: core $slow_core, $share % of it by a cgroup's quota" \
        "(periods of 10 ms)."
else
    # A process that never rests has as much of the core as the rank that shares it.
    [ "$share" = 50 ] || fail "without a cgroup's quota --share can only be 50"
    fast_group=''
    taskset -c "$slow_core" sh -c 'while :; do :; done' &
    load=$!
    say "Cluster A: core $fast_core. B: core $slow_core, shared with a load that never rests (no" \
        "cgroup's quota to be had here)."
fi

# on HOST ARGUMENT...: holmes-train on that host, with its cluster's share of the machine. The cgroup
# is entered first: inside the host's namespaces there is no way to it.
on() {
    host=$1
    shift
    group=$fast_group core=$fast_core
    [ "${host%?}" = a ] || { group=$slow_group core=$slow_core; }
    (
        [ -z "$group" ] || echo 0 >"$group/cgroup.procs"
        net_on "$host" taskset -c "$core" "$train" "$@"
    )
}

# --- speeds -----------------------------------------------------------------------------------

mkdir -p "$out" || fail "cannot make the folder $out"
text=$out/text
cat "$top"/docs/*.md >"$text"
net_up || fail "could not make the hosts' network (see above)"

figure() { # figure LOG KEY: of the report on a run
    "$train" report "$1" --json |
        python3 -c 'import json, sys
print("%.1f" % json.load(sys.stdin)["runs"][0][sys.argv[1]])' "$2"
}

say ""
say "== speed of each cluster alone, a sixth of the layers on one rank"
alone="--layers 2 --channels 256 --heads 4 --seq-len 64 --batch $batch --microbatch $microbatch"
for host in a0 b0; do
    # shellcheck disable=SC2086 # a list of options
    on $host --data "$text" $alone --steps 30 --eval-sequences 0 --threads 1 --quiet \
        --log "$out/alone-$host.jsonl" >"$out/alone-$host.txt" 2>&1 ||
        fail "the run on $host failed (see $out/alone-$host.txt)"
done
fast=$(figure "$out/alone-a0.jsonl" gflops)
slow=$(figure "$out/alone-b0.jsonl" gflops)
say "$(python3 -c 'import sys; a, b = map(float, sys.argv[1:])
print(f"A {a:.1f} GFLOPS, B {b:.1f} GFLOPS: {a / b:.2f} to 1")' "$fast" "$slow")"

# --- the plan ---------------------------------------------------------------------------------

python3 - "$fast" "$slow" "$net_mbit" >"$out/cluster.yaml" <<'EOT'
import sys
fast, slow, mbit = map(float, sys.argv[1:])
print("holmes-cluster: 1\nname: uneven\nnode-types:")
for name, gflops in (("fast", fast), ("slow", slow)):
    print(f"- name: {name}\n  gpus: 1\n  gpu: CPU\n  tflops: {gflops / 1e3:.6f}\n  nics:\n"
          "  - {name: eth0, kind: ethernet, gbps: 10}")
print("nodes:\n- {hosts: a0, type: fast, fabric: A}\n- {hosts: b0, type: slow, fabric: B}")
print(f"links:\n- {{between: [A, B], gbps: {mbit / 1e3:g}, rtt-ms: 0.2}}")
EOT
say ""
say "== holmes-topo plan"
# shellcheck disable=SC2086 # lists of options
"$topo" plan "$out/cluster.yaml" $model --global-batch $batch \
    --micro-batch $microbatch --tensor 1 --pipeline 2 --data 1 --efficiency 1 \
    -o "$out/plan.json" || fail "there is no plan"

# --- the two partitions, in turns ---------------------------------------------------------------

# run NAME ARGUMENTS...: both ranks with these arguments of the plan; the log is $out/NAME.jsonl.
run() {
    name=$1
    shift
    HOLMES_JOB_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    export HOLMES_JOB_SECRET
    set -- --data "$text" --plugin "$plugin" --threads 1 --steps "$steps" --eval-sequences 0 \
        --quiet --world 2 --rendezvous "$(net_address a0):29500" "$@"
    on a0 "$@" --rank 0 --serve --host-label a0 --cluster A --log "$out/$name.jsonl" \
        >"$out/$name.rank0.txt" 2>&1 &
    ranks=$!
    on b0 "$@" --rank 1 --host-label b0 --cluster B >"$out/$name.rank1.txt" 2>&1 &
    ranks="$ranks $!"
    failed=''
    for pid in $ranks; do wait "$pid" || failed=1; done
    ranks=''
    [ -z "$failed" ] || fail "the run failed: $(tail -n 1 "$out/$name".rank?.txt)"
}

planned=$("$topo" emit "$out/plan.json" --for holmes --part args) || fail "no arguments"
uniform=$("$topo" emit "$out/plan.json" --for holmes --part args --naive) || fail "no arguments"
say ""
say "== $rounds runs of each, $steps steps, in turns"
say "planned: $planned"
say "uniform: $uniform"
for round in $(seq "$rounds"); do
    # shellcheck disable=SC2086 # lists of options
    run "uniform-$round" $uniform
    # shellcheck disable=SC2086
    run "planned-$round" $planned
    say "round $round: uniform $(figure "$out/uniform-$round.jsonl" step_ms) ms," \
        "planned $(figure "$out/planned-$round.jsonl" step_ms) ms"
done

python3 "$top/bench/uneven.py" "$out" "$train" "$rounds"
