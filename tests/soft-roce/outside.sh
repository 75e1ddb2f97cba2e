# shellcheck shell=sh
# Sourced by the tests that start guests, after tap.sh.
# shellcheck disable=SC2154 # tap.sh's
here=$top/tests/soft-roce

# Ends the test where there can be no guests: skipped when that is this machine's nature.
guests_or_skip() { # guests_or_skip SENTENCE
    "$here/kernel" >/dev/null 2>"$scratch/why"
    case $? in
    0) return ;;
    77) skip "$1" "$(sed 's/^soft-roce: //' "$scratch/why")" ;;
    *) claim "there is a kernel for guests" sh -c "cat '$scratch/why'; false" ;;
    esac
    exit
}

# Adds the cases of a report that was made in a guest, each preceded by PREFIX; shows those that
# failed, and the end of what the program said.
take_over() { # take_over REPORT OUTPUT [PREFIX]
    sed -E "s/^((not )?ok) - /\\1 - ${3-}/" "$1" >>"$report"
    grep -q '^not ok' "$1" || return 0
    failures=$((failures + 1))
    grep -h '^not ok' "$1" >&2
    tail -n 40 "$2" >&2
}
