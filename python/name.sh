#!/usr/bin/env bash
# name.sh [NAME]: is the name of the distribution free on PyPI? By hand, before the first release: it needs the network.
cd "$(dirname "$0")" || exit 1
name=${1:-$(sed -n 's/^name = "\(.*\)"/\1/p' pyproject.toml)}
python=${PYTHON:-python3}
known() { "$python" -m pip index versions "$1" 2>/dev/null | head -n 1 | grep .; }
if ! known setuptools >/dev/null; then
    echo "the index does not answer: it has no setuptools, either"
    exit 2
fi
if taken=$(known "$name"); then
    echo "$name is taken: $taken"
    exit 1
fi
echo "$name is free"
