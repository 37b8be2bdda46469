#!/bin/bash
# test_abi.sh BUILD [--update]: holds what a program relies on that was linked with this version of the library against tests/abi.txt:
# exported functions, sizes of structs, offsets of fields, values of constants. Any difference fails, so that each is meant.
#
#     --update   adds what is new to the file. It refuses what breaks a program; that needs another SOVERSION (Makefile).
cd "$(dirname "$0")/.." || exit 1
build=${1:-build} record=tests/abi.txt
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

# What the library and its headers say now, a line each: kind, name, and the rest.
#   fixed   a struct that callers hand over without its size; it may never change
#   grows   a struct that comes with its size: it has the size in it, or a `_sized` function takes it
#   count   the number of some constants, which rises with them
structs=$(sed -n 's/^} \(epi_[a-z_]*\);$/\1/p' include/*.h)
enums=$(sed -n 's/^typedef enum \([a-z_]*\) .*/\1/p' include/*.h)
growing=$(grep -h -A2 '_sized(const' include/*.h | grep -o 'epi_[a-z_]* \*out' | cut -d' ' -f1 && sed -n '/^typedef struct/{N;s/^typedef struct \(epi_[a-z_]*\) {\n *size_t size;.*/\1/p}' include/*.h)
constants=$(sed -n '/^typedef enum\|^enum {/,/}/p' include/*.h | sed 's|/\*.*||' | grep -oE '\bEPI_[A-Z0-9_]+')
{
    printf '#include <epilog_io.h>\n#include <stdio.h>\nint main(void) {\n'
    for s in $structs; do
        grep -qx "$s" <<<"$enums" && continue
        kind=fixed
        grep -qx "$s" <<<"$growing" && kind=grows
        echo "    printf(\"$kind $s %zu\\n\", sizeof($s));"
    done
    for v in $constants; do
        kind=value
        [[ $v == *_COUNT ]] && kind=count
        echo "    printf(\"$kind $v %d\\n\", (int)$v);"
    done
    printf '    static char abi[1 << 16];\n    epi_describe_abi(abi, sizeof abi);\n    fputs(abi, stderr);\n    return 0;\n}\n'
} >"$tmp/abi.c"
${CC:-cc} -std=c17 -Iinclude "$tmp/abi.c" "$build/libepilog.so" -Wl,-rpath,"$(realpath "$build")" -o "$tmp/abi" || exit 1
{
    echo "soname $(readelf -d "$build/libepilog.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')"
    nm -D --defined-only "$build/libepilog.so" | awk '{ print "function", $3 }' | sort
    "$tmp/abi" 2>"$tmp/json"
    sed 's/{"name"/\n&/g' "$tmp/json" | awk -F'[":,{}]+' '/^"epi_/ { s = $2 } /^\{"name"/ { print "field", s "." $3, $5, $7, $9 }'
} >"$tmp/now"

# compare RECORD NOW: says what breaks a program, then what is new.
compare() {
    awk '
        /^#/ || !NF { next }
        { name = $1 " " $2; rest = $0; sub(/^[^ ]+ [^ ]+ ?/, "", rest) }
        FNR == NR { was[name] = rest; next }
        { is[name] = rest }
        !(name in was) { new = new "new: " $0 "\n"; next }
        rest != was[name] && ($1 == "grows" || $1 == "count") && rest + 0 > was[name] + 0 { new = new "grown: " $0 ", before " was[name] "\n"; next }
        rest != was[name] { print "breaks: " name " was " was[name] " and is " rest }
        END {
            for (name in was) if (!(name in is)) print "breaks: " name " is gone"
            printf "%s", new
        }' "$1" "$2"
}
said=$(compare "$record" "$tmp/now")
if [ "${2:-}" = --update ]; then
    if grep '^breaks' <<<"$said" && grep -qx "$(head -n 1 "$tmp/now")" "$record"; then
        echo 'programs that were linked with the last version no longer run: keep what was there, or raise SOVERSION in the Makefile, and say so in CHANGELOG.md'
        exit 1
    fi
    { sed -n '/^#/p' "$record" && cat "$tmp/now"; } >"$tmp/record" && cp "$tmp/record" "$record"
    exit
fi

passed=0 failed=0
that() { # what, a command
    if "${@:2}"; then passed=$((passed + 1)); else failed=$((failed + 1)) && echo "FAILED $1"; fi
}
lines=$(grep -c '^[a-z]' "$tmp/now")
if [ -n "$said" ]; then
    failed=$(wc -l <<<"$said")
    sed 's/^/FAILED /' <<<"$said"
    echo "what breaks a program has to stay; bash tests/test_abi.sh $build --update writes what is new into $record"
fi
passed=$((passed + lines - failed))

# It finds what it looks for.
finds() { # words, a change of what is there now
    sed "$2" "$tmp/now" >"$tmp/other" && compare "$tmp/now" "$tmp/other" | grep -q "$1"
}
that 'a function that is gone is found' finds '^breaks: function epi_kernel_call is gone' '/^function epi_kernel_call$/d'
that 'a new one too' finds '^new: function epi_new' '$a function epi_new'
that 'a field that moved' finds '^breaks: field epi_options.type was enum 20 4 and is enum 24 4' 's/^\(field epi_options.type enum\) 20 /\1 24 /'
that 'a struct that shrank' finds '^breaks: grows epi_options ' 's/^grows epi_options .*/grows epi_options 8/'
that 'one that grew, and may' finds '^grown: grows epi_options 9999' 's/^grows epi_options .*/grows epi_options 9999/'
that 'one that may not' finds '^breaks: fixed epi_tensor was 16 and is 24' 's/^fixed epi_tensor .*/fixed epi_tensor 24/'
that 'a constant with another value' finds '^breaks: value EPI_BF16 was 1 and is 2' 's/^value EPI_BF16 1/value EPI_BF16 2/'
that 'and one more of them' finds '^grown: count EPI_DTYPE_COUNT' 's/^count EPI_DTYPE_COUNT .*/count EPI_DTYPE_COUNT 99/'
for kind in function fixed grows value count field soname; do that "there is a $kind" grep -q "^$kind " "$record"; done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
