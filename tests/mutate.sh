#!/usr/bin/env bash
# mutate.sh FOLDER COUNT SEED: how many faults does a tier of the tests find?
#
# Each of COUNT faults, drawn by SEED from all places of src/pass, src/cpu and the device texts (tests/mutate.c), is built and
# tested by TIER (check, test) until the first job fails, the quickest jobs first. A fault that does not compile, or gives the same machine
# code, is drawn anew. With AGAIN=FILE the faults that an earlier run recorded come first, where their line still stands in src. One that no
# test finds and that changes neither a CUDA text nor a bit of a result (tests/fingerprint.c) is no fault. FOLDER gets a tree for each of
# JOBS, and `results`, a line for each fault. No fault is begun after SECONDS_MOST, 90 minutes.
set -u
folder=$1 count=$2 seed=$3
jobs=${JOBS:-$(nproc)} tier=${TIER:-test} again=${AGAIN:+$(realpath "$AGAIN")}
most=${SECONDS_MOST:-5400}
quiet="make -s OPT=-O2"
built=$([ "$tier" = check ] && echo build-tests || echo build-all)
top=$PWD
export CUDA_VISIBLE_DEVICES= # a GPU is left alone: the emulator has the device texts
sites="src/pass/*.[ch] src/pass/*/*.[ch] src/cpu/*.[ch] src/cpu/*/*.[ch] src/cuda/device/*.cuh"

say() { printf '%s\n' "$*"; }

# The first tree, in which every job was timed without a fault. One that fails on this machine finds nothing, and is left out.
prepare() {
    rm -rf "$folder"
    mkdir -p "$folder/0" || exit 1
    { git ls-files -co --exclude-standard 2>/dev/null || find . -type f -not -path './build/*'; } |
        tar cf - --files-from=- 2>/dev/null | tar xf - -C "$folder/0"
    cd "$folder/0" || exit 1
    say 'building, and the tests without a fault'
    $quiet -j"$jobs" $built build/fingerprint || exit 1
    build/run "$tier" --seed "$seed" >unfaulted.log
    build/run "$tier" --list | awk '{ print $1 }' | grep -vxFf build/log/"$tier".failed >all
    tail -n +2 build/log/"$tier".failed | sed 's/^/left out, since it fails without a fault: /'
    build/fingerprint programs tests 2>&1 | results_of >prints
    cksum <build/libepilog.a >code
    mkdir saved && cp --parents $sites saved/
    for ((w = 1; w < jobs; w++)); do cp -a . "../$w" & done
    wait
    cd "$top" || exit 1
}

# Which jobs could tell of a fault in this file? The CPU's code is in no CUDA text, and the device texts are in these alone.
concerned() {
    case $1 in
    src/cpu/*) grep -vxE 'cuda|names|emulate.*|jit' all ;;
    src/cuda/device/*) grep -xE 'cuda|names|emulate.*' all ;;
    *) cat all ;;
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

# Tests the fault that is in the tree; says which job found it, or that none did.
hold() {
    $quiet $built >/dev/null 2>&1 || { say 'found by the build'; return; }
    timeout 1800 build/run "$tier" --first --jobs 1 --seed "$2" $(concerned "$1") >hold.log 2>&1 && { is_same "$1" && say 'changes nothing' || say SURVIVED; return; }
    say "found by $(sed -n '2p' build/log/"$tier".failed)"
}

# The next number of a draw, or nothing when there are as many results as are wanted, or no more are recorded.
next_draw() {
    (
        flock 9
        draw=$(($(cat draws) + 1))
        [ $SECONDS -ge "$most" ] || { [ "$draw" -gt "$(wc -l <recorded)" ] && [ "$(grep -cv -e '^not' -e ' (recorded)$' results)" -ge "$count" ]; } ||
            { echo $draw | tee draws; }
    ) 9>lock
}

# Puts a recorded fault where its line stands, in its file or in another; prints what it did, or why not.
put() {
    local record=$1 file text old new
    record=${record% -- *}
    record=${record#* | } file=${record%%:*} text=${record#*: } text=${text#*: } old=${text%% => *} new=${text#* => }
    for f in "$file" $sites src/*/*.[ch]; do
        [ -f "$f" ] || continue
        OLD=$old NEW=$new awk 'BEGIN { old = ENVIRON["OLD"]; new = ENVIRON["NEW"] }
            { line = $0; sub(/^[ \t]+/, "", line); if (!done && line == old) { match($0, /^[ \t]*/); $0 = substr($0, 1, RLENGTH) new; done = 1 } print }
            END { exit !done }' "$f" >put.tmp && { cat put.tmp >"$f"; say "$f${record#"$file"}"; return; }
    done
    say "none: $record"
}

work() {
    local draw fault file verdict old recorded
    recorded=$(wc -l <"$folder/recorded")
    while draw=$(cd "$folder" && next_draw) && [ -n "$draw" ]; do
        cd "$folder/$1" || exit 1
        if [ "$draw" -le "$recorded" ]; then old=' (recorded)' fault=$(put "$(sed -n "${draw}p" ../recorded)"); else old= fault=$(../mutate "$seed" $((draw - recorded)) $sites); fi
        file=${fault%%:*}
        [ "$file" = none ] || touch "$file"
        if [ "$file" = none ]; then
            verdict='not in src any more'
        elif ! $quiet build/libepilog.a >/dev/null 2>&1; then
            verdict='not compiled'
        elif [ "$(cksum <build/libepilog.a)" = "$(cat code)" ]; then
            verdict='not in the code'
        else
            verdict=$(hold "$file" "$draw")
        fi
        [ "$file" = none ] || { cp saved/"$file" "$file" 2>/dev/null || cp "$top/$file" "$file"; } # it is newer than what was made of it, and so built again
        printf '%s | %s%s\n' "$verdict" "$fault" "$old" >>"$folder/results"
        case $verdict in not*) ;; *) say "$verdict | $fault" ;; esac
        cd "$top" || exit 1
    done
}

prepare
folder=$(cd "$folder" && pwd)
cc -std=c17 -O1 -D_GNU_SOURCE tests/mutate.c -o "$folder/mutate" || exit 1
: >"$folder/results"
echo 0 >"$folder/draws"
if [ -n "$again" ]; then grep -E '^(found|SURVIVED)' "$again" | sed 's/ (recorded)$//'; fi >"$folder/recorded"
for ((w = 0; w < jobs; w++)); do work "$w" & done
wait
found=$(grep -c '^found' "$folder/results") left=$(grep -c '^SURVIVED' "$folder/results") same=$(grep -c '^changes' "$folder/results")
say "$found of $((found + left)) faults found by $tier; $same more change no result; $folder/results has all of them"
[ $((found * 100)) -ge $(((found + left) * 95)) ]
