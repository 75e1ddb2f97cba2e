#!/bin/bash
# check.sh BUILD [DATA]: what only a machine with an NVIDIA GPU can tell, in under nine minutes and
# without the internet. BUILD is a build folder with CUDA (-Dcuda=enabled) and tests; DATA any text
# to train on (this script's own folder's sources otherwise). Prints one table; exits with 0 when
# every check passed, with 1 when one failed, with 2 when something it needs is missing.
set -uo pipefail

top=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$top/build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rows=() failed=0
export HOLMES_TEST_GPU=1

row() { # row CHECK RESULT WHAT
    rows+=("$1|$2|$3")
    [ "$2" = passed ] || [ "$2" = measured ] || failed=1
    printf '%s: %s: %s\n' "$1" "$2" "$3" >&2
}

need() { # need CONDITION-RESULT SENTENCE
    [ "$1" = 0 ] && return
    printf 'check.sh: %s\n' "$2" >&2
    missing=1
}

# --- what must be there -----------------------------------------------------------------------

missing=0
nvidia-smi -L >"$work/gpus" 2>&1
need $? "no GPU: nvidia-smi -L says: $(head -n 1 "$work/gpus")"
train=$build/trainer/holmes-train
test_cuda=$build/tests/kernels/test_cuda
nccl_probe=$build/tests/gpu/nccl_pair
test_comm=$build/tests/gpu/test_comm_nccl_real
bench=$build/bench/holmes-bench
plugin=$build/plugin/libnccl-net-holmes.so
library=$build/kernels/cuda/libholmes-kernels-cuda.so
for file in "$train" "$test_cuda" "$nccl_probe" "$test_comm" "$bench" "$plugin" "$library"; do
    [ -e "$file" ]
    need $? "$file is not there: ninja -C $build makes it"
    [ ! -e "$file" ] || ldd "$file" 2>/dev/null | grep 'not found' >"$work/ldd"
    [ ! -s "$work/ldd" ]
    need $? "$file lacks: $(tr -s '\t\n' ' ' <"$work/ldd" 2>/dev/null)"
    : >"$work/ldd"
done
[ "$missing" = 0 ] || exit 2
head -n 1 "$work/gpus" >&2

data=${2:-$work/text}
[ -e "$data" ] || find "$top/docs" "$top/trainer" -type f -name '*.[cmh]*' -exec cat {} + >"$data"

# --- kernels ----------------------------------------------------------------------------------

if timeout 90 "$test_cuda" >"$work/kernels" 2>&1; then
    row 'kernels against the reference' passed "$(grep -o 'Tested: [0-9]*' "$work/kernels")"
else
    row 'kernels against the reference' failed "$(grep -m 1 -E 'differs|CRASH|FAIL' "$work/kernels")"
fi

# --- training ---------------------------------------------------------------------------------

small=(--data "$data" --layers 4 --channels 256 --heads 4 --seq-len 128 --batch 8 --microbatch 4
    --steps 20 --lr 0.002 --warmup 0 --eval-sequences 0 --quiet --seed 5)
losses() { # losses LOG: one a line
    sed -n 's/.*"record": *"step".*"loss": *\([0-9.eE+-]*\).*/\1/p' "$1"
}

run() { # run NAME KERNELS SECONDS OPTION...
    local name=$1 kernels=$2 limit_s=$3
    shift 3
    timeout "$limit_s" "$train" "$@" --kernels "$kernels" --log "$work/$name.jsonl" >"$work/$name.out" 2>&1
}

