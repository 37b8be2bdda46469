#!/bin/bash
# test_cli.sh COMMAND: the command as people use it, good input and bad. Bad input gets a clear message,
# status 1 (failed) or 2 (wrong usage), and leaves nothing behind.
epilog=$(realpath "$1")
here=$(cd "$(dirname "$0")/.." && pwd)
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
passed=0 failed=0

# Under AddressSanitizer every run ends with a search for leaks. With GCC 12 on AArch64 that takes four seconds, and there only
# those commands are searched that `leaks` stands before: what the library leaves behind, its own tests look for.
thorough=$ASAN_OPTIONS
[ "$(uname -m)" = aarch64 ] && export ASAN_OPTIONS=$thorough:detect_leaks=0
leaks() { ASAN_OPTIONS=$thorough "$@"; }

# expect STATUS PATTERN [and PATTERN]... ARGUMENTS...: the command's status, and what it prints (on either stream).
expect() {
    local want=$1 patterns=("$2") pattern out status
    shift 2
    while [ "$1" = and ]; do
        patterns+=("$2")
        shift 2
    done
    out=$("$epilog" "$@" 2>&1)
    status=$?
    for pattern in "${patterns[@]}"; do
        if [ $status -eq "$want" ] && grep -q -e "$pattern" <<<"$out"; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
            printf 'FAILED epilog %s\n  status %d, expected %d and "%s"; it printed:\n%s\n' "$*" $status "$want" "$pattern" "$out"
        fi
    done
}
that() { # that TEXT COMMAND...: a plain condition
    local what=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED $what"; fi
}

# gradients
expect 0 'softmax_grad(x\[T,D\], d_y: cotangent\[T,D\]) -> d_x\[T,D\] {' grad softmax:softmax
expect 0 'd_g = sum(d_y\*(x\*v1), T)' grad norms:rmsnorm --wrt x,g
expect 0 'rmsnorm_backward(x\[T,D\], g\[D\], saved: f32\[T\], d_y: cotangent\[T,D\])' grad norms:rmsnorm --wrt x --forward
expect 0 '^# saved  *f32  *64 bytes  saved' grad norms:rmsnorm --wrt x --forward --dims T=16,D=32 --type bf16
"$epilog" grad norms:rmsnorm --wrt x --forward --dims T=16,D=32 --type bf16 >derived.epi
expect 0 'd_x  *f32' run derived.epi:rmsnorm_backward --dims T=16,D=32
expect 2 'add --forward' grad norms:rmsnorm --dims T=16,D=32
echo 'f(x[T,D], g[D], b[D], w[F,D]) -> y[T,F] { n = layernorm(x, g, b, 1e-5)  y = n @ w }' >layer.epi
expect 0 '^# n  *bf16  *1024 bytes  saved' grad layer.epi --forward --dims T=16,D=32,F=8 --type bf16 --memory 1M
expect 0 ' 1792 bytes  in memory until' grad layer.epi --forward --dims T=16,D=32,F=8 --type bf16 --memory 2k
expect 2 'add --forward and --dims' grad layer.epi --forward --memory 2k
expect 1 "rmsnorm has no input 'epz'; did you mean eps?" grad norms:rmsnorm --wrt epz
expect 1 "'x' is named twice" grad norms:rmsnorm --wrt x,x
expect 1 "losses.epi:9:20: 'y' is declared i32: integers have no gradient" grad losses:token_loss --wrt y
cat >own.epi <<'END'
ste(x[T,D]) -> y[T,D] by ste_grad { y = round(x) }
ste_grad(d_y[T,D]) -> d_x[T,D] { d_x = d_y }
net(x[T,D], w[F,D]) -> o[T,F] { o = ste(4*x) @ w }
END
expect 0 'no errors' check own.epi
expect 0 '^ste(x\[T,D\]) -> y\[T,D\] by ste_grad {$' grad own.epi:net --wrt w
expect 0 '^    d_x = 4\*(d_o @ w)$' grad own.epi:net --wrt x
expect 0 'derived, 0 by differences: different' gradcheck own.epi:net --dims T=3,D=4,F=2 --wrt x
expect 0 '1 call of programs that declare their own gradient: relative distance from the differences' gradcheck own.epi:net --dims T=3,D=4,F=2 --wrt x,w
expect 0 '"ok":true.*"own":1,"distance":' gradcheck own.epi:net --dims T=3,D=4,F=2 --json
"$epilog" grad own.epi:net --wrt x,w >derived.epi
expect 0 'd_x_2' grad derived.epi:net_grad --wrt x
expect 0 '' fmt own.epi
that 'the layout has the word' grep -q ') -> y\[T,D\] by ste_grad {' own.epi
expect 1 'g cannot be the gradient of f: in line 2' check <(printf 'f(x[T]) -> y[T] by g { y = x }\ng(x[T]) -> d_x[T] { d_x = x }\n')
expect 0 '41 derivatives compared; the largest error is for .*: ok' gradcheck norms:rmsnorm --dims T=3,D=7
expect 1 'not compared: the inputs have no elements' gradcheck matmul --dims M=0,N=0,K=0
expect 1 'note: 26 runs in plain loops take about .* seconds; sizes of 3 to 30 show as much' gradcheck norms:rmsnorm --dims T=20000,D=1000 --set zz=1
expect 1 "has no input 'zz'; its scalars are eps" run norms:rmsnorm --dims T=4,D=8 --set zz=1
expect 1 "has no input 'zz'; it has no scalars" run matmul --dims M=4,N=4,K=4 --set zz=1
expect 0 'note: at these sizes no output has elements' run matmul --dims M=0,N=4,K=4
expect 0 '"ok":true,"compared":41' gradcheck norms:rmsnorm --dims T=3,D=7 --json
expect 1 "the size of axis 'D' was not given" gradcheck norms:rmsnorm --dims T=3
for command in run gradcheck explain; do
    that "$command takes 2 MB of stack" bash -c "ulimit -s 2048; '$epilog' $command norms:rmsnorm --dims T=3,D=7 >/dev/null"
done
expect 0 'run as one program in bf16: 5 rows of gradients compared; the largest error is in row .*: ok' and 'run as forward and backward in bf16: 5 rows of gradients compared; the largest error is in row .*: ok' gradcheck norms:rmsnorm --dims T=3,D=7 --type bf16
expect 0 '"run":{"type":"f16","compared":5,' and '"saved":{"type":"f16","compared":5,' gradcheck norms:rmsnorm --dims T=3,D=7 --type f16 --json
expect 0 "run as one program in f32: 7 rows of gradients compared; the largest error is in row .*: ok" gradcheck "$here/tests/choice.epi:stored_extreme" --wrt x,a --dims T=6,F=8,R=4 --type f32
echo 'kink(x[T,D], s) -> y[T,D] { y = max(x, x*s) }
nothing(x[T,D]) -> y[T,D] { y = log(0*x) + x }
top(x[T,D], w[N,D]) -> g: f32[T] { g = max(x @ w, N) }' >places.epi
expect 0 'cannot be judged: a comparison changes sides there' gradcheck places.epi:kink --dims T=3,D=4 --set s=1
expect 1 'cannot be judged: results there are infinite' gradcheck places.epi:nothing --dims T=3,D=4
expect 0 'of the gradient of .*: ok' gradcheck places.epi:top --dims T=9,D=16,N=12 --type bf16
"$epilog" grad norms:layernorm --wrt x,g,b >derived.epi
expect 0 'd_b  *f32' run derived.epi --dims T=33,D=65
expect 0 ': ok' gradcheck derived.epi --dims T=3,D=4

# help and listing
expect 2 'usage: epilog'
expect 0 'usage: epilog' help
expect 0 'usage: epilog' --help
expect 0 '^epilog [0-9]' and "^commit: $(git -C "$here" rev-parse -q --verify HEAD >/dev/null 2>&1 && echo '[0-9a-f]' || echo unknown)" and '^compiler: [gc]' and '^CPU kernels in this build: .*plain; this CPU runs: .*plain$' and '^GPU: none\|^gpu0: ' --version
EPILOG_NVRTC="$here/README.md" expect 0 "^NVRTC: $here/README.md$" --version
EPILOG_NVRTC=/none expect 0 '^NVRTC: .*cannot be used: EPILOG_NVRTC names /none, which is not a file$' --version
expect 0 'safetensors' help run
expect 0 'safetensors' run --help
for command in grad gradcheck new explain show; do expect 2 "$command needs one" $command; done
for command in fmt check; do expect 2 "$command needs" $command; done
expect 2 "no command 'frob'" frob
expect 2 "no command 'version'; did you mean --version?" version
expect 2 "no command 'frob'; 'epilog list' lists the programs" help frob
expect 2 "needs NAME=VALUE pairs, separated by commas; got 'T 8=4'" show softmax --dims 'T 8=4, D=8'
expect 0 'residual_rms.epi:residual_rms' list
expect 0 '"name":' and '"signature":"layernorm(x\[T,D\], g\[D\], b\[D\], eps) -> y\[T,D\]"' list --json
expect 0 "$here/programs/rope.epi:rope " list "$here/programs"
expect 0 'cpu: ' devices
expect 0 '"threads":' and '"gpu":' devices --json

