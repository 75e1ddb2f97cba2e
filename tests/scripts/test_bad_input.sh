#!/bin/bash
# test_bad_input.sh TRAIN PLUGIN DATA: docs/bad-input.md is true: every line in it that begins with
# "$" is run and says what the page says. HOLMES_GOLDEN=write writes the page anew.
. "$(dirname "$0")/tap.sh"
train_program=$(realpath "$1") data_program=$(realpath "$3") plugin=$(realpath "$2")
export PATH=$scratch/bin:$PATH plugin
page=$top/docs/bad-input.md
golden=${HOLMES_GOLDEN-}
unset HOLMES_GOLDEN HOLMES_TEST_PATIENCE HOLMES_JOB_SECRET MASTER_ADDR MASTER_PORT RANK WORLD_SIZE
mkdir "$scratch/bin" "$scratch/work" && cd "$scratch/work" || exit 1
ln -s "$train_program" "$scratch/bin/holmes-train"
seq 1 20000 | head -c 100000 >text
echo 'a b c d ' | head -c 9 >short
export train='holmes-train --data text --layers 2 --channels 16 --heads 2 --seq-len 16 --batch 8
    --microbatch 1 --threads 1 --quiet'
$train --steps 2 --save job >"$scratch/made" 2>&1 || { cat "$scratch/made" >&2; exit 1; }
"$data_program" encode --quiet --documents line -o tokens text >"$scratch/made" 2>&1 || { cat "$scratch/made" >&2; exit 1; }

# What differs from machine to machine is told by what it is; "Try --help" is left out.
plain() {
    sed -e "s#$plugin#PLUGIN#g; s#$scratch/work/##g; s#rank [01] on $(hostname)#rank N on HOST#g" \
        -e '/^Try .*--help/d' -e 's#/[^ ]*/libm.so#libm.so#; s/; there \(is\|are\) .*/; there is .../' \
        -e 's/this piece, is [0-9a-f]*, [0-9a-f]* was/this piece, is ..., ... was/' \
        -e 's/the loss is [^ ]*/the loss is .../; s/cpu, ref, cuda, cuda-bf16 is/cpu, ref is/'
}

# The page with its commands run. Long outputs of what should have failed would show here.
run_page() {
    local line fence=false
    while IFS= read -r line; do
        case $line in
        '```') [ $fence = true ] && fence=false || fence=true ;;
        '$ '*)
            printf '%s\n' "$line"
            timeout 60 bash -c "${line#??}" >"$scratch/says" 2>&1 </dev/null
            rc=$?
            plain <"$scratch/says"
            echo "[$rc]"
            continue
            ;;
        *) [ $fence = true ] && continue ;;
        esac
        printf '%s\n' "$line"
    done <"$page"
}

run_page >"$scratch/page"
[ "$golden" != write ] || cp "$scratch/page" "$page"
claim "bad input leads to the sentences of docs/bad-input.md" diff "$page" "$scratch/page"
claim "all of it is refused" sh -c "! grep -n '^\[0\]\|^\[1[0-9][0-9]\]' '$scratch/page'"