parity() { # parity KERNELS TOLERANCE
    local worst
    if ! run "$1" "$1" 45 "${small[@]}"; then
        row "20 steps on $1 against cpu" failed "$(tail -n 1 "$work/$1.out")"
        return
    fi
    worst=$(paste <(losses "$work/cpu.jsonl") <(losses "$work/$1.jsonl") | awk '
        NF == 2 { d = ($2 - $1) / $1; d = d < 0 ? -d : d; if (d > worst) worst = d; n++ }
        END { if (n == 20) printf "%.2e", worst; else print "none" }')
    if [ "$worst" != none ] && awk "BEGIN { exit !($worst <= $2) }"; then
        row "20 steps on $1 against cpu" passed "largest relative difference of loss $worst"
    else
        row "20 steps on $1 against cpu" failed "difference of loss $worst, $2 is allowed"
    fi
}

if run cpu cpu 45 "${small[@]}"; then
    parity cuda 1e-4
    parity cuda-bf16 2e-2
else
    row '20 steps on cpu' failed "$(tail -n 1 "$work/cpu.out")"
fi

# --- NCCL over the plugin ---------------------------------------------------------------------

# Processes on one GPU pass for nodes of their own: NCCL then has nothing but the network between them.
one_gpu=(CUDA_VISIBLE_DEVICES=0 NCCL_MNNVL_ENABLE=0 NCCL_MAX_NCHANNELS=2 NCCL_SOCKET_IFNAME=lo
    NCCL_RAS_ENABLE=0)
pair() { # pair NAME GDR_LEVEL NET [VARIABLE=VALUE...]
    local name=$1 gdr=$2 net=$3 pids=() rc=0 pid
    shift 3
    rm -f "$work/id"
    for rank in 0 1; do
        env "${one_gpu[@]}" NCCL_HOSTID="node$rank" NCCL_NET_GDR_LEVEL="$gdr" NCCL_NET="$net" "$@" \
            timeout 40 "$nccl_probe" "$rank" "$work/id" >"$work/pair-$name.$rank" 2>&1 &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || rc=1
    done
    if [ "$rc" = 0 ]; then
        row "NCCL, $name" passed "$(grep -h '^MB/s' "$work/pair-$name.0")"
    else
        row "NCCL, $name" failed "$(tail -q -n 1 "$work/pair-$name".[01] | tr '\n' ' ')"
    fi
}

pair 'Holmes, host memory' LOC Holmes NCCL_NET_PLUGIN="$plugin"
pair 'Holmes, CUDA pointers' SYS Holmes NCCL_NET_PLUGIN="$plugin"
pair 'Socket (its own)' LOC Socket NCCL_NET_PLUGIN=none

if env "${one_gpu[@]}" TEST_NET_PLUGIN="$plugin" timeout 60 "$test_comm" -j1 >"$work/comm" 2>&1; then
    row "the trainer's communicators" passed "$(grep -o 'Tested: [0-9]*' "$work/comm")"
else
    row "the trainer's communicators" failed "$(grep -m 1 -E 'rank [0-9]|CRASH|FAIL' "$work/comm")"
fi

if env "${one_gpu[@]}" timeout 60 "$bench" sendrecv --backend nccl -p holmes="$plugin" \
    -p socket=none,NCCL_NET=Socket -b 1M -e 1M --rounds 3 --no-reference --csv "$work/bench.csv" \
    >"$work/bench" 2>&1; then
    row 'holmes-bench through NCCL' passed "$(awk -F, '$2 == "bandwidth" && $7 == "socket" {
        printf "1 MiB, Socket over Holmes: %.2f", $22 }' "$work/bench.csv")"
else
    row 'holmes-bench through NCCL' failed "$(grep -m 1 'holmes-bench: ' "$work/bench")"
fi

# --- speed ------------------------------------------------------------------------------------

# 6 flops a parameter and token, and attention's 12 L C T: as in the PaLM paper, appendix B.
flops_per_token=$((6 * 124475904 + 12 * 12 * 768 * 1024))
peak() { # bf16 without sparsity, of the vendor's data sheets
    case $(head -n 1 "$work/gpus") in
    *H100* | *H200*) echo 989e12 ;;
    *A100*) echo 312e12 ;;
    *A40* | *A6000*) echo 150e12 ;;
    *L40*) echo 181e12 ;;
    *) echo 0 ;;
    esac
}
gpt2=(--data "$data" --layers 12 --channels 768 --heads 12 --seq-len 1024 --vocab 50304 --tied
    --batch 64 --microbatch 16 --steps 30 --lr 0.0003 --eval-sequences 0 --quiet)
if run gpt2 cuda-bf16 100 "${gpt2[@]}"; then
    rate=$(sed -n 's/.*"record": *"step".*"tokens_per_s": *\([0-9.eE+]*\).*/\1/p' "$work/gpt2.jsonl" |
        tail -n 20 | sort -g | sed -n 10p)
    row 'GPT-2 124M, bf16' measured "$(awk -v r="$rate" -v f="$flops_per_token" -v p="$(peak)" 'BEGIN {
        printf "%.0f tokens/s, ", r
        if (p > 0) printf "MFU %.1f %%", 100 * r * f / p; else printf "peak of this GPU not known" }')"
else
    row 'GPT-2 124M, bf16' failed "$(tail -n 1 "$work/gpt2.out")"
fi

# --- the table --------------------------------------------------------------------------------

echo
printf '%-32s  %-8s  %s\n' check result what
printf '%-32s  %-8s  %s\n' -------------------------------- -------- ----
for line in "${rows[@]}"; do
    IFS='|' read -r check result what <<<"$line"
    printf '%-32s  %-8s  %s\n' "$check" "$result" "$what"
done
exit "$failed"
