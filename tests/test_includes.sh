#!/bin/sh
# test_includes.sh: the arrows of the architecture, held by looking at every #include.
#   base sees nothing; ir sees base; pass and io see ir and base; lang, cpu and cuda also see pass;
#   run sees everything; nothing in src sees cli or tests. The command sits on the public interface: of src it
#   sees io and base alone.
# In pass stages see those before them: analyse, then derive and rewrite, then place, then schedule. What breaks that today is
# listed by file and header; the list may only become shorter.
# And every function that the walk in docs/design.md goes through stands in the file that it names.
cd "$(dirname "$0")/.." || exit 1
allowed() {
    case $1 in
    base) echo "base" ;;
    ir) echo "ir base" ;;
    lang) echo "lang pass ir base" ;;
    pass) echo "pass ir base" ;;
    io) echo "io base" ;;
    cpu) echo "cpu pass ir base" ;;
    cuda) echo "cuda pass ir base" ;;
    run) echo "run lang pass cpu cuda ir base" ;;
    cli) echo "cli io base" ;;
    esac
}
passed=0 failed=0
for folder in src/*/ cli/; do
    name=$(basename "$folder")
    may=$(allowed "$name")
    if [ -z "$may" ]; then
        echo "FAILED $folder has no place in the architecture"
        failed=$((failed + 1))
        continue
    fi
    for file in $(find "$folder" -type f); do
        [ -f "$file" ] || continue
        for seen in $(sed -n 's/^[[:space:]]*#include "\([^"]*\)".*/\1/p' "$file"); do
            case $seen in
            epilog.h | epilog_io.h) continue ;;
            */*) to=${seen%%/*} ;;
            *) to=$name ;;
            esac
            case " $may " in
            *" $to "*) passed=$((passed + 1)) ;;
            *)
                echo "FAILED $file includes $seen: $name may see $may"
                failed=$((failed + 1))
                ;;
            esac
        done
    done
done
against='derive/save.c place/extract.h
rewrite/once.h place/plan.h
rewrite/prepare.c place/extract.h
rewrite/prepare.h place/cut.h
rewrite/sums.c place/cut.h
rewrite/variance.c place/cut.h'
stages() {
    case $1 in
    analyse) echo "analyse" ;;
    derive | rewrite) echo "analyse derive rewrite" ;;
    place) echo "analyse derive rewrite place" ;;
    schedule) echo "analyse derive rewrite place schedule" ;;
    esac
}
found=$(for stage in analyse derive rewrite place schedule; do
    for file in src/pass/$stage/*; do
        sed -n 's/^#include "pass\/\([a-z]*\/[^"]*\)".*/\1/p' "$file" | while read -r seen; do
            case " $(stages $stage) " in
            *" ${seen%%/*} "*) ;;
            *) echo "${file#src/pass/} $seen" ;;
            esac
        done
    done
done | sort)
if [ "$found" = "$against" ]; then
    passed=$((passed + 1))
else
    echo "FAILED stages of src/pass that include later ones; the list in this test says
$against
and there are
$found"
    failed=$((failed + 1))
fi
# Places that ask a kernel or a launch for its kind, beside the tables by kind and where a plan is given its kind: the number may only fall.
most=59
asked=$(grep -rhE 'EPI_KIND_[A-Z]' src cli | grep -vcE 'EPI_KIND_COUNT|^ *\[EPI_KIND_|^ *EPI_KIND_[A-Z]+, |kind = EPI_KIND_[A-Z]+;')
if [ "$asked" -le $most ]; then
    passed=$((passed + 1))
else
    echo "FAILED $asked places ask which kind a kernel is; this test says $most, and that may only fall"
    failed=$((failed + 1))
fi
walk=$(sed -n '/^## How does a program/,/^## Which passes/p' docs/design.md | sed -n 's/^| [→ ]*\(`[^|]*`\) *| `\([^`]*\)` |.*/\2 \1/p' | tr -d '`,')
while read -r file functions; do
    for function in $functions; do
        if grep -q "^[a-z].*[ *]$function(" "src/$file"; then
            passed=$((passed + 1))
        else
            echo "FAILED docs/design.md walks through $function in $file, which is not there"
            failed=$((failed + 1))
        fi
    done
done <<end
$walk
end
# Whoever wants to know something of an operation asks for it by name (src/ir/ops.h): uses of its class may only become fewer.
classes=$(cat $(git ls-files src) | grep -o 'EPI_CLASS_[A-Z]*' | wc -l)
if [ "$classes" -le 170 ]; then
    passed=$((passed + 1))
else
    echo "FAILED src names classes of operations $classes times: a question of src/ir/ops.h is clearer"
    failed=$((failed + 1))
fi
# Structures of the library are read from what it says of them (epi_describe_abi), not copied.
for file in bench/*.py python/epilog/*.py; do
    if grep -n '_fields_ *=' "$file"; then
        echo "FAILED $file has a structure of its own"
        failed=$((failed + 1))
    else
        passed=$((passed + 1))
    fi
done
# Each file opens with its name and its idea, and files that comments name are there.
for file in $(find src cli -name '*.[ch]' -o -name '*.cuh'); do
    if head -n 1 "$file" | grep -q "^/[*/] ${file##*/}: "; then
        passed=$((passed + 1))
    else
        echo "FAILED $file does not open with a sentence about itself"
        failed=$((failed + 1))
    fi
done
for name in $(grep -rhoE '\b[a-z_0-9]+/[a-z_0-9/]+\.(c|h|cuh|def)\b' src cli | grep -vE '^(sys|sanitizer)/' | sort -u); do
    if [ -n "$(find . -path ./build -prune -o -path "*/$name" -print -quit)" ]; then
        passed=$((passed + 1))
    else
        echo "FAILED $name, which is not there, is named in $(grep -rlF "$name" src cli | head -n 1)"
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
