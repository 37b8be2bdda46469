#!/usr/bin/env bash
# same_plans.sh OLD [NEW]: do two commits make the same of every program?
#
# Builds both (NEW is the working tree where it is not given) and compares their fingerprints (tests/fingerprint.c): plans, CUDA texts and
# results of all programs, models, cookbook blocks, their gradients and RANDOM_COUNT (1000) random programs; EVERY=8 takes every eighth of
# them, for a quick look. Prints what differs, and exits with 1 if anything does. Both are given the programs and the tests of NEW: what is
# compared is src/ alone. The fingerprint of a commit is kept for the next time, by what it was made from, for all clones of a user.
set -u
random=${RANDOM_COUNT:-1000} every=${EVERY:-1}
old=${1:?a commit to compare with} new=${2:-}
folder=${BUILD:-build}/same_plans
mkdir -p "$folder" && folder=$(cd "$folder" && pwd) || exit 2

# A commit's tree, with its build kept for the next time; the working tree is where it is.
tree_of() {
    [ -n "$1" ] || { pwd && return; }
    local tree=$folder/$(git rev-parse --short "$1^{commit}") || exit 2
    [ -d "$tree" ] || { mkdir "$tree" && git archive "$1" | tar xf - -C "$tree"; } || exit 2
    (cd "$tree" && pwd)
}

# Of a commit with these programs and tests: made once.
kept=${XDG_CACHE_HOME:-$HOME/.cache}/epilog/fingerprints
print_kept() {
    local from
    from=$(cd "$new_tree" && cat programs/*.epi tests/*.epi docs/cookbook.md tests/*.h tests/fingerprint.c | sha256sum | cut -c1-16) || exit 2
    local file=$kept/$(git rev-parse "$1^{commit}")-$from-$random-$every
    if [ ! -s "$file" ]; then
        print_one "$2" "$3" && mkdir -p "$kept" && cp "$3" "$file.$$" && mv "$file.$$" "$file"
    fi && cp "$file" "$3"
}

# The fingerprint of NEW's tests is built with a tree's library, and given NEW's programs.
print_one() {
    make -s -j2 -C "$1" build/libepilog.a || exit 2
    (cd "$new_tree" && cc -std=c17 -O1 -D_GNU_SOURCE -w -I"$1/include" -I"$1/src" -Itests tests/fingerprint.c "$1/build/libepilog.a" \
        -lm -ldl -lpthread -o "$2.bin" && "$2.bin" --every "$every" programs tests docs/cookbook.md --random "$random" >"$2")
}

new_tree=$(tree_of "$new") || exit 2
old_tree=$(tree_of "$old") || exit 2
print_kept "$old" "$old_tree" "$folder/old" & first=$!
print_one "$new_tree" "$folder/new" || exit 2
wait $first || exit 2
count=$(wc -l <"$folder/new")
if diff "$folder/old" "$folder/new" >"$folder/diff"; then
    echo "same_plans: $count programs, their plans, CUDA texts and results are the same"
else
    head -n "${LINES_MOST:-20}" "$folder/diff"
    echo "same_plans: $(grep -c '^>' "$folder/diff") of $count programs differ; $folder/diff has all of them"
    exit 1
fi