# the first steps
expect 0 'first.epi is written' new first
expect 0 'no errors' check first.epi
cp first.epi kept
expect 1 'first.epi: exists already' new first.epi
that 'new writes over nothing' cmp -s first.epi kept
cp first.epi ./--first.epi
expect 0 '--first.epi: 1 program, no errors' check -- --first.epi
expect 2 "unknown option '--first.epi'" check --first.epi
expect 0 'sub/other.epi is written' new "$(mkdir sub && echo sub/other)"
expect 0 'y .*f32' run sub/other.epi --dims T=5,D=6,F=7
expect 1 "'bf16' is a word of the language" new bf16
expect 2 'letters, digits' new a-b
expect 2 'begin with a letter' new 2x
expect 1 'No such file' new nowhere/x
that 'what cannot be is not left behind' test ! -e bf16.epi
expect 0 '4. What each kernel does' and 'first becomes one kernel, of the kind gemm' and '^    epilog run first.epi --dims T=8,D=9,F=10$' explain first.epi --dims T=8,D=9,F=10
expect 0 'first_grad(.*) -> d_w\[F,D\] {' explain first.epi --wrt w
expect 0 'add --dims, as in --dims T=256,D=256,F=256' and '^    epilog run first.epi --dims T=256,D=256,F=256$' explain first.epi
expect 0 '    part 2, gemm: a matrix product' explain llama_mlp --dims T=8,D=16,F=32
expect 0 'it reads each row from memory once and computes in cache' explain softmax --dims T=8,D=16
expect 1 "first has no input 'q'" explain first.epi --wrt q
awk 'BEGIN { printf "p(x[T,D], w[F,D], u[E,F], r[T]) -> y[T,E] { h = x @ w v0 = r "
    for (i = 1; i < 65524; i++) printf "v%d = sin(v%d) ", i, i - 1
    print "q = h*v65523 y = (q*rsqrt(mean(q*q, F))) @ u }" }' >long.epi
expect 0 'not reordered but computed as written: the program has more than 65536 operations' explain long.epi --dims T=8,D=8,F=8,E=8
layer=(llama_mlp --dims T=8,D=16,F=32)
expect 0 '^algebra    [0-9]* .*reorders sums of products' and '3 parts, and 2 values between them' explain "${layer[@]}" --passes
expect 0 'not tried: the options ask for the program as written' explain "${layer[@]}" --passes --algebra written
expect 0 'one kernel is enough' explain softmax --dims T=8,D=16 --passes
echo 'f(x[T,D], w[F,D]) -> (y[T,F], i: i32[T]) { y = x @ w  i = argmax(y, F) }' >choice.epi
expect 0 'more: 1 value computed once' explain choice.epi --dims T=8,D=16,F=600 --passes
expect 2 'add --dims' explain softmax --passes
expect 2 'use one of them' explain "${layer[@]}" --passes --after cut
expect 2 "there is no pass 'fuse'" explain "${layer[@]}" --after fuse
for pass in $("$epilog" explain "${layer[@]}" --passes | sed -n 's/^\([a-z]\+\)  .*/\1/p' | tail -n +2); do
    "$epilog" explain "${layer[@]}" --after "$pass" >"after_$pass.epi"
    expect 0 'no errors' check "after_$pass.epi"
done
expect 0 'y .*f32' run after_attention.epi:llama_mlp --dims T=8,D=16,F=32
that 'after cut there is a program for each part' test "$(grep -c '^llama_mlp_[0-9](' after_cut.epi)" -eq 3

# layout
printf 'f(x[T])->y[T]{y=x} # c\n' >loose.epi
expect 1 'loose.epi: would change' fmt --check loose.epi
that '--check writes nothing' grep -q '^f(x\[T\])->y' loose.epi
chmod 640 loose.epi
expect 0 '^$' fmt loose.epi
that 'fmt lays a file out' cmp -s loose.epi <(printf 'f(x[T]) -> y[T] {\n    y = x\n} # c\n')
that 'and keeps its mode' test "$(stat -c %a loose.epi)" = 640
expect 0 '^$' fmt --check loose.epi
expect 0 '^    y = x$' fmt - <<<'f(x[T])->y[T]{y=x}'
expect 1 '-: would change' fmt --check - <<<'f(x[T])->y[T]{y=x}'
printf 'f(x[T])->y[T]{y=}' >torn.epi
expect 1 'torn.epi:1:17: expected a value' fmt torn.epi loose.epi
that 'what does not parse stays' cmp -s torn.epi <(printf 'f(x[T])->y[T]{y=}')
expect 1 'No such file' fmt nowhere.epi
expect 1 'is a folder' fmt .
expect 0 '^$' fmt --check "$here"/programs/*.epi

# charts
expect 0 'fused ms' bench softmax:softmax matmul:matmul --dims T=16,D=32,M=32,N=32,K=32 --repeat 1 --plot chart.svg
that 'a picture has every program and both looks' sh -c 'grep -q "prefers-color-scheme:dark" chart.svg && grep -q ">softmax 16<" chart.svg && grep -q ">matmul 32<" chart.svg && grep -q "^</svg>" chart.svg'
if command -v python3 >/dev/null; then
    that 'it is XML' python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse("chart.svg")'
fi
expect 2 'the output would overwrite the program, .*softmax.epi' bench "$here"/programs/softmax.epi:softmax --dims T=4,D=4 --plot "$here"/programs/softmax.epi
expect 1 'No such file' bench softmax:softmax --dims T=4,D=4 --plot nowhere/x.svg

# completion and the manual, from the command's own tables
expect 0 'complete -F _epilog epilog' completion bash
expect 0 '#compdef epilog' completion zsh
expect 0 'complete -c epilog' completion fish
expect 2 'completion needs bash, zsh or fish' completion tcsh
"$epilog" completion bash >completion.bash
completed() { # completed WORDS...: what bash offers for the last of them
    bash -c 'source ./completion.bash; COMP_WORDS=(epilog "$@"); COMP_CWORD=$#; _epilog; echo " ${COMPREPLY[*]} "' - "$@" 2>&1
}
has() { [[ $1 == *" $2 "* ]]; }
that 'commands are completed' has "$(completed gra)" 'grad gradcheck'
that 'options are those that the command takes' has "$(completed grad --f)" --forward
that 'and no others' has "$(completed grad --ra)" ''
that 'values are completed' has "$(completed run softmax --path na)" naive
that 'programs are completed' has "$(completed run resid)" residual_rms
printf 'one(x) -> y { y = x }\ntwo(x) -> y { y = x }\nother(x) -> y { y = x }\n' >'progs.epi'
ln -s "$epilog" epilog
for words in 'progs.epi:o' 'progs.epi : o'; do
    that "programs of a file, $words" test "$(PATH=.:$PATH completed run $words)" = ' one other '
done
that 'all of them' test "$(PATH=.:$PATH completed run progs.epi :)" = ' one two other '
expect 0 '^progs.epi:two ' list progs.epi
expect 1 'nowhere.epi: no such file' list nowhere.epi
touch tensors.safetensors
that 'so are files' has "$(completed run softmax --in tens)" tensors.safetensors
for c in $("$epilog" help | sed -n 's/^  \([a-z]*\)  *.*/\1/p'); do
    for o in $("$epilog" help "$c" | grep -o -e '--[a-z][a-z-]*' | sort -u); do
        that "$c takes $o, which its help names" has "$(completed "$c" "$o")" "$o"
    done
    expect 0 "^.SS \"epilog $c: " man
done
for v in $(grep -rhoE 'getenv\("[A-Z_]+"\)' "$here/src" "$here/cli" | grep -oE '[A-Z_]+' | grep -vxE 'HOME|TERM|LD_LIBRARY_PATH|CUDA_HOME|CUDA_PATH' | sort -u); do
    expect 0 "^.B $v\$" man
done

for c in $(grep -ohE '(^|`|, )epilog [a-z]+' "$here"/docs/llms.txt | grep -oE '[a-z]+$' | sort -u); do
    expect 0 "^epilog $c" help "$c"
done

# on a terminal
if command -v script >/dev/null; then
    terminal() { TERM=xterm script -qec "$1" /dev/null </dev/null; }
    that 'alone in a terminal it says where to begin' grep -q 'epilog new first' <<<"$(terminal "$epilog")"
    that 'bench draws bars' grep -q 'softmax 16 .*█ *.*[0-9]\.[0-9][0-9]' <<<"$(terminal "$epilog bench softmax:softmax --dims T=16,D=32 --repeat 1")"
    that 'what is wrong is red' grep -q $'^\033\\[1;31mepilog:\033\\[0m there is no command' <<<"$(terminal "$epilog frob")"
    that 'not with NO_COLOR' grep -q '^epilog: there is no command' <<<"$(NO_COLOR=1 terminal "$epilog frob")"
    that 'long work shows what it is' grep -q 'measuring matmul, 1 of 1, [2-9] s' <<<"$(terminal "timeout 3.5 $epilog bench matmul --dims M=1024,N=1024,K=1024 --threads 1 --repeat 1000")"
    that 'and short work does not' sh -c '! grep -q "running"' <<<"$(terminal "$epilog run softmax --dims T=4,D=4")"
fi

