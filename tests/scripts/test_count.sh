#!/bin/sh
# tools/test-record and tools/test-count: the closing line of ./holmes test tells the truth.
. "$(dirname "$0")/tap.sh"
records=$scratch/records

# counted RUNNER_STATUS LINE STATUS: what test-count makes of the records.
counted() {
    line=$2
    gives "$3" "$top/tools/test-count" "$records" "$1" || return 1
    [ "$(tail -n 1 "$scratch/out")" = "$line" ] || { cat "$scratch/out"; return 1; }
}

fresh() {
    rm -rf "$records"
    mkdir "$records"
}

record() { # record COMMAND...: under test-record
    TEST_RECORDS=$records "$top/tools/test-record" "$@"
}

program() { # program NAME BODY: an executable script that stands for a test program
    printf '#!/bin/sh\n%s\n' "$2" >"$scratch/$1"
    chmod +x "$scratch/$1"
}

all_kinds() {
    fresh
    cat >"$records/a.tap" <<'EOF'
TAP version 13
1..4
ok - a::one  (0.00s)
not ok - a::two  (0.00s)
  ---
  failures:
  - t.c:14: |+
      ok - not a result
ok - a::three  # SKIP no such hardware
not ok - a::four unexpected signal after t.c:7
EOF
    counted 1 "1 passed, 2 failed, 1 skipped" 1 && says out "a::three  # SKIP no such hardware"
}

mute_skip() {
    fresh
    printf '1..2\nok - a::one\nok - a::two  # SKIP test was skipped\n' >"$records/a.tap"
    counted 0 "1 passed, 1 failed, 0 skipped" 1 && says out "a skip needs a reason"
}

short_plan() {
    fresh
    printf 'TAP version 13\n1..3\nok - a::one\n' >"$records/a.tap"
    printf 'TAP version 13\n1..1\nok - b::one\n' >"$records/b.tap"
    counted 0 "2 passed, 2 failed, 0 skipped" 1
}

nothing_ran() {
    fresh
    counted 0 "0 passed, 1 failed, 0 skipped" 1
}

runner_failed() {
    fresh
    printf 'ok - a::one\n' >"$records/a.tap"
    counted 1 "1 passed, 1 failed, 0 skipped" 1
}

all_well() {
    fresh
    printf 'ok - a::one\nok - a::two\n' >"$records/a.tap"
    counted 0 "2 passed, 0 failed, 0 skipped" 0
}

killed() {
    fresh
    # shellcheck disable=SC2016 # expanded by the program
    program dies 'kill -9 $$'
    ! record "$scratch/dies" && counted 137 "0 passed, 1 failed, 0 skipped" 1 &&
        says out "dies ended before it reported"
}

killed_mid_report() {
    fresh
    # shellcheck disable=SC2016
    program dies ': >"$TAP_REPORT"; kill -9 $$'
    ! record "$scratch/dies" && counted 137 "0 passed, 1 failed, 0 skipped" 1
}

late_failure() {
    fresh
    # shellcheck disable=SC2016
    program leaks 'echo "ok - a::one" >"$TAP_REPORT"; exit 23'
    ! record "$scratch/leaks" && counted 1 "1 passed, 1 failed, 0 skipped" 1 &&
        says out "leaks ended with status 23 although its cases passed"
}

plain_program() {
    fresh
    program good 'exit 0'
    program bad 'exit 1'
    record "$scratch/good" && ! record "$scratch/bad" && counted 1 "1 passed, 1 failed, 0 skipped" 1
}

claim "passes, failures, crashes and skips are told apart" all_kinds
claim "a skip without a reason is a failure" mute_skip
claim "planned cases without a result are failures" short_plan
claim "no test at all is a failure" nothing_ran
claim "a failed runner is a failure even when no case failed" runner_failed
claim "only passes give status 0" all_well
claim "a killed program is one failure" killed
claim "a program killed while it reports is one failure" killed_mid_report
claim "a bad exit status after good cases is a failure" late_failure
claim "a program without a report counts by its exit status" plain_program
