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
for path in PREFIX=here LIBDIR=lib64; do
    that "no $path" sh -c "make -s install BUILD='${1:-build}' PREFIX='$p' '$path' 2>&1 | grep -q '^${path%=*} is a path from / on'"
    that "which leaves nothing" test ! -e "${path#*=}"
done
only_epi() { ! nm -D --defined-only "$p/lib/libepilog.so" | awk '{ print $3 }' | grep -v '^epi_'; }
that 'the shared library exports epi_* alone' only_epi
never_ends() { ! nm -D --undefined-only "$p/lib/libepilog.so" | sed 's/@.*//' | grep -wE 'abort|exit|_exit|_Exit|quick_exit|raise|kill|__assert_fail|__assert|printf|puts|putchar|perror|stderr|__printf_chk|__fprintf_chk'; }
that 'it calls nothing that ends the process, or prints' never_ends
that 'it has a versioned SONAME' sh -c "readelf -d '$p/lib/libepilog.so' | grep -q 'SONAME.*libepilog.so.[0-9]'"
that 'an example builds with the shared library' "$cc" examples/linear.c -I"$p/include" -L"$p/lib" -lepilog -o "$tmp/shared"
that 'and runs' env LD_LIBRARY_PATH="$p/lib" "$tmp/shared"
that 'so does one that reads and writes files' "$cc" examples/files.c -I"$p/include" -L"$p/lib" -lepilog -lm -o "$tmp/files"
that 'and it runs' env LD_LIBRARY_PATH="$p/lib" "$tmp/files"
train() { LD_LIBRARY_PATH=$p/lib "$tmp/train" --state "$tmp/$1.st" README.md "$2" 1 16; }
that 'an example that generates' "$cc" examples/llama.c -I"$p/include" -L"$p/lib" -lepilog -lm -o "$tmp/llama"
for config in '{"model_type": "granite"}' '{"hidden_act": "gelu"}' '{"residual_multiplier": 0.22}' '{"logits_scaling": 8}' '{"partial_rotary_factor": 0.5}' \
    '{"rope_scaling": {"rope_type": "yarn"}}' '{"attention_multiplier": 0.1}' '{"hidden_size": 8' 'no object'; do
    echo "$config" >"$tmp/config.json"
    that "it refuses $config" bash -c "LD_LIBRARY_PATH='$p/lib' '$tmp/llama' '$tmp/config.json' none.safetensors -- 1 1 2>&1 | grep -q 'leaves out\|this example knows\|no whole JSON'"
done
echo '{"model_type": "llama", "hidden_act": "silu", "partial_rotary_factor": 1.0, "logits_scaling": null}' >"$tmp/config.json"
that 'and takes what changes nothing' bash -c "LD_LIBRARY_PATH='$p/lib' '$tmp/llama' '$tmp/config.json' none.safetensors -- 1 1 2>&1 | grep -q none.safetensors"
echo '{"num_hidden_layers": 1, "hidden_size": 6, "intermediate_size": 6, "num_attention_heads": 1, "vocab_size": 2, "rms_norm_eps": 0.1}' >"$tmp/config.json"
for scales in 0 5; do
    header='{"model.embed_tokens.weight":{"dtype":"I8","shape":[2,6],"data_offsets":[0,12]},"model.embed_tokens.weight_scale":{"dtype":"F16","shape":['$scales'],"data_offsets":[12,'$((12 + 2 * scales))']}}'
    { printf "\\x$(printf %x ${#header})\0\0\0\0\0\0\0%s" "$header" && head -c $((12 + 2 * scales)) /dev/zero; } >"$tmp/scales.safetensors"
    that "it refuses $scales scales of 12 numbers" bash -c "LD_LIBRARY_PATH='$p/lib' '$tmp/llama' '$tmp/config.json' '$tmp/scales.safetensors' -- 1 1 2>&1 | grep -q 'in blocks of'"
