# shellcheck shell=sh
# Sourced by the test scripts. Each claim is one test case of the TAP report that tools/test-record
# asks for through TAP_REPORT; a script on its own writes it to standard output. The scratch folder
# $scratch is removed at the end.
# shellcheck disable=SC2034 # used by the scripts
top=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
report=${TAP_REPORT:-$scratch/report}
failures=0
: >"$report" || exit 1

tap_end() {
    rc=$?
    [ -n "${TAP_REPORT-}" ] || cat "$report"
    rm -rf "$scratch"
    [ $rc = 0 ] && [ "$failures" = 0 ] || exit 1
}
trap tap_end EXIT
trap 'exit 1' INT TERM

# claim SENTENCE COMMAND...: holds when the command succeeds.
claim() {
    sentence=$1
    shift
    if "$@" >"$scratch/claim.log" 2>&1; then
        echo "ok - $sentence" >>"$report"
    else
        echo "not ok - $sentence" >>"$report"
        sed 's/^/# /' "$scratch/claim.log" >&2
        failures=$((failures + 1))
    fi
}

skip() { # skip SENTENCE REASON
    echo "ok - $1 # SKIP $2" >>"$report"
}

# gives STATUS COMMAND...: runs it, keeps its output in $scratch/out and $scratch/err, and holds
# when it ends with that status.
gives() {
    want=$1
    shift
    "$@" >"$scratch/out" 2>"$scratch/err" </dev/null
    got=$?
    [ $got = "$want" ] || {
        echo "status $got, not $want: $*"
        cat "$scratch/out" "$scratch/err"
        return 1
    }
}

says() { # says out|err TEXT: the last command's output has this line part
    grep -q -F -e "$2" "$scratch/$1" || {
        echo "no '$2' in:"
        cat "$scratch/$1"
        return 1
    }
}
