"""A page from a header of C: comments that begin a line become prose, the code between them blocks, and lines of dashes headings."""
import re


def comment(text):
    """The paragraphs of a comment as Markdown: what is indented by four is code, what begins with a dash a list."""
    text = re.sub(r"\s*\*/\s*$", "", text[2:])
    lines = [re.sub(r"^ \*( |$)", "", line) for line in text.strip().split("\n")]
    out = []
    for part in re.split(r"\n\s*\n", "\n".join(lines)):
        if part.startswith("    "):
            out.append("```c\n" + re.sub(r"(?m)^    ", "", part) + "\n```")
            continue
        part = re.sub(r"(?m)^ +", "", part)
        part = re.sub(r"(?m)^(?!- )(.*\n)(?=- )", r"\1\n", part, count=1)  # a list after a paragraph
        part = re.sub(r"\n(?!- |\n)", " ", part).replace("\n ", "\n\n")
        out.append(re.sub(r"(?<![\w`])(epi_\w+(?:\.h)?|EPI_\w+|NULL)(?![\w`])", r"`\1`", part))
    return "\n\n".join(out)


def names(code):
    """What a block of code declares."""
    found = re.findall(r"(?m)^(?:EPI_API|static inline)\b[^;{]*?\b(epi_\w+)\(", code)
    found += re.findall(r"(?m)^typedef (?:struct|enum) (epi_\w+)\b", code) + re.findall(r"(?m)^#define (EPI_\w+)\(", code)
    found += re.findall(r"(?m)^enum \{ (EPI_\w+)", code)
    return list(dict.fromkeys(found))


def page(title, text):
    """The page of a header, without its guards."""
    intro, rest = re.match(r"(?s)(/\*.*?\*/)(.*)", text).groups()
    intro = re.sub(rf"^`?{re.escape(title)}`?: ", "", comment(intro))
    rest = re.sub(r"(?m)^#(?:if|ifndef|ifdef|else|endif|include|pragma)\b.*\n", "", rest)
    rest = re.sub(r'(?m)^#define EPILOG_\w*H\n|^#define EPI_API.*\n|^extern "C" \{\n|^\}\n(?=\s*\Z)', "", rest)
    out, said = [f"# {title}\n\n{intro[0].upper()}{intro[1:]}\n"], []
    for part in re.split(r"(?ms)(^/\*.*?\*/[ \t]*$)", rest):
        mark = re.match(r"/\* -+ (.*?) -+ \*/", part)
        if mark:
            out.append(f"## {mark.group(1)[0].upper()}{mark.group(1)[1:]}\n")
        elif part.startswith("/*"):
            said.append(comment(part))
        for code in [] if part.startswith("/*") else re.split(r"\n\s*\n", part):
            if not code.strip():
                continue
            declared = names(code)
            if declared:
                out.append("### " + ", ".join(declared[:3]) + (" …" if len(declared) > 3 else "") + "\n")
            out += said + ["```c\n" + code.strip("\n").replace("EPI_API ", "") + "\n```\n"]
            said = []
    return "\n\n".join(out + said) + "\n"
