" Vim syntax file: programs of Epilog. The lists are held against the language's tables by tests/test_docs.c.
if exists("b:current_syntax")
  finish
endif

syn match epilogOperator /->\|\*\*\|\/\/\|[<>=!]=\|[-+*/%@<>=]/
syn match epilogNumber /\<\d\+\%(\.\d*\)\?\%([eE][-+]\?\d\+\)\?\>\|\.\d\+\%([eE][-+]\?\d\+\)\?\>/
syn match epilogAxis /\<[A-Z][A-Za-z0-9_]*\>/
" a name and its inputs at the beginning of a line are a program
syn match epilogProgram /^\s*\zs\h\w*\ze\s*(/
syn match epilogWord /\<\%(\%(and\|or\|not\|inf\|cotangent\|param\)\>\|by\ze\s\+\h\w*\s*{\)/
syn match epilogType /\<\%(f32\|bf16\|f16\|i32\|i64\|f64\|e4m3\|e5m2\|i8\|u8\|i4\|u4\)\>/
" operations are words only before a parenthesis
syn match epilogOperation /\<\%(abs\|again\|argmax\|argsort\|backward\|bf16\|e4m3\|e5m2\|f32\|f64\|i32\|i64\|i8\|u8\|i4\|u4\|clamp\|concat\|cos\|cumsum\|dither\|erf\|exp\|exp2\|f16\|floor\|gather\|gelu\|gelu_tanh\|
      \grad\|halves\|index\|join\|keep\|log\|log1p\|log2\|log_softmax\|logsumexp\|max\|mean\|min\|
      \offsets\|pairs\|pow\|rank\|relu\|rename\|repeat\|round\|rsqrt\|scan\|scan_back\|scatter\|segments\|shift\|sigmoid\|sign\|silu\|sin\|size\|softmax\|
      \softplus\|sqrt\|sum\|tanh\|topk\|uniform\|update\|var\|where\)\ze\s*(/
syn match epilogComment /#.*$/ contains=epilogTodo,@Spell
syn keyword epilogTodo TODO FIXME contained

hi def link epilogComment Comment
hi def link epilogTodo Todo
hi def link epilogNumber Number
hi def link epilogAxis Identifier
hi def link epilogProgram Function
hi def link epilogWord Keyword
hi def link epilogType Type
hi def link epilogOperation Special
hi def link epilogOperator Operator

let b:current_syntax = "epilog"
