#!/usr/bin/env bash
# mutate.sh FOLDER COUNT SEED: how many faults does the suite find?
#
# Each of COUNT faults, drawn by SEED from all places of src/pass, src/cpu and the device texts (tests/mutate.c), is built and
# tested until the first test fails, the quickest tests first. A fault that does not compile, or gives the same machine code, is drawn anew.
# One that no test finds and that changes neither a CUDA text nor a bit of a result (tests/fingerprint.c) is no fault. FOLDER gets
# a tree for each processor, and `results`, a line for each fault. No fault is drawn after SECONDS_MOST, 90 minutes; TIMES is a file that an
# earlier run left as FOLDER/0/times: then the suite is not run without a fault first.
set -u
folder=$1 count=$2 seed=$3
jobs=${JOBS:-$(nproc)}
most=${SECONDS_MOST:-5400}
quiet="make -s OPT=-O2"
top=$PWD
export CUDA_VISIBLE_DEVICES= # a GPU is left alone: the emulator has the device texts
sites="src/pass/*.[ch] src/pass/*/*.[ch] src/cpu/*.[ch] src/cuda/device/*.cuh"

say() { printf '%s\n' "$*"; }

# Runs a line of the list, and prints how long it took and the line.
time_one() {
    local name command start=$SECONDS
    read -r name command <<<"$1"
    bash -c "$command" >"failed.$name" 2>&1 </dev/null || { echo "left out, since it fails without a fault: $name" >&2; return; }
    rm "failed.$name"
    echo "$((SECONDS - start)) $1"
}

# What a line of the list needs built.
needs() { tr ' ' '\n' <<<"$1" | grep -E '^build/(test/|example/|epilog$|libepilog)' | sort -u; }

# The first tree, with the suite as it is, which tells how long each test takes. A test that fails on this machine finds nothing.
prepare() {
    rm -rf "$folder"
    mkdir -p "$folder/0" || exit 1
    { git ls-files -co --exclude-standard 2>/dev/null || find . -type f -not -path './build/*'; } |
        tar cf - --files-from=- 2>/dev/null | tar xf - -C "$folder/0"
    cd "$folder/0" || exit 1
    say 'building, and the suite without a fault'
    $quiet -j"$jobs" tests build/fingerprint || exit 1
    $quiet list >list
    if [ -n "${TIMES:-}" ]; then
        cp "$TIMES" times || exit 1
    else
        time_all
    fi
    build/fingerprint programs tests 2>&1 | results_of >prints
    cksum <build/libepilog.a >code
    mkdir saved && cp --parents $sites saved/
    for ((w = 1; w < jobs; w++)); do cp -a . "../$w" & done
    wait
    cd "$top" || exit 1
}

# How long each test takes without a fault, the quickest first.
time_all() {
    export -f time_one
    tr '\n' '\0' <list | xargs -0 -P "$jobs" -I{} bash -c 'time_one "$1"' time_one {} >unsorted
    sort -n unsorted >times
}

# Of a fault in this file, which tests could tell? The CPU's code is in no CUDA text, and the device texts are in these alone.
concerns() {
    case $1:$2 in
    src/cpu/*:cuda | src/cpu/*:names | src/cpu/*:emulate | src/cpu/*:jit) return 1 ;;
    src/cuda/device/*:cuda | src/cuda/device/*:names | src/cuda/device/*:emulate) return 0 ;;
    src/cuda/device/*) return 1 ;;
    esac
}

# The hashes of texts and results without those of plans.
results_of() { sed -E 's/ ([a-z]*[0-9_]+) [0-9a-f]{8} ([0-9a-f]{8})/ \1 \2/g' "$@"; }

# Does the library do with every program what it did without the fault? Of a device text, which not all programs' texts have, that says
# nothing.
is_same() {
    case $1 in src/cuda/device/*) return 1 ;; esac
    $quiet build/fingerprint >/dev/null 2>&1 && timeout 300 build/fingerprint programs tests 2>&1 | results_of | cmp -s - prints
}

# Tests the fault that is in the tree; says which test found it, or that none did. Before the tests that take over a minute
# the fingerprint is looked at.
hold() {
    local file=$1 took name command looked=
    while read -r took name command; do
        concerns "$file" "$name" || continue
        if [ "$took" -gt 60 ] && [ -z "$looked" ]; then
            looked=1
            is_same "$file" && { say 'changes nothing'; return; }
        fi
        $quiet $(needs "$command") >/dev/null 2>&1 || { say "found building $name"; return; }
        timeout $((30 + 4 * took)) bash -c "$command" >"log.$name" 2>&1 </dev/null || { say "found by $name"; return; }
    done <times
    is_same "$file" && say 'changes nothing' || say SURVIVED
}

# The next number of a draw, or nothing when there are as many results as are wanted.
next_draw() {
    (
        flock 9
        draw=$(($(cat draws) + 1))
        [ "$(grep -cv -e '^not' results)" -ge "$count" ] || [ $SECONDS -ge "$most" ] || { echo $draw | tee draws; }
    ) 9>lock
}

work() {
    local draw fault file verdict
    while draw=$(cd "$folder" && next_draw) && [ -n "$draw" ]; do
        cd "$folder/$1" || exit 1
        fault=$(../mutate "$seed" "$draw" $sites)
        file=${fault%%:*}
        touch "$file"
        if ! $quiet build/libepilog.a >/dev/null 2>&1; then
            verdict='not compiled'
        elif [ "$(cksum <build/libepilog.a)" = "$(cat code)" ]; then
            verdict='not in the code'
        else
            verdict=$(hold "$file")
        fi
        cp saved/"$file" "$file" # it is newer than what was made of it, and so built again
        printf '%s | %s\n' "$verdict" "$fault" >>"$folder/results"
        case $verdict in not*) ;; *) say "$verdict | $fault" ;; esac
        cd "$top" || exit 1
    done
}

prepare
folder=$(cd "$folder" && pwd)
cc -std=c17 -O1 -D_GNU_SOURCE tests/mutate.c -o "$folder/mutate" || exit 1
: >"$folder/results"
echo 0 >"$folder/draws"
for ((w = 0; w < jobs; w++)); do work "$w" & done
wait
found=$(grep -c '^found' "$folder/results") left=$(grep -c '^SURVIVED' "$folder/results") same=$(grep -c '^changes' "$folder/results")
say "$found of $((found + left)) faults found; $same more change no result; $folder/results has all of them"
[ $((found * 100)) -ge $(((found + left) * 95)) ]
