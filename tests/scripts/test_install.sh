#!/bin/sh
# test_install.sh BUILD PROGRAM...: what `meson install` and `./holmes bundle` make is complete and works from
# where it lies.
. "$(dirname "$0")/tap.sh"
build=$1
shift
programs=$*

installs() {
    DESTDIR=$scratch/root meson install -C "$build" --no-rebuild || return 1
    for file in nccl_net.h libnccl-net-holmes.so architecture.md README.md $programs; do
        find "$scratch/root" -name "$file" | grep . || { echo "no $file"; return 1; }
    done
}

# loads FOLDER [NAME=VALUE]: by name, the way NCCL does it.
loads() {
    folder=$1
    shift
    gives 0 env -u HOLMES_TCP LD_LIBRARY_PATH="$folder" "$@" \
        python3 "$top/tests/scripts/load_plugin.py" libnccl-net-holmes.so && says out "Holmes "
}

installed_plugin_loads() {
    loads "$(dirname "$(find "$scratch/root" -name libnccl-net-holmes.so)")"
}

bundle() { "$top/tools/bundle" "$build" "$@"; }

bundle_moves() {
    bundle "$scratch/first" && mv "$scratch/first" "$scratch/moved" && loads "$scratch/moved"
}

bundle_brings_libfabric() {
    gives 0 bundle "$scratch/second" --with-libfabric && says out "HOLMES_TCP=libfabric" &&
        mv "$scratch/second" "$scratch/other place" &&
        loads "$scratch/other place" HOLMES_TCP=libfabric &&
        says out "$scratch/other place/libfabric/libfabric.so.1"
}

bundle_leaves_libfabric_alone() {
    loads "$scratch/other place" && ! says out libfabric
}

bundle_names_glibc() {
    gives 0 bundle "$scratch/third" && grep -Eq 'needs glibc 2\.[0-9]+ or newer' "$scratch/out"
}

bundle_is_replaced() { bundle "$scratch/moved" && loads "$scratch/moved"; }

bundle_spares_folders() {
    mkdir "$scratch/precious" && : >"$scratch/precious/thing" &&
        gives 1 bundle "$scratch/precious" && says err "not empty" && [ -f "$scratch/precious/thing" ]
}

bundle_refuses_options() { gives 2 bundle --with-libfabrik && says err "--with-libfabrik"; }

claim "meson install puts plugin, tools, header and documents in place" installs
claim "the installed plugin loads and finds a device" installed_plugin_loads
if command -v patchelf >/dev/null; then
    claim "a bundle works after it was moved" bundle_moves
    if /sbin/ldconfig -p | grep -q libfabric.so.1; then
        claim "a bundle uses the libfabric it brought, wherever it lies" bundle_brings_libfabric
        claim "a bundle does not load it unless asked to" bundle_leaves_libfabric_alone
    else
        skip "a bundle with libfabric" "libfabric is not installed"
    fi
    claim "bundle names the newest glibc needed" bundle_names_glibc
    claim "bundle replaces an earlier bundle" bundle_is_replaced
    claim "bundle leaves other folders alone" bundle_spares_folders
    claim "bundle refuses unknown options" bundle_refuses_options
else
    skip "bundles" "patchelf is not installed (./holmes setup bundle)"
fi
