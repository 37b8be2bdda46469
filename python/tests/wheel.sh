#!/usr/bin/env bash
# wheel.sh BUILD: the wheel in BUILD/wheel, installed in an environment of its own and used from outside the tree, as someone without a
# compiler, CUDA or this repository would. PyTorch is that of BUILD/venv. QUICK=1 leaves out what takes minutes.
set -u
cd "$(dirname "$0")/../.." || exit 1
root=$PWD build=$(realpath "$1")
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
passed=0 failed=0
that() { # what, a command
    local what=$1
    shift
    if "$@" >"$tmp/log" 2>&1; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED $what"; tail -20 "$tmp/log"; fi
}
says() { # words, a command that fails
    local words=$1
    shift
    ! "$@" >"$tmp/words" 2>&1 && grep -q -e "$words" "$tmp/words" || { cat "$tmp/words" && false; }
}
version=$(awk '/define EPI_VERSION_/ { printf "%s%s", dot, $3; dot = "." }' include/epilog.h)
wheel=$build/wheel/epilog_kernels-$version-py3-none-manylinux_2_28_$(uname -m).whl
that "the wheel is for every glibc from 2.28 on: $(ls "$build"/wheel/*.whl)" test -e "$wheel"

# An environment with this wheel, and with the packages of BUILD/venv but for those of epilog and those that build.
"$build/venv/bin/python" -m venv --without-pip "$tmp/venv" || exit 1
site=$("$tmp/venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
torch=$("$build/venv/bin/python" -c 'import importlib.util as u; print(u.find_spec("torch").origin)')
for path in "${torch%/*/*}"/*; do
    case ${path##*/} in epilog* | pip* | setuptools* | _distutils* | distutils* | __pycache__) ;; *) ln -s "$path" "$site/" ;; esac
done
that 'it installs' "$build/venv/bin/python" -m pip --python "$tmp/venv/bin/python" install -q --no-deps --no-index "$wheel"

# Nothing of this shell's environment, no compiler on the path, and no NVRTC.
cd "$tmp" || exit 1
clean() { env -i PATH="$tmp/venv/bin" HOME="$tmp" EPILOG_CACHE=off EPILOG_NVRTC=/none "$@"; }
clean "$tmp/venv/bin/python" -I "$root/python/tests/installed.py" "$version" "$root/README.md" "$root/python/README.md" >"$tmp/said" 2>&1 ||
    { failed=$((failed + 1)) && echo "FAILED in the clean environment:" && tail -40 "$tmp/said"; }
passed=$((passed + $(sed -n 's/ passed$//p' "$tmp/said" | tail -n 1)))

# The README's other two ways in: the command, and a program in C with a compiler of this machine.
three() { env -i PATH="$tmp/venv/bin:$PATH" HOME="$tmp" EPILOG_CACHE=off "$@"; }
that "the command is make's" diff <(three epilog --version) <(EPILOG_CACHE=off "$build/epilog" --version)
awk '/^```sh$/ { on = 1; block = ""; next } /^```$/ { if (on && block ~ /epilog run/) printf "%s", block; on = 0 } on { block = block $0 "\n" }' "$root/README.md" |
    sed 's|build/epilog|epilog|' >"$tmp/formula.sh"
that "the README's formula is there" grep -q '^epilog run ' "$tmp/formula.sh"
that 'and runs' three bash -eu "$tmp/formula.sh"
if command -v "${CC:-cc}" >/dev/null; then
    that 'a program in C is compiled with it' three bash -c "${CC:-cc} '$root/examples/linear.c' \$(python -m epilog_kernels --cflags --libs) -o '$tmp/linear'"
    that 'and runs' three "$tmp/linear"
fi
that 'other flags are refused' says 'usage: python -m epilog_kernels' three python -m epilog_kernels --ldflags