done
that 'an example that makes few bits of a checkpoint' "$cc" examples/quantise.c -I"$p/include" -L"$p/lib" -lepilog -o "$tmp/quantise"
that 'it says what it takes' bash -c "LD_LIBRARY_PATH='$p/lib' '$tmp/quantise' 5 32 a b 2>&1 | grep -q GROUP"
printf 'GGUF\003\000\000\000\377\377' >"$tmp/broken.gguf"
that 'a broken GGUF file is refused' bash -c "LD_LIBRARY_PATH='$p/lib' '$tmp/llama' '$tmp/broken.gguf' -- 1 1 2>&1 | grep -q 'no whole GGUF file'"
that 'an example that trains' "$cc" examples/train.c -I"$p/include" -L"$p/lib" -lepilog -lm -o "$tmp/train"
that 'in one go' train whole 6
that 'or with a stop' train halves 4
that 'and goes on' train halves 2
that 'to the same bits' cmp "$tmp/whole.st" "$tmp/halves.st"
refuses() { # refuses PATTERN ARGUMENTS...
    local pattern=$1
    shift
    ! LD_LIBRARY_PATH=$p/lib "$tmp/train" "$@" >"$tmp/said" 2>&1 && grep -q -e "$pattern" "$tmp/said" && ! grep -q 'loss' "$tmp/said"
}
that 'with two layers' sh -c "LD_LIBRARY_PATH='$p/lib' '$tmp/train' --state '$tmp/deep.st' README.md 1 2 16"
that 'which one layer does not go on from' refuses 'other LAYERS' --state "$tmp/deep.st" README.md 1 1 16
that 'nor three' refuses 'other LAYERS' --state "$tmp/deep.st" README.md 1 3 16
that 'a state that cannot be written is told first' refuses 'cannot be written' --state "$tmp/no/state" README.md 1 1 16
for with in --sample '--sample x' '--stat x'; do that "train $with" refuses 'see train --help' $with; done
that 'and writes' sh -c "LD_LIBRARY_PATH='$p/lib' '$tmp/train' --state '$tmp/whole.st' --sample 9 README.md 1 1 16 | tail -c 11 | grep -q ."
that 'the command finds its programs' sh -c "cd / && '$p/bin/epilog' run residual_rms --dims T=9,K=8,D=7"
that 'the manual page is there, and names every command' sh -c "'$p/bin/epilog' help | sed -n 's/^  \([a-z]*\)  *.*/\1/p' | while read -r c; do grep -q \"^.SS \\\"epilog \$c: \" '$p/share/man/man1/epilog.1' || exit 1; done"
echo '#include <epilog_io.h>
int main() { epi_error e; epi_context *c; epi_safetensors_close(nullptr); return epi_context_open(&c, &e); }' >"$tmp/plus.cc"
if command -v g++ >/dev/null; then
    that 'the headers are C++ as well' g++ -Wall -Wextra -Werror "$tmp/plus.cc" -I"$p/include" -L"$p/lib" -lepilog -o "$tmp/plus"
    echo '#include <epilog.h>
    int main() { epi_dim_binding d[1] = {{"T", 3}}; epi_options o = EPI_OPTIONS(.dims = d, .dim_count = 1, .threads = 2); return o.memory != 0; }' >"$tmp/options.cc"
    that 'and so is EPI_OPTIONS, without a warning' g++ -std=c++20 -Wall -Wextra -pedantic -Werror "$tmp/options.cc" -I"$p/include" -o "$tmp/options"
    that 'what it is not given is zero' "$tmp/options"
fi
if command -v pkg-config >/dev/null; then
    flags=$(PKG_CONFIG_PATH=$p/lib/pkgconfig pkg-config --cflags --libs epilog) # words quoted for a shell
    that 'pkg-config gives what a build needs' sh -c "$cc examples/linear.c $flags -o '$tmp/pc'"
    flags=$(PKG_CONFIG_PATH=$p/lib/pkgconfig pkg-config --static --cflags --libs epilog)
    if echo 'int main(void) { return 0; }' | "$cc" -static -x c - -o "$tmp/static" 2>/dev/null; then # there is a static libc
        that 'and a static one' sh -c "$cc -static examples/linear.c $flags -o '$tmp/static' && '$tmp/static'"
    fi
    needs=$(make -s -p -n BUILD="${1:-build}" 2>/dev/null | sed -n 's/^LIBS := //p')
    for l in $needs; do that "it names $l" sh -c "echo '$flags' | grep -q -- '$l'"; done
    that 'of libraries there are some' test -n "$needs"