# check
expect 0 'no errors' check "$here"/programs/*.epi
echo 'f(x[T]) -> y[T] { y = x + }' >syntax.epi
echo 'f(x[T,D], y[T,D/2]) -> z[T,D] { z = x + y }' >axis.epi
expect 1 'syntax.epi:1:27: expected a value' check syntax.epi
expect 1 'axis.epi:1:39: axes do not line up' check axis.epi
expect 1 '"line":1,"column":27' check syntax.epi --json
expect 1 'no such file' check missing.epi
expect 1 'is a folder' check "$here/programs"
printf '\377\376\0\0' >binary.epi
expect 1 'byte 0xff' check binary.epi

# nothing that comes from outside reaches a terminal as a command to it
escape=$(printf '\033[31m')
expect 2 "no command '\\\\x1b\[31m'" "$escape"
expect 1 '\\x1b\[31m.epi: no such file' check "$escape.epi"
expect 2 '\\x1b\[31m' run matmul --dims "M=$escape"
mkdir red
printf '# red: %s γ\nf(x[T]) -> y[T] { y = x + %s }\n' "$escape" "$escape" >"red/$escape.epi"
expect 1 '\\x1b' check "red/$escape.epi"
raw() { "$epilog" "$@" 2>&1 | grep -q "$(printf '\033')"; }
that 'a text is not obeyed' eval '! raw check "red/$escape.epi"'
printf '# red: %s γ\nf(x[T]) -> y[T] { y = x }\n' "$escape" >"red/$escape.epi"
expect 0 'x1b.*:f .* red: \\x1b\[31m γ' list red
that 'a name is not obeyed' eval '! raw check "red/$escape.epi" && ! raw run "red/$escape.epi" --dims X=1 && ! raw list red'

# show: the README's first program
sed -n "/<<'end'/,/^end/p" "$here/README.md" | sed '1d;$d' >ffn.epi
expect 0 '^mean(y\*y, F) leaves as partials, [0-9]* per result' show ffn.epi --dims T=1024,D=1024,F=4096
printf 'f(x[T,D], a[D,F], b[F,D], c[D,F], d[F,D]) -> y[T,D] { h = silu(x @ a) @ b  y = silu(h @ c) @ d }\n' >layers.epi
expect 0 '4 kernels, 2 of them different, 4 launches' and 'part 1 of 4, gemm; the same except for names: 3' show layers.epi --dims T=64,D=32,F=64
expect 0 '"parts":\[.*"first":1,"mainloop".*"first":2,"mainloop".*{"first":1},{"first":2}\]' and '"values":\[{"name":"v[0-9]*","expression":"silu(x @ a)"' show layers.epi --dims T=64,D=32,F=64 --json
expect 0 'leaves as partials' show residual_rms --dims T=64,K=32,D=300
expect 0 '"bytes_fused":.*"kernel_count":1,"launch_count":[1-9],"workspace":[1-9]' show residual_rms --dims T=64,K=32,D=300 --json
expect 0 '^max(x, D) stays in the row$' show softmax --dims T=4,D=5 --path unfused
expect 0 'in 1 kernel, 1 launch;' show router --dims T=64,D=32,E=8 --arch sm_90a --type bf16
expect 0 'in 1 kernel, 1 launch;' show router --dims T=64,D=32,E=8
expect 0 'the axes are T K D' show residual_rms
expect 0 'mainloop rows' show layernorm_linear:layernorm_stats --dims T=4,D=4
expect 1 'has 4 programs; write .*:NAME with one of matmul' show matmul.epi
expect 1 "has no program 'nosuch'; it has matmul, matmul_nn, matmul_tn, matmul_tt" show matmul:nosuch
expect 1 "has no program 'matmulnn'; did you mean matmul_nn" show matmul:matmulnn
expect 1 "comes with Epilog; did you mean rmsnorm_backward" show rmsnorm_bakward
expect 1 "comes with Epilog; see 'epilog list'" show nothing_like_it
echo 'f(x[T]) -> y[T] { y = 2*x }' >like_it.epi
for name in like_it like_it:f; do expect 1 'comes with Epilog; did you mean like_it.epi?' show $name; done
for name in matmul:matmul_tt layernorm; do expect 0 "$name: 1 program, no errors" check $name; done
expect 0 'norms: [0-9]* programs, no errors' check norms
expect 1 "comes with Epilog; did you mean layernorm" check layernrm
that 'a message stands behind what was printed before it' bash -c "'$epilog' show matmul --dims M=4 2>&1 | tail -1 | grep -q 'was not given'"

# run
echo 'f(x[V,D], ids: i32[T], seed: i32) -> y[T,D] { y = x[ids]*uniform(seed, T, D) }' >embed.epi
expect 0 'y .*bf16' run embed.epi --dims V=3,T=1000,D=7 --type bf16
expect 1 'ids\[0\] is .*: outside axis V of 0' run embed.epi --dims V=0,T=3,D=7
for with in '' --json '--path unfused' '--arch sm_90a'; do # no part stores what is empty
    expect 0 'nothing to do: no result has elements' show norm_swiglu --dims T=0,D=8,F=16 $with
done
expect 0 'between the parts' show blocks:llama_mlp --dims T=2,D=4,F=0
expect 0 'there are no kernels: no result has elements' explain blocks:llama_mlp --dims T=0,D=4,F=8
that 'explain names no value that is empty' bash -c "! '$epilog' explain blocks:llama_mlp --dims T=2,D=4,F=0 | grep 'from part 0'"
expect 0 'dwpe .*f32' run embedding:embedding_packed_grad --dims V=5,P=3,T=1000,D=7 --type bf16
expect 0 'dweight .*f32' run embedding:combine_rows_grad --dims T=5,R=10,D=7 --type f16
expect 0 'y .*f32' run dropout:dropout_add --dims T=5,D=7
expect 0 'w_next .*bf16' run optim:adamw_bf16 --dims N=1000
expect 0 'y .*bf16' run rotary:rotary_packed_halves --dims P=3,T=100,H=2,D=8 --type bf16
expect 0 'naive path' run matmul --dims M=33,N=35,K=37
expect 0 'bf16' run matmul --dims M=33,N=35,K=37 --type bf16
expect 0 '"ok":true' run norm_swiglu --dims T=9,D=8,F=6 --type f16 --json
expect 0 'naive path' run matmul --dims=M=1,N=1,K=1 --micro=plain --threads=1
expect 0 'naive path' run "$here/programs/matmul.epi:matmul_nn" --dims M=5 --dims N=6,K=7 --path unfused
# of one scalar the naive path may be right by luck: the rule has a floor
cat >scalars.epi <<'end'
s(x[T,D], w[F,D]) -> (a: f32, b: f32) {
    y = x @ w
    a = mean(mean(gelu(y)*y, F), T)
    b = sum(sum(x*x, D), T)
}
end
for seed in 1 2 3 4 5 6 7 8 9 10 11 12; do
    expect 0 'a .*f32' run scalars.epi --dims T=64,D=96,F=128 --type bf16 --path unfused --seed $seed
done
expect 1 "axis 'K' was not given; give dims K=...$" run matmul --dims M=3,N=4
expect 1 "axis 'M' was not given, nor were K, N; give dims M=...,K=...,N=...$" run matmul
expect 1 "no axis 'Q'" run matmul --dims M=3,N=4,K=5,Q=6
expect 1 'is negative' run matmul --dims M=3,N=4,K=-5
expect 2 'linear has no such axis; it has T, D, F' run "$here/programs/linear.epi:linear" --dims T=5,D=64,F=64 --open Q=4
expect 2 'no program has such an axis' bench "$here/programs/linear.epi:linear" --dims T=5,D=64,F=64,Q=4 --open Q=4
expect 0 'linear  *5x64x64' bench "$here/programs/linear.epi:linear" --dims T=5,D=64,F=64 --open T=512 --repeat 3
printf 'h(x[T,H], v[D]) -> y[D,H,T] { y = x + v }\n' >"$tmp/more.epi" # at 37 rows it takes more workspace than at 300
expect 0 'y  *bf16' run "$tmp/more.epi" --dims T=37,D=33,H=3 --open T=300 --type bf16 --threads 1
expect 2 'must be a 64-bit integer' run matmul --dims M=3,N=4,K=five
expect 2 'must be a 64-bit integer' run matmul --dims M=3,N=4,K=99999999999999999999999
expect 1 'overflows 64 bits' run matmul --dims M=4611686018427387904,N=4,K=5
echo 'unused(x[A,B], y[T]) -> z[T] { z = y*2 }' >unused.epi
expect 1 '2^48 elements' run unused.epi --dims A=2147483648,B=2147483648,T=3
expect 0 'naive path' run "$here/programs/norm_rope.epi:qk_norm" --dims B=1,S=2,E=3,H=2,D=300 --micro plain
expect 1 '2^48\|memory' run matmul --dims M=281474976710656,N=1,K=1
expect 1 'needs F to be divisible by 2' run swiglu --dims T=3,D=4,F=5
expect 2 'NAME=VALUE' run matmul --dims M
expect 2 'needs f32, bf16' run matmul --dims M=1,N=1,K=1 --type f8
expect 1 "no device 'tpu': this machine has cpu" run matmul --dims M=1,N=1,K=1 --device tpu
expect 2 "unknown option '--frob'; see 'epilog help run'" run matmul --frob 1
expect 2 "unknown option '--dmis'; did you mean --dims?" run matmul --dmis M=1
expect 2 "no command 'rnu'; did you mean run?" rnu matmul
expect 0 'naive path' run matmul --dims M=4, N=5 K=6
expect 0 'naive path' run matmul --dims ' M = 4 ' --dims 'N=5 , K=6,'
expect 1 "no tensor 'd'; it has a, b, c" run matmul --dims M=4,N=5,K=6 --types d=bf16
expect 1 "no input 'q'; its inputs are x, g, eps" grad rmsnorm --wrt q
expect 0 'd_g' grad norms:rmsnorm --wrt 'x, g'
expect 0 'naive path' run rmsnorm --dims T=4,D=5 --set 'eps=1e-5 '
expect 1 "no input 'nosuch'; its scalars are eps" and "no input 'nosuch'" run rmsnorm --dims T=4,D=5 --set nosuch=1
expect 1 "no micro-kernel 'fast' here for f32 x f32 operands; there are .*plain" run matmul --dims M=4,N=5,K=6 --micro fast
expect 1 'a workspace of 64000 bytes is too small: matmul needs [0-9]*, and chunks of rows do not need less' run matmul --dims M=400,N=500,K=600 --memory 64K
expect 1 "its rows are sorted by e\[T,K\], all of them at once" run "$here/tests/experts.epi:moe" --dims T=4000,K=2,E=8,D=64,F=128 --memory 1M
echo 'picked(x[T,D], w[V,D], y: i32[T]) -> z[T] { z = gather(x @ w, y, V) }' >two.epi
expect 0 'stores [a-z0-9]* = x @ w, 8.192 MB, more than all inputs and outputs together' show two.epi --dims T=64,D=8,V=32000
that 'of what is small nothing is called slow' test -z "$("$epilog" show two.epi --dims T=64,D=8,V=320 | grep slow)"
cat >cliffs.epi <<'end'
running(x[T,D]) -> y[T,D] { u = rename(x, T, U)  y = sum(where(index(U) <= index(T), u, 0), U) }
masked(x[T,V]) -> y[T,V] { u = rename(x, T, U)  y = sum(where(index(U) <= index(T), 1, 0)*u, U) }
picked(x[T,D], w[V,D], i: i32[T]) -> z[T] { z = gather(x @ w, i, V) }
total(x[T,D], w[V,D]) -> s { s = sum(x @ w, T, V) }
weighed(x[T,E], k[R,E], l[R,E], v[R,D]) -> o[T,D] { o = (softmax(x @ k, R) - softmax(x @ l, R)) @ v }
middle(x[B,T,D]) -> y[B,D] { y = sum(x, T) }
unit(x[B,T,D]) -> y[B,T,D] { y = x*rsqrt(sum(x*x, B, T, D)) }
end
sizes=(--dims T=1024,D=64,V=1024,E=64,R=1024,B=64)
expect 0 'picked: .*; write sum(where(index(V) == i, x, 0), V) instead of gather(x, i, V)$' and 'total: .*; write sum(sum(x, …), T), one axis after the other$' and 'weighed: .*; scores stay on chip if a softmax is used only in sum(p\*v, R)' check cliffs.epi "${sizes[@]}"
expect 0 'unit: part 1 of 1 is one row of 4194304 elements, which a single block computes' check cliffs.epi:unit "${sizes[@]}" --arch sm_90a
cat >why.epi <<'end'
scaled(x[T,D], q: i8[F,D], s[F,D]) -> y[T,F] { y = x @ (q*s) }
end
expect 0 'stores v[0-9]* = q\*s, .*, because the product of part 2 reads its operands from memory; compute it once and pass it as an input' check why.epi --dims T=1024,D=1024,F=1024 --type bf16 --arch sm_90a
expect 0 '^ *because part 2 is one operation over memory' and '6. What is slow' and 'write sum(where(index(V) == i, x, 0), V)' explain cliffs.epi:picked "${sizes[@]}"
expect 0 'slow, see docs/speed.md:' and 'part 1 of 2 stores v3 = x @ w' run cliffs.epi:picked "${sizes[@]}"
expect 0 '"warnings":"part 1 of 2 stores v3' run cliffs.epi:picked "${sizes[@]}" --json
that 'of what is fast a run says nothing' test -z "$("$epilog" run matmul --dims M=64,N=64,K=64 | grep slow)"
expect 0 '"warnings":\["cliffs.epi: picked: ' check cliffs.epi:picked "${sizes[@]}" --arch sm_90a --type bf16 --json
expect 1 "the size of axis 'T' is negative" check cliffs.epi:picked --dims T=-1,D=64,V=1024
that 'where there is nothing better to write, nothing is slow' test "$("$epilog" check cliffs.epi "${sizes[@]}" 2>&1 | grep -c 'running\|masked\|middle')" -eq 0
that 'without sizes nothing is said of kernels' test -z "$("$epilog" check cliffs.epi --dims T=1024 2>&1 | grep slow)"
echo 'rows(t[V,D], i: i32[L=4,T]) -> y[T,D] { y = t[i[0]] + t[i[3]] }' >stack.epi
expect 0 'y  *f32' run stack.epi --dims T=60,D=8,V=2
printf 'f(x[T,E]) -> y[T] { y = sum(x, E) }\ng(y[T]) -> z[T] { z = 2*y }\n' >two.epi
expect 0 'note: g has no axis E; its size is ignored' run two.epi:g --dims T=4,E=5
expect 1 "the program has no axis 'H'; it has T" run two.epi:g --dims T=4,H=5
expect 1 'two.epi has 2 programs; write two.epi:NAME with one of f, g' run two.epi --dims T=4
: >two.epi
expect 1 'two.epi has no programs' run two.epi
printf 'f(x[T,D], z[T,D], n[N]) -> y[T,D] {\n    a, b = halves(x, D)\n    h = x*2\n    y = x + size(N) + sum(a, D/2)\n}\n' >two.epi
expect 0 "warning: two.epi:1:11: the input 'z' is not used" check two.epi
expect 0 "warning: two.epi:3:5: the value 'h' is not used" check two.epi:f
expect 0 '"warnings":\["two.epi:1:11: [^"]*","two.epi:3:5: [^"]*"\]' check two.epi --json
that 'no program that comes with Epilog has anything for nothing' test -z "$("$epilog" check "$here"/programs/*.epi 2>&1 | grep warning)"
expect 0 '^c .*f32 *[0-9.]* *not compared$' run matmul --dims M=4,N=5,K=6 --no-check
expect 0 '"checked":true' and '"relative_error":' run matmul --dims M=4,N=5,K=6 --json
expect 0 '"checked":false,.*"outputs":\[{"name":"c","verdict":"not compared","scale":[0-9.]*,"nan":0,"infinite":0}\]' run matmul --dims M=4,N=5,K=6 --no-check --json
expect 2 "'bench' takes no --no-check" bench matmul --dims M=4,N=5,K=6 --no-check
printf 'f(x[T]) -> (y[T], z[T]) {\n    y = log(x - 1000)\n    z = 1/(x - x)\n}\n' >"$tmp/nan.epi"
expect 0 'y .* 5 of 5 are NaN' and 'z .* 5 of 5 are infinite' run "$tmp/nan.epi:f" --dims T=5
expect 0 '"nan":5' run "$tmp/nan.epi:f" --dims T=5 --json
expect 0 'y .* 5 of 5 are NaN' run "$tmp/nan.epi:f" --dims T=5 --no-check
expect 0 ' 5 NaN' bench "$tmp/nan.epi:f" --dims T=5
# The mean and the variance of nothing; a place outside gives 0, even times infinity; rows follow a cotangent that has axes.
cat >"$tmp/edge.epi" <<'end'
none(x[T,D], w[F,D]) -> (s: f32[T], m: f32[T]) { h = x @ w  m = mean(h, F)  s = var(h, F) }
outside(x[T,D], w[F,D], u[K,F]) -> (y[T,K], z[T]) {
    h = (x*min(index(T), 1)) @ w
    s = 1/mean(h*h, F)
    y = h @ u
    z = gather(y*s, index(T)*1 - 1, K)
}
scalar_first(w[F,D], u[K,F], d_l: cotangent f32, d_y: cotangent[T,K]) -> d_x[T,D] { d_x = ((d_y*d_l) @ u) @ w }
end
expect 0 'm .*5 of 5 are NaN' run "$tmp/edge.epi:none" --dims T=5,D=40,F=0
expect 0 'z ' run "$tmp/edge.epi:outside" --dims T=4,D=40,F=300,K=16
expect 0 '0.8981 MB moved fused' show "$tmp/edge.epi:scalar_first" --dims T=5000,D=16,F=2000,K=16
expect 2 "'check' takes no --seed; see 'epilog help check'" check programs/matmul.epi --seed 3
expect 2 "'list' takes no --dims" list --dims=M=4
expect 2 "'run' takes no --size" run matmul --size 12
expect 2 "unknown option '--foo'" list --foo
expect 2 '.-in needs a value' run --in --dims M=4,N=5,K=6 matmul
expect 2 '.-json takes no value' list --json=1
expect 2 '.-type is given twice' run matmul --dims M=4,N=5,K=6 --type f32 --type bf16
expect 0 'c .*f32' run matmul --dims M=4,N=5 --dims K=6
expect 2 '.-set names lim twice' run matmul --dims M=4,N=5,K=6 --set lim=1,lim=2
expect 1 "no input 'foo'" bench matmul --dims M=4,N=5,K=6 --set foo=1
expect 0 'dropout_grad' bench matmul:matmul dropout:dropout_grad --dims M=4,N=5,K=6,T=4,D=8 --types a=bf16,dy=f16 --set p=0.5 --repeat 1
expect 1 "the size of axis 'K' was not given" bench matmul --dims M=4,N=5
expect 1 'zz' bench matmul --dims M=4,N=5,K=6 --types zz=bf16
expect 2 "none of the programs has an input 'foo'" bench matmul:matmul dropout:dropout_grad --dims M=4,N=5,K=6,T=4,D=8 --set p=0.5,foo=1 --repeat 1
expect 2 '.-repeat needs a number of 1 or more' bench matmul --dims M=4,N=5,K=6 --repeat 0
expect 2 '.-dims goes with a program' bench --dims M=4
expect 1 'cannot be written' run matmul --dims M=4,N=5,K=6 --out nowhere/c.safetensors
expect 1 'cannot be written' bench matmul --dims M=4,N=5,K=6 --out nowhere/b.json
expect 1 'cannot read the folder: No such file' list nowhere/at_all
expect 1 "'gelu_of' is not a folder, and no program that comes with Epilog has it in its name" list gelu_of
expect 0 '^    layernorm(x\[T,D\], g\[D\], b\[D\], eps) -> y\[T,D\]$' list layernorm
that 'list NAME has no others' sh -c '! grep -v "^  *[a-z_]*layernorm\|epi:[a-z_]*layernorm"' <<<"$("$epilog" list layernorm)"
printf 'f(q[S,D], k[T,D], v[E,T]) -> o[S,E] { o = (q @ k) @ v }\n' >"$tmp/two.epi"
expect 0 'part 2 of 2, gemm' show "$tmp/two.epi:f" --dims S=4,T=5,D=6,E=7
expect 0 'o .*f32' run "$tmp/two.epi:f" --dims S=4,T=5,D=6,E=7
expect 2 "'bench' takes no --path" bench matmul --dims M=4,N=5,K=6 --path naive
expect 0 'epilog check FILE' check --help
expect 2 'needs a value' run matmul --dims
expect 2 'options have long names' run matmul -x
expect 1 "no micro-kernel 'nosuch'" run matmul --dims M=1,N=1,K=1 --micro nosuch
expect 1 'no such file' run nosuch --dims M=1

# tensors in and out
mkdir tensors && cp syntax.epi tensors && cd tensors || exit 1
expect 0 'naive path' run matmul --dims M=4,N=5,K=6 --out out.safetensors
that 'an output file is written' test -s out.safetensors
expect 1 "none of the program's inputs: 'a', 'b'; it has 'c'" run matmul --dims M=4,N=5,K=6 --in out.safetensors
echo 'scaled(c[M,N], s[N], a, b) -> y[M,N] { y = c*s*a + b }' >scaled.epi
expect 1 "out.safetensors has no 's', 'a', 'b'; use --set" run scaled.epi --dims M=4,N=5 --in out.safetensors
expect 1 "out.safetensors has no 's', 'b'; use --set" run scaled.epi --dims M=4,N=5 --in out.safetensors --set a=2
expect 0 "note: out.safetensors has no 's', 'b'; filled with random numbers" run scaled.epi --dims M=4,N=5 --in out.safetensors --set a=2 --random
expect 0 '"random":\["s","b"\]' run scaled.epi --dims M=4,N=5 --in out.safetensors --set a=2 --random --json
expect 0 '"random":\["c","s","a","b"\]' run scaled.epi --dims M=4,N=5 --json
expect 0 '"random":\[\]' run "$here/tests/square.epi" --dims M=4,N=5 --in out.safetensors --json
echo 'f(c[M,N]) -> (y[M,N], w[M,N]) { y = c*2; w = c*3 }' >scaled.epi
"$epilog" run scaled.epi --dims M=4,N=5 --out named.safetensors >/dev/null
echo 'f(y[M,N], v[M,N]) -> z[M,N] { z = v*y }' >scaled.epi
expect 1 "named.safetensors has no 'v'; it has 'w'; use --set" run scaled.epi --dims M=4,N=5 --in named.safetensors
expect 0 'naive path' run rmsnorm --dims T=4,D=5 --set eps=0.5
expect 1 "'x' is a tensor" run rmsnorm --dims T=4,D=5 --set x=1
expect 2 'must be a number; got' run rmsnorm --dims T=4,D=5 --set eps=much
leaks expect 0 'naive path' run "$here/tests/square.epi" --dims M=4,N=5 --in out.safetensors --out again.safetensors
expect 1 "'c' is \[4,5\], and c\[M,N\] needs M to be 5, as in --dims; is it transposed?" run "$here/tests/square.epi" --dims M=5,N=4 --in out.safetensors
expect 0 "note: out.safetensors: 'c' is F32, converted to bf16" run "$here/tests/square.epi" --dims M=4,N=5 --type bf16 --in out.safetensors
cp out.safetensors kept.safetensors
head -c 30 out.safetensors >cut.safetensors
printf '\0\0\0\0\0\0\0\020{}' >huge.safetensors # a header of 2^60 bytes
: >empty.safetensors
for file in cut huge empty nosuch; do
    expect 1 $file.safetensors run "$here/tests/square.epi" --dims M=4,N=5 --in $file.safetensors
done
expect 1 'nowhere' run matmul --dims M=4,N=5,K=6 --out nowhere/out.safetensors
expect 2 'the output would overwrite --in, kept.safetensors' run matmul --dims M=4,N=5,K=6 --in kept.safetensors --out ./kept.safetensors
expect 1 'kept.safetensors' run matmul --dims M=4,N=5,K=6 --out kept.safetensors/out
that 'a failed run leaves other files alone' cmp -s out.safetensors kept.safetensors
that 'nothing else was left behind' test "$(echo *)" = \
    'again.safetensors cut.safetensors empty.safetensors huge.safetensors kept.safetensors named.safetensors out.safetensors scaled.epi syntax.epi'

# files as other programs write them. tensors FILE HEADER BYTES: a safetensors file, its bytes as printf has them
tensors() {
    local length=${#2}
    { printf "\\x$(printf %02x $((length % 256)))\\x$(printf %02x $((length / 256)))\\0\\0\\0\\0\\0\\0" && printf '%s' "$2" && printf "$3"; } >"$1"
}
mkdir made && cd made || exit 1
echo 'f(x[M,K], y[N,K]) -> (a[M,K], b[N,K]) { a = x + 1; b = y + 2 }' >make.epi
"$epilog" run make.epi --dims M=4,N=5,K=6 --out ab.safetensors >/dev/null
expect 0 'naive path' run matmul --in ab.safetensors # sizes and all
"$epilog" run matmul --in ab.safetensors --out c.safetensors >/dev/null
that 'its sizes are those of the file' grep -aq '"shape":\[4,5\]' c.safetensors
expect 0 'naive path' run matmul --dims K=6 --in ab.safetensors
expect 1 "'a' is \[4,6\], and a\[M,K\] needs K to be 7, as in --dims$" run matmul --dims K=7 --in ab.safetensors
echo 'f(a[M,K], b[K,N]) -> y[M,N] { y = a @ b }' >turned.epi
expect 1 "'b' is \[5,6\], and b\[K,N\] needs K to be 6, as in a; is it transposed?" run turned.epi --in ab.safetensors
expect 1 "ab.safetensors has none of the program's inputs: 'x', 'w'; it has 'a', 'b'" run "$(echo 'g(x[M,K], w[K]) -> y[M] { y = x @ w }' >g.epi; echo g.epi)" --in ab.safetensors
expect 1 "ab.safetensors has no 'w'; it has 'b'; use --set" run "$(echo 'g(a[M,K], w[Z]) -> y[M,K] { y = a + sum(w, Z) }' >g.epi; echo g.epi)" --in ab.safetensors
expect 1 "axis 'Z' was not given" run "$(echo 'g(a[M,K], q[Z]) -> y[M,K] { y = a + sum(q, Z) }' >g.epi; echo g.epi)" --in ab.safetensors --random
echo 'g(a[M,F/2]) -> y[M,F] { y = join(a, -a, F) }' >g.epi
expect 0 'naive path' run g.epi --in ab.safetensors --out y.safetensors
that 'half an axis tells the axis' grep -aq '"shape":\[4,12\]' y.safetensors

echo 'pick(x[V], ids: i32[T], s) -> y[T] { y = x[ids]*s }' >pick.epi
pick() { # pick STATUS PATTERN TYPE BYTES: ids of that type
    local size=$((${#4} / 4 / 3)) begin='{"x":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},'
    tensors pick.safetensors "$begin"'"s":{"dtype":"F32","shape":[1],"data_offsets":[16,20]},"ids":{"dtype":"'$3'","shape":[3],"data_offsets":[20,'$((20 + 3 * size))']}}' \
        '\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x40\x40\x00\x00\x80\x40\x00\x00\x80\x3f'"$4"
    expect "$1" "$2" run pick.epi --in pick.safetensors
}
long() { local i; for i in "$@"; do printf '\\x%02x\\x00\\x00\\x00\\x00\\x00\\x00\\x%02x' "$i" 0; done; }
pick 0 "'ids' is I64, converted to i32" I64 "$(long 3 0 2)"
pick 1 'ids\[2\] is 9: outside axis V of 4' I64 "$(long 3 0 9)"
pick 1 "element 1 of 'ids' is 4294967296, which is not a value of i32" I64 "$(long 3)"'\x00\x00\x00\x00\x01\x00\x00\x00'"$(long 0)"
pick 0 'naive path' I32 '\x03\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00'
pick 0 "'ids' is F32, converted to i32" F32 '\x00\x00\x40\x40\x00\x00\x00\x00\x00\x00\x80\x3f'
pick 1 "element 0 of 'ids' is 2.5, which is not a value of i32" F32 '\x00\x00\x20\x40\x00\x00\x00\x00\x00\x00\x80\x3f'
pick 1 "element 1 of 'ids' is 2147483648, which is not a value of i32" F64 '\x00\x00\x00\x00\x00\x00\x08\x40\x00\x00\x00\x00\x00\x00\xe0\x41\x00\x00\x00\x00\x00\x00\x00\x00'
pick 0 "'ids' is U8, converted to i32" U8 '\x03\x00\x02'
pick 1 'is of dtype BOOL' BOOL '\x00\x00\x00'
echo 'pick(x[V], ids[T], s) -> y[T] { y = ids*s + sum(x, V) }' >pick.epi
pick 0 "'ids' is I64, converted to f32" I64 "$(long 3 0 2)"
echo 'pick(x[V], ids: i64[T], s) -> (y[T], n: i64[T]) { y = x[ids]*s  n = ids + 1 }' >pick.epi
pick 0 '^n  *i64' I64 "$(long 3 0 2)"
pick 1 'ids\[1\] is 4294967296: outside axis V of 4' I64 "$(long 3)"'\x00\x00\x00\x00\x01\x00\x00\x00'"$(long 0)"
pick 0 "'ids' is I32, converted to i64" I32 '\x03\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00'
expect 0 'naive path' run pick.epi --in pick.safetensors --out n.safetensors
that 'i64 is written as I64' grep -aq '"n":{"dtype":"I64","shape":\[3\]' n.safetensors
cd ..

# standard input and output
expect 0 '^-: 1 program, no errors' check - <"$here/tests/square.epi"
expect 1 '^epilog: -:1:27: expected a value' check - <syntax.epi
expect 0 'c .*f32' run -:matmul --dims M=4,N=5,K=6 <"$here/programs/matmul.epi"
expect 1 "has no program 'nosuch'" run -:nosuch --dims M=4,N=5,K=6 <"$here/programs/matmul.epi"
expect 0 'fused ms' bench - --dims M=4,N=5 --repeat 2 <"$here/tests/square.epi"
expect 2 'cannot be both the program and --in' run - --in - <"$here/tests/square.epi"
expect 0 '"random":\[\]' run "$here/tests/square.epi" --in - --json <out.safetensors
expect 0 '"random":\[\]' run "$here/tests/square.epi" --in <(cat out.safetensors) --json
expect 1 '^epilog: -: not a safetensors file' run "$here/tests/square.epi" --in - <syntax.epi
"$epilog" run "$here/tests/square.epi" --in - --out - <out.safetensors 2>said | cat >squared
that 'the outputs go to standard output' cmp -s squared again.safetensors
that 'and the report to standard error' grep -q 'naive path' said
"$epilog" bench matmul:matmul --dims M=8,N=8,K=8 --repeat 2 --out - 2>said >results
that 'results go to standard output' test "$(head -c 11 results)" = '{"version":'
that 'and the table to standard error' grep -q 'unfused ms' said
if [ -e /dev/full ]; then
    "$epilog" run "$here/tests/square.epi" --in out.safetensors --out - >/dev/full 2>said
    that 'a full standard output is an error' test $? -eq 1
fi

# what is at the place of an output stays what it is
kind() { that "$1 stays $2" test "$(stat -c %F "$1")" = "$2"; }
matmul=(run matmul --dims M=4,N=5,K=6 --no-check) bench=(bench matmul:matmul --dims M=8,N=8,K=8 --repeat 2)
mkdir apart && ln -s apart/there there
expect 0 'ms' "${matmul[@]}" --out there
kind there 'symbolic link'
that 'a link is followed' cmp -s apart/there out.safetensors
chmod 640 apart/there
expect 0 'ms' "${bench[@]}" --out there
that 'the mode is kept' test "$(stat -c %a apart/there)" = 640
that 'results are written where a link leads' grep -q fused_ms apart/there
mkfifo pipe
through() { # through ARGUMENTS...: by a pipe into a file
    timeout 60 cat pipe >piped &
    expect 0 'ms' "$@" --out pipe
    wait $!
    kind pipe fifo
}
through "${matmul[@]}"
that 'a pipe is written into' cmp -s piped out.safetensors
through "${bench[@]}"
that 'results are written into a pipe' grep -q fused_ms piped
"$epilog" "${matmul[@]}" --json --out /dev/stdout >piped
that '/dev/stdout is written through, in order' cmp -s <(head -c "$(stat -c %s out.safetensors)" piped) out.safetensors
that '/dev/stdout takes what comes after' grep -aq '"checked":false' piped
if mknod null c 1 3 2>/dev/null && : >null 2>/dev/null; then
    expect 0 'ms' "${matmul[@]}" --out null
    expect 0 'ms' "${bench[@]}" --out null
    kind null 'character special file'
fi
expect 1 'is a folder\|Is a directory' "${matmul[@]}" --out apart
(ulimit -f 1 && ! "$epilog" run matmul --dims M=400,N=5,K=6 --no-check --out limited 2>limit.txt)
that 'a limit on files is an error' grep -q 'limited: cannot be written: File too large' limit.txt

# no output takes the place of an input
cp "$here/programs/matmul.epi" text.epi
ln -s text.epi link.epi
expect 2 'the output would overwrite the program' run text.epi:matmul --dims M=4,N=5,K=6 --out text.epi
expect 2 'the output would overwrite the program' run text.epi:matmul --dims M=4,N=5,K=6 --out link.epi
expect 2 'the output would overwrite the program' bench text.epi:matmul --dims M=4,N=5,K=6 --out link.epi
that 'the texts are whole' cmp -s text.epi "$here/programs/matmul.epi"

# a signal leaves no half a file behind: caught while 64 MB are written, in one of ten attempts unless the machine is too busy
echo 'f(x[T,D], y[D]) -> z[T,D] { z = x + y }' >large.epi
for number in INT TERM; do
    # a shell without job control has its children ignore SIGINT
    env=(env --default-signal=$number) && "${env[@]}" true 2>/dev/null || { env=() && [ $number = INT ] && continue; }
    for attempt in 1 2 3 4 5 6 7 8 9 10; do
        rm -f large
        "${env[@]}" "$epilog" run large.epi --dims T=4096,D=4096 --no-check --out large >/dev/null 2>&1 &
        child=$! seen=
        while [ -z "$seen" ] && kill -0 $child 2>/dev/null; do seen=$(compgen -G '.epilog-*'); done
        [ -n "$seen" ] && kill -$number $child 2>/dev/null
        wait $child 2>/dev/null
        [ -e large ] || break
    done
    that "SIG$number leaves nothing behind" test -z "$(compgen -G '.epilog-*')"
done

if [ -e /dev/full ]; then
    for arguments in list --version --help help 'help run' 'list --json' devices man 'completion bash' 'new full' 'fmt -' \
        "check $here/programs/rope.epi" 'show matmul --dims M=4,N=5,K=6' 'show matmul --dims M=4,N=5,K=6 --json' \
        'explain matmul --dims M=4,N=5,K=6' 'grad softmax --wrt x' 'gradcheck softmax --dims T=2,D=3' \
        'run matmul --dims M=4,N=5,K=6' 'run matmul --dims M=4,N=5,K=6 --json' 'run matmul --dims M=4,N=5,K=6 --out /dev/stdout' \
        'bench matmul:matmul --dims M=4,N=5,K=6 --repeat 1'; do
        "$epilog" $arguments <"$here/programs/rope.epi" >/dev/full 2>/dev/null
        that "a full disk is noticed by $arguments" test $? -eq 1
    done
fi

# gradients that cancel, to exactly 0 in the naive computation, or are so few that it is right by luck, are not too far
for row in 'window_attention B=2,E=2,H=2,R=2,S=2 f32' 'dropout_attention B=1,E=1,H=1,R=1,S=1 bf16' 'layernorm D=1,T=1 f32' \
    'head_norm B=1,D=1,E=1,H=1,S=1 f32' 'rmsnorm D=1,T=1 f32' 'lora_linear D=3,F=3,R=3,T=3 bf16'; do
    read -r program dims type <<<"$row"
    "$epilog" grad "$program" >few.epi
    expect 0 'naive path' run few.epi --dims "$dims" --type "$type"
done

# bench
expect 0 'unfused ms' bench matmul:matmul --dims M=64,N=64,K=64 --repeat 3
expect 0 '"rows":\[{"kernel":"matmul"' bench matmul:matmul --dims M=64,N=64,K=64 --repeat 3 --json
expect 0 'unfused ms' bench matmul:matmul --dims M=64,N=64,K=64 --repeat 2 --out b.json
that 'bench writes its result file' grep -q '"fused_ms"' b.json
echo 'f(x[T,D], a[D,F], b[F,D]) -> y[T,D] { y = silu(x @ a) @ b }' >layers.epi
expect 0 '^f  *2 kernels  *[0-9.]* ' bench layers.epi --dims T=64,D=32,F=64 --repeat 2
expect 2 'needs --dims' bench matmul:matmul
expect 2 'multiples of 128' bench --size 100
expect 0 '^swiglu_backward  *128x128x128 ' bench --size 128 --repeat 1
expect 1 'no such file' bench nosuch --dims A=1 --out b.json
that 'a failed bench replaces nothing' grep -q '"fused_ms"' b.json
mkdir broken && cp syntax.epi broken/
expect 1 'expected a value' list broken
leaks expect 1 'cannot be written' bench matmul:matmul --dims M=8,N=8,K=8 --repeat 2 --out nowhere/b.json

# the library beside it: a stand-in for OpenBLAS that says of itself what it is told to
cat >openblas.c <<'END'
#include <stdlib.h>
void cblas_sgemm(void) {}
void openblas_set_num_threads(int n) { (void)n; }
char *openblas_get_config(void) { return "OpenBLAS 9.9 stand-in"; }
char *openblas_get_corename(void) { return getenv("CORE"); }
END
if ${CC:-cc} -shared -fPIC openblas.c -o libopenblas.so.0 2>/dev/null; then
    small=(bench matmul:matmul --dims M=8,N=8,K=8 --repeat 1)
    export LD_LIBRARY_PATH=$PWD${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    case $(uname -m) in x86_64) best=SkylakeX worst=Prescott ;; *) best=neoversev1 worst=armv8 ;; esac
    CORE=$best expect 0 "^raw product: OpenBLAS 9.9 stand-in, core $best$" and "^$("$epilog" devices | sed -n 's/^cpu: //p')" "${small[@]}"
    CORE=$best expect 0 "\"blas_core\":\"$best\",\"cpu\":" "${small[@]}" --json
    that 'of kernels as good as the processor nothing is said' sh -c "! CORE=$best '$epilog' ${small[*]} 2>&1 | grep note"
    that 'nor of a core that is not known' sh -c "! CORE=new '$epilog' ${small[*]} 2>&1 | grep note"
    CORE=$best OPENBLAS_CORETYPE=$worst expect 0 "note: OPENBLAS_CORETYPE=$worst is set" "${small[@]}"
    if grep -qwE 'avx|sve' /proc/cpuinfo; then
        CORE=$worst expect 0 "note: OpenBLAS takes kernels for $worst (.*), and this CPU has" "${small[@]}"
        CORE=$worst expect 0 "\"blas_doubt\":\"OpenBLAS takes kernels for $worst" "${small[@]}" --json
    fi
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH#"$PWD"}
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH#:}
    rm libopenblas.so.0
fi

# profile: a line for each kernel, and the outputs
cat >profiled.epi <<'END'
two(x[T,D], u[D,F], v[F,D], w[D,F], z[F,D]) -> y[T,D] {
    h = x + silu(x @ u) @ v
    y = h + silu(h @ w) @ z
}
joined(x[T,D], q[H,D], k[K,D]) -> (a[T,H], b[T,K]) {
    n = x*rsqrt(mean(x*x, D) + 1e-5)
    a = n @ q
    b = n @ k
}
fold(x[T,D], g: param[D], v: param[D,E], w: param[F,E]) -> y[T,F] { y = x @ (sum(v*w, E)*g) }
END
two=(profile profiled.epi:two --dims T=64,D=64,F=96 --repeat 3)
expect 0 '^1, 3 gemm  .* % .*  v[0-9]*\[T,F\]$' and '^2, 4 gemm .* h\[T,D\]$' and '^one by one the kernels take .* (medians of 3)$' \
    and '^of copy: the time of a copy' and '^of FMA: multiply-adds in f32 on registers, [1-9][0-9.]* GFLOP/s$' and '^y  *f32 .* ok$' "${two[@]}"
expect 0 '^1 .*rows .* - *- .* y\[T,D\]$' and '^y  *bf16 .* ok$' profile softmax --dims T=33,D=65 --type bf16 --repeat 2 --threads 1
that 'without a product there is no rate of products' sh -c "! '$epilog' profile softmax --dims T=4,D=4 --repeat 1 | grep 'of FMA:'"
expect 0 '^1 part prepares params, once and not at every run, and is not timed' profile profiled.epi:fold --dims T=9,D=32,E=16,F=24 --repeat 1
expect 0 '"rounds":3,.*"fma_gflops":.*"kernels":\[{"part":1,"last":1,"equal":2,"mainloop":"gemm",.*"runs":2,"ms":.*"bytes":.*"of_copy":.*"of_fma":.*"outputs":\[{"name":"y","verdict":"ok"' "${two[@]}" --json
expect 0 '"checked":false' "${two[@]}" --json --no-check
expect 0 'y .* not compared' "${two[@]}" --no-check
echo 'f(x[T]) -> y[T] { y = exp(200*x)*exp(-200*x) }' >far.epi
expect 1 'TOO FAR   [1-5] of 5 are NaN' profile far.epi --dims T=5 --repeat 1
expect 0 'of FMA' profile --help
expect 1 'the size of axis' profile profiled.epi:two
expect 2 'profile needs one' profile
expect 1 'no such file' profile nowhere.epi --dims T=4
expect 1 "no device 'gpu99'" "${two[@]}" --device gpu99
expect 2 "'profile' takes no --out" "${two[@]}" --out there.safetensors
expect 2 'cannot be both the program and --in' profile - --in - --dims T=4,D=4 <"$here/programs/softmax.epi"
expect 1 'has no input' "${two[@]}" --set zz=1
that 'profile takes 2 MB of stack' bash -c "ulimit -s 2048; '$epilog' profile softmax --dims T=3,D=7 --repeat 1 >/dev/null"

# the same on a GPU that computes nothing, whose launches take a millisecond each, with a profiler that says what it is told to
mkdir fake no
cat >fake/ncu <<'END'
#!/bin/sh
echo "$@" >>ncu.words
cat ncu.says
END
chmod +x fake/ncu
counted() { # counted RATE...: a line of CSV for each launch
    echo '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    for rate; do
        id=$((${id:--1} + 1))
        printf '"%d","k","lts__t_sector_hit_rate.pct","%%","%s"\n"%d","k","lts__t_sectors.sum","sector","1,000"\n' $id "$rate" $id
    done
}
if ${CC:-cc} -shared -fPIC "$here/tests/fake_cuda.c" -o fake/libcuda.so.1 2>/dev/null; then
    paths=$PATH
    export LD_LIBRARY_PATH=$PWD/fake${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PATH=$PWD/no:$PATH EPILOG_CACHE=${epilog%/*}/cache
    gpu=(--device gpu --no-check --repeat 2)
    expect 0 '^gpu0: stand-in$' devices
    if "$epilog" run softmax --dims T=4,D=8 --device gpu --no-check >/dev/null 2>&1; then # NVRTC is here
        command -v ncu >/dev/null || expect 0 '^L2 hit: not known: ncu was not found' profile softmax --dims T=4,D=8 "${gpu[@]}"
        PATH=$PWD/fake:$paths
        counted 90 90 40 20 60 80 >ncu.says
        expect 0 '^gpu0: stand-in$' and '^1, 3 gemm  *2.0000  50.0 % .* 50.0 %  .*\[T,F\]$' and '^2, 4 gemm  *2.0000 .* 50.0 %  .* h\[T,D\]$' \
            and '^of prod: a plain product of 4096 x 4096 x 4096' and '^of copy: a copy on the GPU' "${two[@]}" "${gpu[@]:0:3}"
        that 'ncu runs the same program' grep -q -- "--csv .* run profiled.epi:two --no-check --dims T=64,D=64,F=96 --type bf16 --device gpu " ncu.words
        expect 0 '"launches":2,"ms":2,.*"of_product":.*"l2_hit_percent":50}' "${two[@]}" "${gpu[@]:0:3}" --json
        counted 30 70 >ncu.says
        expect 0 '^1 .* rows .* 30.0 %  .*\[T\]$' and '^2 to 3 gemm .* 70.0 %  .*  a\[T,H\], b\[T,K\]$' \
            profile profiled.epi:joined --dims T=512,D=1024,H=1024,K=256 "${gpu[@]}"
        expect 0 '^L2 hit: not known: ncu saw 2 launches, but a run has 4$' "${two[@]}" "${gpu[@]:0:3}"
        echo '==ERROR== ERR_NVGPUCTRPERM - no permission' >ncu.says
        expect 0 '^L2 hit: not known: ==ERROR== ERR_NVGPUCTRPERM - no permission$' "${two[@]}" "${gpu[@]:0:3}"
        expect 0 '^L2 hit: not known: standard input can be read only once$' profile -:softmax --dims T=4,D=8 "${gpu[@]}" <"$here/programs/softmax.epi"
    fi
    PATH=$paths LD_LIBRARY_PATH=${LD_LIBRARY_PATH#"$PWD/fake"}
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH#:}
    unset EPILOG_CACHE
fi

# GPU kernels, as far as they can be looked at anywhere
norm=(norm_swiglu --dims T=256,D=512,F=1024)
for arch in sm_90a sm_80 sm_86 sm_89 sm_120; do
    expect 0 'extern "C" __global__' show "${norm[@]}" --cuda --arch $arch
    expect 0 'rows \[T\] = 256' show "${norm[@]}" --arch $arch
done
expect 0 'wgmma' show "${norm[@]}" --cuda
expect 0 'sm90_' show "${norm[@]}" --arch sm_90a
expect 0 '"micro":"sm90_' show "${norm[@]}" --arch sm_90a --json
expect 0 '"cuda":"#define' show "${norm[@]}" --cuda --json
expect 0 'open, given at each run: T up to 512' show "$here/programs/linear.epi:linear" --dims T=5,D=64,F=64 --open T=512
expect 0 'another form, for fewer rows' show "$here/programs/linear.epi:linear" --dims T=5,D=512,F=4096 --open T=8192 --arch sm_90a
expect 0 'P.open' show "$here/programs/linear.epi:linear_grad_w" --dims T=5,D=64,F=64 --open T=512 --cuda
expect 0 '^y ' run "$here/programs/linear.epi:linear" --dims T=5,D=64,F=64 --open T=512
expect 1 "more than the 4 that it was compiled for" run "$here/programs/linear.epi:linear" --dims T=5,D=64,F=64 --open T=4
expect 2 'give its size in --dims too' run "$here/programs/linear.epi:linear" --dims D=64,F=64 --open T=4
expect 2 'must be a 64-bit integer' run "$here/programs/linear.epi:linear" --dims T=5,D=64,F=64 --open T=x
for rounding in exact packed; do expect 0 "($rounding)" show "${norm[@]}" --arch sm_90a --rounding $rounding; done
expect 0 'sm90_128x64_c1_d' show "${norm[@]}" --arch sm_90a --config sm90_128x64_c1_d
"$epilog" show "${norm[@]}" --cuda >all.cu
"$epilog" show "${norm[@]}" --cuda --brief >brief.cu
that '--cuda prints nothing but the text' test "$(grep -c '^norm_swiglu\|^mainloop' all.cu)" -eq 0
that '--brief begins with what was written for the program' grep -q '^// ---- written' <(head -1 brief.cu)
that '--brief has a part for every launch' test "$(grep -c '^// ---- written' brief.cu)" -eq "$(grep -c '^// ---- written' all.cu)"
that 'learned positions are one launch' test "$("$epilog" show embedding_learned --arch sm_90a \
    --dims V=100,D=64,P=16,B=2,S=16 | grep -c ^launch)" -eq 1
that '--brief leaves the mainloop out' test "$(grep -c 'the mainloop\|^#define EPI_FAST' brief.cu)" -eq 0
that '--brief leaves the template of a scatter out' test "$("$epilog" show embedding:embedding_grad --dims V=9,T=5,D=8 --cuda --brief | grep -c template)" -eq 0
that '--brief is a part of the whole' test "$(wc -l <brief.cu)" -lt "$(wc -l <all.cu)"
expect 2 'no configuration .nosuch.; there are sm90_.*any_64x64, attention_.*_d64' show "${norm[@]}" --arch sm_90a --config nosuch
causal=(causal_attention --dims B=1,H=2,S=256,R=256,E=64,F=64)
expect 0 '^attention_128x128_d64: ' show "${causal[@]}" --arch sm_90a --config attention_128x128_d64
expect 1 'attention_pair_128x64_d64. does not fit this attention: it is for another form' show "${causal[@]}" --arch sm_90a --config attention_pair_128x64_d64
expect 1 'sm90_128x64_c1_d. is for products, but this is attention' show "${causal[@]}" --arch sm_90a --config sm90_128x64_c1_d
expect 1 'rows_128x2. is for rows, but this is attention' show "${causal[@]}" --arch sm_90a --config rows_128x2
expect 1 'attention_128x128_d64. is for attention, but this is a product' show "${norm[@]}" --arch sm_90a --config attention_128x128_d64
expect 2 'needs sm_80, sm_86' show "${norm[@]}" --cuda --arch sm_42
cat >step.epi <<'end'
step(x[T,D], w[V,D], dy[T,V]) -> (y[T,D], dw[V,D]) {
    z = exp(x @ w)
    dz = dy*z/sum(z, V)
    y = dz @ w
    dw = dz @ x
}
end
step=(step.epi --dims T=6000,D=16,V=256 --threads 2)
expect 0 'MB without a budget; parts . to . go through . slabs of' show "${step[@]}" --memory 6M
expect 0 '"slabs": *[2-9]' show "${step[@]}" --memory 6M --json
expect 0 'dw  *f32' run "${step[@]}" --memory 6M
expect 1 'is too small: step needs' run "${step[@]}" --memory 1k
expect 2 'needs a number of bytes, such as' show "${step[@]}" --memory much
echo 'lora(x[T,D], w: param[F,D], a: param[F,R], b: param bf16[R,D]) -> y[T,F] { y = x @ (w + a @ b) }' >params.epi
params=(params.epi --dims T=64,D=32,F=48,R=8 --type bf16)
expect 0 'computed once, not in every run: .* MB, by part 1$' and 'prepare again when one of these changes: w, a, b$' and 'in 1 kernel plus 1 that prepares' show "${params[@]}"
expect 0 '"prepared_bytes": *3072' show "${params[@]}" --json
expect 0 'computed once and not in every run: ' explain "${params[@]}"
expect 0 'y  *bf16' run "${params[@]}"
expect 0 'y  *bf16' run "${params[@]}" --algebra written
expect 0 'fused' bench "${params[@]}" --repeat 1
expect 0 'w: param bf16\[F,D\]) -> y\[T,F\] {' fmt - <<<'f(x[T,D],w:param  bf16[F,D])->y[T,F]{y=x@w}'
expect 1 "'y' is an output; only inputs can be declared param" check - <<<'f(x[T]) -> y: param[T] { y = x }'
expect 2 'needs free or written' show "${norm[@]}" --algebra loose
echo 'f(x[T,D], a[T,E], wo[D,E], g[D], w[F,D]) -> z[T,F] { h = x + a @ wo  z = (h*rsqrt(mean(h*h, D))*g) @ w }' >delayed.epi
expect 0 '^rewritten: delay 1.*; 2 parts instead of 3' show delayed.epi --dims T=1024,D=1024,E=1024,F=1024
that 'as written it is not rewritten' test -z "$("$epilog" show delayed.epi --dims T=1024,D=1024,E=1024,F=1024 --algebra written | grep rewritten)"

echo 'f(x[T]) -> y[T] { y = sqrt(0*x - 1) }' >none.epi
expect 1 '12 derivatives checked, in f64: not compared$' gradcheck none.epi --dims T=8
expect 1 '"ok":false,"compared":12,.*"verdict":"not compared"' gradcheck none.epi --dims T=8 --json

# what others call a type, words that are nearly right, texts and tensors without an end
expect 2 "needs f32, bf16 or f16; got 'half'; did you mean f16?" run matmul --dims M=1,N=1,K=1 --type half
expect 2 "got 'bfloat16'; did you mean bf16?" gradcheck matmul --dims M=1,N=1,K=1 --type bfloat16
expect 2 "got 'fp32'; did you mean f32?" show matmul --dims M=1,N=1,K=1 --type fp32
expect 2 "or f16; got 'double'$" run matmul --dims M=1,N=1,K=1 --type double
expect 2 "'fp8' is not a type; did you mean e4m3?" run matmul --dims M=1,N=1,K=1 --types a=fp8
expect 2 "got 'fusd'; did you mean fused?" run matmul --dims M=1,N=1,K=1 --path fusd
expect 1 "'float16' is not a type; did you mean f16?" check - <<<'f(x: float16[T]) -> y[T] { y = x }'
if [ -e /dev/zero ]; then
    for command in check fmt run show explain grad gradcheck; do
        expect 1 '/dev/zero: larger than 64 MB, so not a file of programs' $command /dev/zero
    done
    expect 1 "/dev/zero: byte 8: the header must begin with '{'" run matmul --in /dev/zero
    expect 1 '/dev/urandom: not a safetensors file: a header of' run matmul --in /dev/urandom
fi

# tensors that are not what the program takes, and numbers that are none
put() { tensors x.safetensors "{\"x\":{\"dtype\":\"$1\",\"shape\":[$2],\"data_offsets\":[0,$3]}}" "$4"; } # put TYPE SHAPE BYTES ELEMENTS
echo 'f(x[T,D], n: i32) -> y[T] { y = sum(x, D) + n }' >sums.epi
put F32 '1,2,1' 8 '\0\0\0\0\0\0\0\0'
expect 1 "x.safetensors: 'x' is \[1,2,1\], and x\[T,D\] has 2 axes" run sums.epi --in x.safetensors --set n=1
put BOOL '1,2' 2 '\1\0'
expect 1 'is of dtype BOOL; Epilog reads F32, BF16, F16, I32, F64, I64, F8_E4M3' run sums.epi --in x.safetensors --set n=1
put F32 '1,2' 8 '\0\0\xc0\x7f\0\0\0\0'
expect 0 "note: x.safetensors: 1 of 2 elements of 'x' are NaN or infinite" run sums.epi --in x.safetensors --set n=1
put F32 '1,2' 8 '\0\0\x80\x4f\0\0\0\0'
expect 0 "note: x.safetensors: 1 of 2 elements of 'x' are too large for f16 and became infinite" run sums.epi --in x.safetensors --set n=1 --type f16
expect 1 "'n' is an integer, but 1.5 is not a value of i32" run sums.epi --dims T=1,D=2 --set n=1.5
expect 1 "'n' is an integer, but 3000000000 is not a value of i32" run sums.epi --dims T=1,D=2 --set n=3000000000
echo 'f(n: i32) -> m: i32 { m = n }' >sums.epi
expect 0 '"scale":16777217,' run sums.epi --set n=16777217 --json --no-check
expect 1 'the name of the output file is empty' run sums.epi --out ''

# what is said of an output: ok, TOO FAR or not compared
cat >verdict.epi <<'END'
nothing(x[T]) -> y[T] { y = 0/0*x }
of_integers(x[T]) -> y: i8[T] { y = 0/0*x }
beyond(x[T]) -> y[T] { y = exp(300 + x) }
both(x[T]) -> (y[T], z[T]) { y = 2*x  z = sqrt(0*x - 1) }
part(x[T]) -> y[T] { y = log(index(T) - 2 + 0*x) }
overflow(x[T]) -> y[T] { y = exp(200*x)*exp(-200*x) }
no_number(x[T]) -> y[T] { y = log(exp(-200*x)) }
hot(x[T]) -> y: f16[T] { y = (300*x)*(300*x) }
lost(x[T]) -> y: f16[T] { y = exp(300*x)*exp(-250*x) }
positions(t: i32[B,T], v[B,T], c: f32[V]) -> y: f32[B,K] { y = gather(c, 1 + gather(t, topk(v, T, K=3), T), V) }
largest(v[B,T], t: i32[B,T]) -> y: i32[B] { y = max(gather(t, topk(v, T, K=3), T), K) }
beyond_f32(n: i32[T]) -> y: i32[T] { y = (1000*n + 1)*(1000*n + 1) }
best(x[T,K], w[V,K]) -> i: i32[T] { i = argmax(x @ w, V) }
steps(x[T,K], w[V,K]) -> q: i32[T,V] { q = round(400000*(x @ w)) }
END
expect 0 '^y  *f32 .* ok$' and '^z  *f32  *0  *-  *-  *-  not compared: no f64 result there fits f32   4 of 4 are NaN$' run verdict.epi:both --dims T=4
expect 0 '"name":"y","verdict":"ok",.*"ok":true},{"name":"z","verdict":"not compared",.*"compared":0,.*"ok":false}' run verdict.epi:both --dims T=4 --json
expect 0 'not compared: no f64 result there fits f32' run verdict.epi:nothing --dims T=4
expect 0 'not compared: it has no elements' run matmul --dims M=0,N=4,K=4
expect 0 '^y  *i8 .* ok$' run verdict.epi:of_integers --dims T=4
expect 0 'ok   4 of 4 are infinite' run verdict.epi:beyond --dims T=4
expect 0 'ok, 1 of 4 compared: the other f64 results do not fit f32   2 of 4 are NaN' run verdict.epi:part --dims T=4
expect 1 'TOO FAR   4 of 4 are NaN' and '^    y\[[0-3]\] is NaN, but 1 in f64$' run verdict.epi:overflow --dims T=4
expect 1 '^    y\[[0-3]\] is -inf, but -[0-9.]* in f64$' run verdict.epi:no_number --dims T=4
expect 1 '"verdict":"TOO FAR",.*"worst":"y\[[0-3]\]","got":' run verdict.epi:no_number --dims T=4 --json
expect 0 'ok   [1-9][0-9]* of 64 are infinite' run verdict.epi:hot --dims T=64
expect 0 'not compared: no f64 result there fits f16   4 of 4 are NaN' run verdict.epi:lost --dims T=4
for type in bf16 f16; do
    expect 0 '^y  *f32 .* ok$' run verdict.epi:positions --dims B=4,T=5000,V=5001 --type $type
    expect 0 '^y  *i32  *4709  *0.000e+00  *equal .* ok$' run verdict.epi:largest --dims B=4,T=5000 --type $type
done
expect 0 '^y  *i32 .*  *0.000e+00  *equal .* ok$' run verdict.epi:beyond_f32 --dims T=400
that 'a choice that roundings may change is no error' eval '! "$epilog" run verdict.epi:best --dims T=200,K=64,V=500 --type bf16 | grep "TOO FAR"'
expect 0 '^q  *i32 .*; [0-9]* others differ within rounding$' run verdict.epi:steps --dims T=30,K=64,V=50 --type bf16
expect 0 '^i  *i32  *[0-9]*  *[0-9.e+-]*  *equal ' run verdict.epi:best --dims T=9,K=64,V=50

# paths and seeds
error_of() { "$epilog" run matmul --dims M=3,N=4,K=5 --path "$1" | awk '/^c / { print ($4 '"$2"') }'; }
that 'the naive path has the naive error' test "$(error_of naive '== $6')" = 1
that 'the reference is rounded once' test "$(error_of reference '<= 2^-24')" = 1
for seed in 1 1 2; do
    "$epilog" run matmul --dims M=3,N=4,K=5 --seed $seed --no-check --out - 2>/dev/null | cksum
done >sums
that 'a seed tells the inputs' test "$(uniq sums | wc -l)" -eq 2
expect 2 'needs packed or exact' show "${norm[@]}" --arch sm_90a --rounding loose
expect 2 'use either --arch or --device' show "${norm[@]}" --arch sm_90a --device cpu
expect 2 'no CUDA source' show "${norm[@]}" --cuda --device cpu
expect 2 'add --cuda' show "${norm[@]}" --brief
expect 2 'add --dims' show norm_swiglu --cuda
expect 2 "'run' takes no --arch; see 'epilog help run'" run "${norm[@]}" --arch sm_90a
for option in '--config any_64x64' '--rounding exact'; do expect 2 'is for GPU kernels' run "${norm[@]}" $option; done
expect 2 'for CPU kernels' show "${norm[@]}" --arch sm_90a --micro plain
expect 1 "no device 'gpu99'" show "${norm[@]}" --device gpu99

# without a GPU there is a reason, the same everywhere
why=$("$epilog" devices | sed -n 's/^no GPU: //p')
if [ -n "$why" ]; then
    expect 0 '"gpu":false,"why":"' devices --json
    for command in run bench show; do
        expect 1 "no GPU: ${why%%(*}" $command matmul:matmul --dims M=4,N=5,K=6 --device gpu
    done
    expect 1 "no GPU: ${why%%(*}" bench --device gpu
else
    expect 0 'best of' run matmul:matmul --dims M=64,N=64,K=64 --device gpu
    expect 0 'vs plain' bench matmul:matmul --dims M=64,N=64,K=64 --device gpu --repeat 2
fi

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
