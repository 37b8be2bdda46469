#!/usr/bin/env bash
# test_run.sh RUNNER: what tests/run.c makes of jobs that pass, fail, crash and are skipped.
runner=$(realpath "$1")
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
mkdir tests
passed=0 failed=0

cat >tests/jobs.txt <<'end'
# name  check test full  asan: test full
good    1     1    1     -     1    echo '12 passed, 0 failed'
drawn   1/20  1/4  1     1/20  1    echo "draw $EPILOG_DRAW seed $EPILOG_SEED in $B"; echo '3 passed, 0 failed'
silent  1     1    1     -     -    :
bad     1     1    1     -     -    echo 'FAILED this'; echo '5 passed, 2 failed'; exit 1
crash   1     1    1     -     -    kill -SEGV $$
without 1     1    1     -     -    echo 'skipped: nothing to do'
mild    -     1    -     -     -    echo '1 passed, 1 failed'
fixed   =1/9  -    -     -     -    [ "$EPILOG_DRAW $EPILOG_SEED" = '1/9 1' ] && echo '1 passed, 0 failed' || echo '0 passed, 1 failed'
python  -     1    -     -     -    echo '207 passed, 2 skipped, 625 deselected in 1.5s'
end

# expect STATUS PATTERN ARGUMENT...: the runner's status, and what it prints, in one line.
expect() {
    local want=$1 pattern=$2 out status
    shift 2
    out=$("$runner" "$@" 2>&1)
    status=$?
    out=${out//$'\n'/\~}
    if [ $status -eq "$want" ] && grep -qE -e "$pattern" <<<"$out"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAILED run %s: status %d, expected %d and "%s"; it printed:\n%s\n' "$*" $status "$want" "$pattern" "${out//\~/$'\n'}"
    fi
}

expect 1 '22 passed, 3 failed, 1 skipped  \[check, seed 7' check --seed 7
expect 1 'FAILED bad: exit status 1~ +again: export B=build SEED=7; echo' check --seed 7
expect 1 'FAILED crash: signal 11' check
expect 1 '^check: 2 jobs.*5 passed, 3 failed' check --again
expect 0 '12 passed, 0 failed, 0 skipped' check good
expect 0 'good .*12 passed.*~slowest: good' check good
expect 1 "SEED=4 EPILOG_CASE='x.' *; echo" full asan/good drawn --case 'x*' --seed 4 bad
expect 0 '15 passed' full asan/
expect 0 '0 skipped  \[test' test drawn asan/drawn
expect 1 'FAILED mild: exit status 0' test mild
expect 0 '207 passed, 0 failed' test python
expect 0 'TAP version 13~1\.\.1~ok 1 - good~' check --tap good
expect 1 'not ok 1 - bad~# FAILED this~' check --tap bad
expect 1 'ok 1 - without # SKIP' check --tap without
expect 1 'FAILED' check --first
expect 0 '^good +1 .*echo .12 passed.*crash +1 ' check --list
expect 2 'no job goood in check; --list names them' check goood
expect 2 'no tier chek' chek
expect 2 '--seed wants a value' check --seed
expect 2 '--seed is a number; got x' check --seed x
expect 2 '--share is 1, or 1/N; got 2/3' check --share 2/3
expect 2 '--jobs is 1 or more' check --jobs 0
expect 2 'unknown option --fast' check --fast
expect 0 'usage: build/run' --help
expect 0 ' 3 passed' check drawn --seed 5
if grep -q '^draw 1/20 seed 5 in build$' build/log/check/drawn.log; then passed=$((passed + 1)); else
    failed=$((failed + 1))
    echo 'FAILED: a job does not learn its draw'
fi
echo 'bad line' >>tests/jobs.txt
expect 2 'tests/jobs.txt:[0-9]+: a name, five shares and a command are a job' check
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