fi
if command -v cmake >/dev/null; then
    cp examples/linear.c "$tmp/"
    use() { # use VERSION TARGET: a project that asks for them
        mkdir -p "$tmp/cm-$1-$2"
        printf 'cmake_minimum_required(VERSION 3.10)\nproject(t C)\nset(CMAKE_C_STANDARD 11)\nfind_package(epilog %s REQUIRED)\nadd_executable(t ../linear.c)\ntarget_link_libraries(t epilog::%s)\n' "$1" "$2" >"$tmp/cm-$1-$2/CMakeLists.txt"
        cmake -S "$tmp/cm-$1-$2" -B "$tmp/cm-$1-$2/b" "-DCMAKE_PREFIX_PATH=$p" && cmake --build "$tmp/cm-$1-$2/b" && "$tmp/cm-$1-$2/b/t"
    }
    refuses() { ! use "$@"; }
    version=$("$p/bin/epilog" --version | grep -o '[0-9.]*$' | head -n 1)
    that 'CMake finds the package' use '' epilog
    that 'of this version' use "$version" epilog
    that 'of this series' use "${version%.*}" static
    that 'but not of another' refuses "$((${version%%.*} + 1)).0" epilog
    that 'nor of a newer one' refuses "${version%.*}.999" epilog
    that 'the static target leaves nothing to load' sh -c "! readelf -d '$tmp/cm-${version%.*}-static/b/t' | grep -q libepilog"
fi
helps() { for t in run test test-gpu bench install uninstall clean help; do make -s help | grep -q "make $t " || return 1; done; }
that 'make help says what there is to make' helps
quiet=$(make --no-print-directory BUILD="$tmp/b" "$tmp/b/obj/src/base/hash.o")
that 'a build names what it makes, and no more' test "$quiet" = "  CC    $tmp/b/obj/src/base/hash.o"
rm -rf "$tmp/b"
that 'with V=1 the command is shown' sh -c "make BUILD='$tmp/b' V=1 '$tmp/b/obj/src/base/hash.o' | grep -q -- ' -c src/base/hash.c -o '"
for f in bash-completion/completions/epilog zsh/site-functions/_epilog fish/vendor_completions.d/epilog.fish vim/vimfiles/syntax/epilog.vim; do
    that "it brings share/$f" test -s "$p/share/$f"
done
that 'libraries go where LIBDIR says' make -s install BUILD="${1:-build}" PREFIX="$tmp/q" LIBDIR="$tmp/q/lib/here"
that 'and pkg-config says so' grep -q "^libdir=$tmp/q/lib/here$" "$tmp/q/lib/here/pkgconfig/epilog.pc"
that 'an example finds them there' sh -c "$cc examples/linear.c -I'$tmp/q/include' -L'$tmp/q/lib/here' -Wl,-rpath,'$tmp/q/lib/here' -lepilog -o '$tmp/there' && '$tmp/there'"
that 'and CMake the headers beside them' test -f "$tmp/q/lib/here/cmake/epilog/$(sed -n 's|.*CMAKE_CURRENT_LIST_DIR}/\(.*include\)".*|\1|p' "$tmp/q/lib/here/cmake/epilog/epilog-config.cmake")/epilog.h"
that 'make uninstall takes them away, too' make -s uninstall BUILD="${1:-build}" PREFIX="$tmp/q" LIBDIR="$tmp/q/lib/here"
that 'all of them' sh -c "[ -z \"\$(find '$tmp/q' -type f -o -type l)\" ]"
that 'make uninstall' make -s uninstall BUILD="${1:-build}" PREFIX="$p"
that 'it leaves no file behind' sh -c "[ -z \"\$(find '$p' -type f -o -type l)\" ]"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
