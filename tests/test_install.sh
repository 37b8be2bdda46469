#!/bin/bash
# test_install.sh [BUILD]: installs into a temporary folder and uses what is there, as a stranger would: the header,
# both libraries, pkg-config and CMake where they are, and the command with its programs.
cd "$(dirname "$0")/.." || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
cc=${CC:-cc}
passed=0 failed=0
that() {
    local what=$1
    shift
    if "$@" >"$tmp/log" 2>&1; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED $what"; tail -20 "$tmp/log"; fi
}
p="$tmp/a prefix" # with a space in it
that 'make install' make -s install BUILD="${1:-build}" PREFIX="$p"
only_epi() { ! nm -D --defined-only "$p/lib/libepilog.so" | awk '{ print $3 }' | grep -v '^epi_'; }
that 'the shared library exports epi_* alone' only_epi
that 'it has a versioned SONAME' sh -c "readelf -d '$p/lib/libepilog.so' | grep -q 'SONAME.*libepilog.so.[0-9]'"
that 'an example builds with the shared library' "$cc" examples/linear.c -I"$p/include" -L"$p/lib" -lepilog -o "$tmp/shared"
that 'and runs' env LD_LIBRARY_PATH="$p/lib" "$tmp/shared"
that 'the command finds its programs' sh -c "cd / && '$p/bin/epilog' run residual_rms --dims T=9,K=8,D=7"
echo '#include <epilog.h>
int main() { epi_error e; epi_context *c; return epi_context_open(&c, &e); }' >"$tmp/plus.cc"
if command -v g++ >/dev/null; then
    that 'the header is C++ as well' g++ -Wall -Wextra -Werror "$tmp/plus.cc" -I"$p/include" -L"$p/lib" -lepilog -o "$tmp/plus"
fi
if command -v pkg-config >/dev/null; then
    flags=$(PKG_CONFIG_PATH=$p/lib/pkgconfig pkg-config --cflags --libs epilog) # words quoted for a shell
    that 'pkg-config gives what a build needs' sh -c "$cc examples/linear.c $flags -o '$tmp/pc'"
fi
if command -v cmake >/dev/null; then
    mkdir "$tmp/cm"
    cp examples/linear.c "$tmp/cm/"
    printf 'cmake_minimum_required(VERSION 3.10)\nproject(t C)\nset(CMAKE_C_STANDARD 11)\nfind_package(epilog REQUIRED)\nadd_executable(t linear.c)\ntarget_link_libraries(t epilog::epilog)\n' >"$tmp/cm/CMakeLists.txt"
    that 'CMake finds the package' sh -c "cmake -S $tmp/cm -B $tmp/cm/b '-DCMAKE_PREFIX_PATH=$p' && cmake --build $tmp/cm/b && $tmp/cm/b/t"
fi
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
