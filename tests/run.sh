#!/usr/bin/env bash
# run.sh FOLDER <LIST: runs the commands of a list, as many at once as there are processors (or JOBS says), and prints
# what each said last, in the list's order, and how many seconds of a processor it took.
#
# A line of the list is a name and a command; one that begins with # is a heading. FOLDER gets a log of each command.
# All of them run, whatever fails; of one that fails the end of its log is shown. The last line is what passed and
# failed in all of them together. A command that counts nothing counts as one.
set -u
folder=$1
jobs=${JOBS:-$(nproc)}
rm -rf "$folder"
mkdir -p "$folder" || exit 1
mapfile -t lines
count=${#lines[@]} next=0 shown=0 running=0 passed=0 failed=0 spent=0

start() {
    local log=$folder/$1 name command
    read -r name command <<<"${lines[$1]}"
    if [ "$name" = '#' ]; then
        echo 0 >"$log.rc"
        return
    fi
    running=$((running + 1))
    (
        bash -c "$command" >"$log.log" 2>&1 </dev/null &
        child=$!
        trap 'kill $child' TERM
        wait $child
        rc=$?
        times >"$log.times" # of what it started: minutes and seconds, of the user and of the system
        echo $rc "$(awk 'NR == 2 { gsub("[ms]", " "); print int(($1 + $3)*60 + $2 + $4 + 0.5) }' "$log.times")" >"$log.rc"
    ) &
}

show() {
    local log=$folder/$1 name command rc seconds p=1 f=0 line=
    read -r name command <<<"${lines[$1]}"
    if [ "$name" = '#' ]; then
        echo "$command"
        return
    fi
    read -r rc seconds <"$log.rc"
    line=$(grep -aE '^[0-9]+ passed, [0-9]+ failed' "$log.log" | tail -n 1)
    [ -z "$line" ] || read -r p _ f _ <<<"$line"
    if [ "$rc" != 0 ]; then # a crash counts nothing
        [ "$f" != 0 ] || f=1
        [ -n "$line" ] || p=0
        tail -n 40 "$log.log"
        echo "FAILED $command (exit status $rc; $log.log has all it said)"
    fi
    passed=$((passed + p)) failed=$((failed + f)) spent=$((spent + seconds))
    [ "$seconds" -ge 5 ] && seconds="  [$seconds s]" || seconds=
    printf '%-12s %s%s\n' "$name" "$(tail -n 1 "$log.log")" "$seconds"
}

trap 'kill $(jobs -p) 2>/dev/null; exit 1' INT TERM
while [ $shown -lt $count ]; do
    while [ $next -lt $count ] && [ $running -lt "$jobs" ]; do
        start $next
        next=$((next + 1))
    done
    while [ $shown -lt $count ] && [ -s "$folder/$shown.rc" ]; do
        show $shown
        shown=$((shown + 1))
    done
    if [ $running -gt 0 ] && { [ $next -eq $count ] || [ $running -ge "$jobs" ]; }; then
        wait -n
        running=$((running - 1))
    fi
done
echo
echo "$passed passed, $failed failed  [$spent s of a processor]"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
