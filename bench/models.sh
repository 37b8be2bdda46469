#!/bin/sh
# Steps of whole models on a GPU, beside torch.compile: what bench/notes/results.md and docs/results.md have of them, file by file.
#
#   bench/models.sh [-o FOLDER] [-w SECONDS] [NAME...]     llama gpt2 qwen 8b fp8 recurrence layers; all of them without names
#
# First the caches of the compilers are filled, side by side on all processors and each with so many seconds (120); then one
# file after the other is timed, alone. A run that was cut off leaves the files before. FOLDER is build/models without -o;
# files begin with $GPU, or h200. Of the smallest model losses of 50 steps are held beside five seeds, too.
cd "$(dirname "$0")/.." || exit 1
out=build/models warm=120 gpu=${GPU:-h200}
while getopts ho:w: option; do
    case $option in
    o) out=$OPTARG ;;
    w) warm=$OPTARG ;;
    h) sed -n 2,8p "$0"; exit 0 ;;
    *) sed -n 2,8p "$0" >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || set -- llama gpt2 qwen 8b recurrence fp8 layers
mkdir -p "$out" || exit 1
export PYTHONPATH="$PWD/python${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
log=$(mktemp -d) failed= limit=

# The command of a name, with its options: $1 the name, then options that are added.
command_of() {
    name=$1
    shift
    case $name in
    llama) set -- torch_llama.py --sides "plain, compiled;apply;apply, fp8" "$@" ;;
    gpt2) set -- torch_llama.py --model gpt2 --sides "plain, compiled;apply" "$@" ;;
    qwen) set -- torch_llama.py --model qwen3-0.6b --sides "plain, compiled;apply" "$@" ;;
    8b) set -- torch_llama.py --model llama-8b --sides "plain, compiled;apply" "$@" ;;
    fp8) set -- torch_fp8_layer.py --sides "plain, compiled;apply;apply, fp8" "$@" ;;
    recurrence) set -- torch_recurrence.py "$@" ;;
    layers) set -- torch_layers.py "$@" ;;
    esac
    script=$1
    shift
    $limit python3 "bench/$script" "$@"
}
file_of() {
    case $1 in
    fp8) echo "$out/$gpu-fp8-layer.json" ;;
    llama | gpt2 | qwen | 8b | recurrence | layers) echo "$out/$gpu-$1.json" ;;
    *) echo "models.sh: there is no $1, but llama gpt2 qwen 8b fp8 recurrence layers" >&2; return 2 ;;
    esac
}

wanted=" $* "
for name; do
    file_of "$name" >/dev/null || exit 2
done
# Three at a time, as all of them would not fit into the GPU's memory.
for lane in "llama 8b" "qwen fp8" gpt2; do
    for name in $lane; do
        case $wanted in
        *" $name "*) limit="timeout $warm" command_of "$name" --rounds 1 --steps 1 >"$log/$name" 2>&1 ;;
        esac
    done &
done
wait
echo "caches are filled; what was said is in $log"
for name; do
    echo "== $name"
    [ "$name" = gpt2 ] && more="--losses 50" || more=
    command_of "$name" $more --out "$(file_of "$name")" || failed="$failed $name"
done
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
