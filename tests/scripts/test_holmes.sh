#!/bin/sh
# ./holmes itself: its answers to good and bad commands, and setup in worlds without packages, which
# are folders of commands put in place of PATH.
. "$(dirname "$0")/tap.sh"

help_is_complete() {
    gives 0 "$top/holmes" help || return 1
    for command in setup demo test bench bundle fuzz lint help; do
        says out "  $command " || return 1
    done
}

unknown_command() {
    gives 2 "$top/holmes" tets && says err "no command 'tets'"
}

no_command() {
    gives 2 "$top/holmes" && says err "Usage: ./holmes COMMAND"
}

unknown_option() {
    gives 2 "$top/holmes" test --asna && says err "no option '--asna'"
}

unknown_group() {
    gives 2 "$top/holmes" setup biuld && says err "no group 'biuld'"
}

# A PATH with nothing but what the script itself needs.
world() {
    rm -rf "${scratch:?}/bin"
    mkdir "$scratch/bin"
    for command in sh dirname awk sort tr cat mktemp rm id env ln ls; do
        ln -s "$(command -v "$command")" "$scratch/bin/" || return 1
    done
}

stub() { # stub NAME BODY
    printf '#!/bin/sh\n%s\n' "$2" >"$scratch/bin/$1"
    chmod +x "$scratch/bin/$1"
}

setup_there() {
    want=$1
    shift
    gives "$want" env PATH="$scratch/bin" "$top/holmes" setup "$@"
}

foreign_system() {
    world && setup_there 1 build && says err "apt: build-essential" && says err "dnf: " &&
        says err "openblas-devel"
}

installs_missing() {
    world
    # shellcheck disable=SC2016 # expanded by the stub
    stub apt-get 'echo "$*" >>"'"$scratch"'/apt.log"
        for tool in clang-format clang-tidy shellcheck; do ln -sf /bin/true "'"$scratch"'/bin/$tool"; done'
    stub id 'echo 0'
    setup_there 0 lint && grep -q 'install .*clang-format.*shellcheck' "$scratch/apt.log" &&
        ! grep -q libfabric "$scratch/apt.log"
}

quiet_when_complete() {
    world
    for tool in clang-format clang-tidy shellcheck; do stub $tool ''; done
    stub apt-get 'echo called; exit 1'
    setup_there 0 lint && [ ! -s "$scratch/out" ] && [ ! -s "$scratch/err" ]
}

uses_sudo() {
    world
    stub id 'echo 1000'
    # shellcheck disable=SC2016
    stub sudo 'echo "$*" >>"'"$scratch"'/sudo.log"; exec "$@"'
    # shellcheck disable=SC2016
    stub apt-get 'case "$*" in *install*) ln -s /bin/true "'"$scratch"'/bin/valgrind" ;; esac'
    setup_there 0 valgrind && grep -q 'apt-get .*install.* valgrind' "$scratch/sudo.log"
}

without_sudo() {
    world
    stub id 'echo 1000'
    stub apt-get ''
    setup_there 1 valgrind && says err "as root: apt-get install valgrind"
}

failing_apt() {
    world
    stub id 'echo 0'
    stub apt-get 'echo "E: no network"; exit 100'
    setup_there 1 valgrind && says err "E: no network" && says err "could not install: valgrind"
}

claim "help names every command" help_is_complete
claim "an unknown command is refused by name with status 2" unknown_command
claim "no command at all prints the usage with status 2" no_command
claim "an unknown option of test is refused by name" unknown_option
claim "an unknown group of setup is refused by name" unknown_group
claim "setup without apt-get names apt's and dnf's packages" foreign_system
claim "setup installs what is missing and nothing else" installs_missing
claim "setup says and does nothing when nothing is missing" quiet_when_complete
claim "setup goes through sudo when not root" uses_sudo
claim "setup without root and sudo says what to run" without_sudo
claim "setup shows why apt-get failed" failing_apt
