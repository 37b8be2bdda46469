#!/bin/bash
# test_examples.sh FOLDER: the examples of that folder, built, given what is no model, and nowhere to print to. None of them
# ends with 0 then, or says nothing.
folder=$(realpath "$1")
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
passed=0 failed=0

# expect STATUS PATTERN COMMAND...: its status, and what it prints (on either stream).
expect() {
    local want=$1 pattern=$2 out status
    shift 2
    out=$("$@" 2>&1)
    status=$?
    if [ $status -eq "$want" ] && grep -q -e "$pattern" <<<"$out"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAILED %s\n  status %d, expected %d and "%s"; it printed:\n%s\n' "$*" $status "$want" "$pattern" "$out"
    fi
}

# tensor NAME ROWS [COLUMNS]: one more of the file: f32, all of them 0.25.
header='' bytes=0
tensor() {
    local count=$(($2 * ${3:-1})) begin=$bytes
    bytes=$((bytes + 4 * count))
    header+="${header:+,}\"$1\":{\"dtype\":\"F32\",\"shape\":[$2${3:+,$3}],\"data_offsets\":[$begin,$bytes]}"
}

# model FILE [BITS]: a Llama of one layer; the first number of its queries' matrix has other bits.
model() {
    local l=model.layers.0 name at
    header='' bytes=0
    tensor $l.self_attn.q_proj.weight 8 8
    for name in k v o; do tensor $l.self_attn.${name}_proj.weight 8 8; done
    tensor $l.mlp.gate_proj.weight 16 8
    tensor $l.mlp.up_proj.weight 16 8
    tensor $l.mlp.down_proj.weight 8 16
    for name in $l.input_layernorm $l.post_attention_layernorm model.norm; do tensor $name.weight 8; done
    tensor model.embed_tokens.weight 10 8
    header="{$header}"
    while [ $((${#header} % 8)) -ne 0 ]; do header+=' '; done
    {
        printf "\\x$(printf %x $((${#header} % 256)))\\x$(printf %x $((${#header} / 256)))\\0\\0\\0\\0\\0\\0%s" "$header"
        printf "${2:-\\0\\0\\x80\\x3e}"
        for ((at = 4; at < bytes; at += 4)); do printf '\0\0\x80\x3e'; done
    } >"$1"
}

# config KEY VALUE: what the model is, but for one setting.
config() {
    sed "s|\"$1\":[^,}]*|\"$1\":$2|" >config.json <<'END'
{"model_type":"llama","hidden_act":"silu","hidden_size":8,"intermediate_size":16,"num_hidden_layers":1,
"num_attention_heads":2,"num_key_value_heads":2,"vocab_size":10,"max_position_embeddings":64,"rms_norm_eps":1e-5,
"rope_theta":10000.0,"tie_word_embeddings":true}
END
}

model sound.safetensors
model nan.safetensors '\0\0\xc0\x7f'
model infinite.safetensors '\0\0\x80\x7f'
config
expect 0 '^0 0 0' "$folder/llama" config.json sound.safetensors -- 3 5
expect 0 'nats a token' "$folder/llama" config.json sound.safetensors -- 0 5 6
for bad in nan infinite; do
    expect 1 "the model's scores are NaN or infinite" "$folder/llama" config.json $bad.safetensors -- 3 5
    expect 1 'gives token 0 no score' "$folder/llama" --temperature 1 config.json $bad.safetensors -- 3 5
    expect 1 'gives token 1 no probability' "$folder/llama" config.json $bad.safetensors -- 0 5 6
    for bits in 4 8; do
        expect 1 'self_attn.q_proj.weight has NaN, an infinity' "$folder/quantise" $bits 8 $bad.safetensors small.safetensors
    done
done
expect 0 'matrices in few bits' "$folder/quantise" 8 8 sound.safetensors small.safetensors
expect 0 '^0 0' "$folder/llama" config.json small.safetensors -- 2 5
refuse() { # refuse KEY VALUE PATTERN
    config "$1" "$2"
    expect 1 "$3" "$folder/llama" config.json sound.safetensors -- 3 5
}
refuse rms_norm_eps -1 'the epsilon of the norms is -1, which'
refuse rms_norm_eps 1e999 'the epsilon of the norms is inf'
refuse rope_theta 0 'the base of the angles is 0, which is not positive'
refuse rope_theta -5 'the base of the angles is -5'
refuse num_hidden_layers -1 'no number of anything'
refuse rope_theta '1e4,"rope_scaling":{"rope_type":"llama3","factor":-8}' 'scaled by what is not positive'

# --help is usage, on standard output; wrong arguments are one line on standard error, and status 2
misused() { # misused EXAMPLE ARGUMENTS...
    local name=$1 said
    shift
    said=$("$folder/$name" "$@" 2>&1 >printed)
    expect 2 "^$name: .*; see $name --help$" "$folder/$name" "$@"
    expect 0 '^1 0$' echo "$(wc -l <<<"$said") $(wc -c <printed)"
}
for name in linear quantise files delayed_norm gpu llama train; do
    expect 0 "^usage: $name" "$folder/$name" --help
    expect 0 '^0$' echo "$("$folder/$name" --help 2>&1 >/dev/null | wc -c)"
    expect 0 '' "$folder/$name"
    misused $name --frob
done
for name in linear delayed_norm gpu files; do misused $name one; done
for words in '6 32 a b' '8 3 a b' '8x 32 a b' '8 32 a'; do misused quantise $words; done
expect 1 'none.safetensors' "$folder/quantise" 8 32 none.safetensors out.safetensors
expect 1 'none.safetensors' "$folder/files" none.safetensors out.safetensors
for words in 'config.json sound.safetensors' 'config.json sound.safetensors -- 3' 'config.json sound.safetensors -- x 5' '-- 3 5' \
    'config.json sound.safetensors -- 0 5' '--top-p 2 config.json sound.safetensors -- 3 5'; do
    misused llama $words
done
expect 1 'none.json' "$folder/llama" none.json sound.safetensors -- 3 5
for words in '--state' 'text 0' 'text 1 40' 'text 1 1 15' 'text 1 1 16 5' '--sample x'; do misused train $words; done
expect 1 'none' "$folder/train" none 1 1 16

# nowhere to print to
config
nowhere() { "$@" >/dev/full; }
if [ -e /dev/full ]; then
    for name in linear quantise files delayed_norm gpu llama; do
        expect 1 'standard output could not be written' nowhere "$folder/$name"
    done
    expect 1 'standard output could not be written' nowhere "$folder/llama" config.json sound.safetensors -- 3 5
    expect 1 'standard output could not be written' nowhere "$folder/llama" config.json sound.safetensors -- 0 5 6
    head -c 4000 /dev/zero | tr '\0' 'a' >text
    expect 1 'standard output could not be written' nowhere "$folder/train" text 1 1 16
fi
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
