#!/bin/sh
# test_circles.sh: calls between the files of src/cuda go one way.
#
#     test_circles.sh FOLDER     where their object files are
#
# A file calls another where its object needs a symbol that the other's defines. Sorting the files so that callers come
# first fails where some of them call each other in a circle, and says which.
set -eu
folder=${1:-build/obj/src/cuda}
pairs=$(find src/cuda -name '*.c' | while read -r file; do
    name=$(basename "$file" .c) object=${file#src/cuda/}
    nm "$folder/${object%.c}.o" | awk -v file="$name.c" 'NF == 3 && $2 ~ /^[A-Z]$/ { print "has", file, $3 } $1 == "U" { print "needs", file, $2 }'
done | awk '
    $1 == "has" { home[$3] = $2 }
    $1 == "needs" { who[++count] = $2; what[count] = $3 }
    END { for (i = 1; i <= count; i++) if (what[i] in home && home[what[i]] != who[i]) print who[i], home[what[i]] }' | sort -u)
if ! printf '%s\n' "$pairs" | tsort >/dev/null; then
    echo 'files of src/cuda call each other in a circle'
    exit 1
fi
echo "$(printf '%s\n' "$pairs" | wc -l) calls from file to file, none of them in a circle"
