"""Colours for Epilog's programs, in Pygments' way. Operations are known by the parenthesis after them, axes by their capital letter."""
from pygments.lexer import RegexLexer, words
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, Text

__all__ = ["EpilogLexer"]

TYPES = "f32 bf16 f16 f64 i32 i64 e4m3 e5m2 i8 u8 i4 u4".split()


class EpilogLexer(RegexLexer):
    name = "Epilog"
    aliases = ["epi"]
    filenames = ["*.epi"]
    tokens = {
        "root": [
            (r"#.*$", Comment.Single),
            (r"\s+", Text),
            (words("and or not inf cotangent param by".split(), prefix=r"\b", suffix=r"\b"), Keyword),
            (words(TYPES, prefix=r"\b", suffix=r"\b"), Keyword.Type),
            (r"[A-Za-z_]\w*(?=\s*\()", Name.Function),
            (r"[A-Z]\w*", Name.Class),
            (r"[A-Za-z_]\w*", Name),
            (r"(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", Number),
            (r"->|\*\*|//|[<>=!]=|[-+*/%@<>=]", Operator),
            (r"[][(){},:;.]", Punctuation),
        ]
    }