# What stands in the package's place is named; these need no PyTorch.
python=$tmp/venv/bin/python
mkdir "$tmp/own" "$tmp/emptied" && touch "$tmp/own/epilog.py"
that "another epilog.py is named" says "import epilog finds $tmp/own/epilog.py, which is not the one of epilog-kernels" \
    clean PYTHONPATH="$tmp/own" "$python" -m epilog_kernels
cp -r "$site/epilog" "$site/epilog_kernels.py" "$tmp/emptied/" && rm "$tmp/emptied/epilog/__init__.py" "$site/epilog/__init__.py"
that "so is a folder that lost its __init__.py" says "another distribution wrote over .*/epilog, or took files out of it: run pip uninstall epilog" \
    clean "$python" -m epilog_kernels
echo 'class EpiLog: pass' >"$site/epilog/__init__.py"
that "and one that has the __init__.py of another" says "another distribution wrote over" clean "$python" -m epilog_kernels

# A library of the system that is in the process already does not take the place of the wheel's, nor of a function in it.
echo 'const char *epi_version(void) { return "9.9.9"; }' >"$tmp/system.c"
if (unset LD_PRELOAD && ${CC:-cc} -shared -fPIC -Wl,-soname,libepilog.so.0 -o "$tmp/libepilog.so.0" "$tmp/system.c"); then
    cat >"$tmp/both.py" <<'end'
import ctypes, sys
system = ctypes.CDLL("libepilog.so.0", ctypes.RTLD_GLOBAL)
system.epi_version.restype = ctypes.c_char_p
assert system.epi_version() == b"9.9.9"
own, text = ctypes.CDLL(sys.argv[1]), ctypes.create_string_buffer(1 << 20)
own.epi_describe_abi(text, ctypes.c_size_t(len(text)))
assert text.value.startswith(b'{"version":"%s"' % sys.argv[2].encode()), text.value[:40]
end
    that 'beside a library of the system it takes its own' clean LD_LIBRARY_PATH="$tmp" LD_PRELOAD="$tmp/libepilog.so.0" \
        "$python" "$tmp/both.py" "$site/epilog/libepilog.so" "$version"
fi

# Where it cannot be built, one sentence says what to do.
setup() { # a platform, the rest of the environment
    env -u CC "${@:2}" "$build/venv/bin/python" -c "import sys, runpy, setuptools.command.bdist_wheel
if '$1' == 'linux32': sys.maxsize = 2**31 - 1
else: sys.platform = '$1'
sys.argv[:] = ['$root/python/setup.py', '--version']
runpy.run_path(sys.argv[0], run_name='__main__')"
}
that 'on a Mac it says where it runs' says 'epilog-kernels cannot be built here: it runs on Linux, .* use a Linux machine, a container, or WSL 2' setup darwin
that 'with 32 bits what it needs' says 'it needs a 64-bit Python' setup linux32
that 'without make what to install' says 'GNU make is missing; install it' setup linux PATH="$tmp/venv/bin"
that 'without a compiler, too' says "there is no C compiler 'none'" setup linux CC=none
mkdir "$tmp/alone" && cp "$root"/python/setup.py "$tmp/alone/"
that 'without the sources, too' says 'run pip install ./python in a whole clone' "$build/venv/bin/python" "$tmp/alone/setup.py" --version

# The bits are those of make's library: of libc's functions, and of programs.
if [ -z "${QUICK:-}" ]; then
    that 'old and new functions of libm give the same bits' "$build/wheel/bits"
    cd "$root" || exit 1
    that "the command does what make's does" three bash tests/test_cli.sh "$tmp/venv/bin/epilog"
    "$build/fingerprint" --every 10 programs tests >"$tmp/make.prints"
    "$build/wheel/fingerprint" --every 10 programs tests >"$tmp/wheel.prints"
    that 'programs have the same plans and bits' cmp "$tmp/make.prints" "$tmp/wheel.prints"
    that 'some of them' test "$(wc -l <"$tmp/make.prints")" -gt 30
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
