#!/usr/bin/env bash
# test_pages.sh PAGE...: runs the sh blocks of a page in their order, as a reader would; those marked gpu only where there
# is one, those marked slow not at all. A `c body` block must compile as the body of a function (tests/body.h).
#
# A block that fails is shown with what it said. Nothing is compared with what the page says around it. Then the links of all
# pages lead somewhere, and the files and functions exist that the pages about the sources name.
set -u
passed=0 failed=0
before=$(git status --porcelain 2>/dev/null)
that() { # what, a command
    if "${@:2}"; then passed=$((passed + 1)); else
        failed=$((failed + 1))
        echo "${about:-$page}: not so: $1"
    fi
}
gpu=0
build/epilog devices | grep -q '^gpu[0-9]' && gpu=1
for page in "$@"; do
    folder=$(mktemp -d) count=0 open=
    while IFS= read -r line; do
        case $line in
        '```'*)
            if [ -n "$open" ]; then
                open=
            else
                count=$((count + 1))
                open=$folder/$(printf %03d $count).${line#'```'}
                open=${open// /.}
                : >"$open"
            fi
            ;;
        *) [ -z "$open" ] || printf '%s\n' "$line" >>"$open" ;;
        esac
    done <"$page"
    for block in "$folder"/*.sh "$folder"/*.sh.gpu; do
        [ -e "$block" ] || continue
        case $block in *.gpu) [ $gpu = 1 ] || continue ;; esac
        if bash -eu "$block" >"$block.log" 2>&1; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
            echo "$page: this block fails:"
            cat "$block" "$block.log"
        fi
    done
    for block in "$folder"/*.c.body; do
        [ -e "$block" ] || continue
        { echo '#include "body.h"' && cat "$block" && echo '}'; } >"$block.c"
        that "its C block compiles" ${CC:-cc} -std=c17 -Wall -Wextra -Werror -Wno-unused -Iinclude -Itests -fsyntax-only "$block.c"
    done
    rm -rf "$folder"
done
rm -rf /tmp/epilog-tutorial
page=README.md

# What the front page promises itself: 120 lines at most, of 100 characters but in tables, and all of the environment that a reader can set.
that 'its examples leave nothing in the tree' test "$(git status --porcelain 2>/dev/null)" = "$before"
that 'it says how long the tests take' grep -q '`make test`.*ten minutes' README.md
that 'it says which platforms there are' grep -q '^CPUs: .*GPUs: ' README.md
that 'its licence is there' grep -q 'Apache License' LICENSE
version=$(build/epilog --version | sed -n '1s/^epilog //p')
that "CITATION.cff is of version $version" grep -qx "version: $version" CITATION.cff
that "CHANGELOG.md begins with $version" grep -qm 1 "^## $version\( - [0-9-]*\)\?$" <(grep -m 1 '^## ' CHANGELOG.md)
that 'it has at most 120 lines' test "$(wc -l <README.md)" -le 120
that 'no line of it is too long' test -z "$(awk 'length > 100 && !/[|]/' README.md)"
for variable in $(grep -rhoE 'getenv\("[A-Z_]+"\)' src cli | sed 's/.*"\(.*\)".*/\1/' | sort -u); do
    case $variable in HOME | TERM) continue ;; esac
    that "it names $variable" grep -q "$variable" README.md
done

# Links: the file is there, and the heading, as GitHub writes it in an address.
has_heading() { # file, anchor
    sed -n 's/^##* //p' "$1" | tr A-Z a-z | sed 's/[^a-z0-9 _-]//g; s/ /-/g' | grep -qx -- "$2"
}
for about in *.md docs/*.md bench/notes/*.md; do
    for link in $(grep -oE '\]\([^) ]+\)' "$about" | sed 's/^](//; s/)$//' | grep -vE '^https?:' | sort -u); do
        file=${link%%#*}
        file=${file:+$(dirname "$about")/$file}
        that "the link $link leads to a file" test -e "${file:-$about}"
        case $link in *.md#* | '#'*) that "the link $link leads to a heading" has_heading "${file:-$about}" "${link#*#}" ;; esac
    done
done

# The pages about the sources: files by the end of their path, functions by their name.
for about in docs/design.md docs/plans.md docs/backends.md docs/numbers.md docs/hacking.md; do
    for name in $(grep -oE '`[a-z0-9_*/.-]+\.(c|h|cuh|def|sh|epi|txt|py)`' "$about" | tr -d '`' | sort -u); do
        that "there is $name" test -n "$(find . -path ./build -prune -o -path "*/$name" -print -quit)"
    done
    for name in $(grep -oE '`epi_[a-z0-9_]+`' "$about" | tr -d '`' | sort -u); do
        that "there is $name" grep -rqw "$name" src include
    done
done
for about in docs/design.md docs/plans.md; do
    while read -r name _ file; do # "`epi_cut_cost` in `pass/analyse/cost.c`"
        that "$name is in $file" grep -qw "$name" "src/$file"
    done < <(grep -oE '`[A-Za-z_0-9]+` in `[a-z_/0-9]+\.[ch]`' "$about" | tr -d '`' | sort -u)
done
about=docs/design.md
that 'it has at most 200 lines' test "$(wc -l <docs/design.md)" -le 200
about=docs/language.md
that 'it has at most 13500 words' test "$(wc -w <docs/language.md)" -le 13500

echo "$passed passed, $failed failed"
[ $failed = 0 ]
