"""What the site adds to MkDocs: pages from outside of docs/, links as the repository has them, and colours for programs.

Pages of the repository link to each other by relative paths, as a forge shows them. Here each link is resolved against the file
that it is in: to a page of the site, else to the repository's address (`extra.repository`), else it becomes plain text."""
import os
import re

import pygments.lexers._mapping
from mkdocs.structure.files import File

import epi_lexer  # Pygments finds it by its name
import header

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
pygments.lexers._mapping.LEXERS["EpilogLexer"] = (epi_lexer.__name__, "Epilog", ("epi",), ("*.epi",), ())

# What blocks of the pages are written in, where their word is not a language's name (tests/test_docs.c has the words).
LANGUAGES = {"epi-error": "epi", "epi-value": "epi", "grad": "epi", "grad-forward": "epi", "rewritten": "epi", "plan": "text"}


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def programs():
    """All programs that come with Epilog, a section for each file."""
    out = ["# Programs that come with Epilog\n\nEvery program below can be called by name from any other source file, and run by the command: "
           "`epilog run softmax`. The files are in `programs/`.\n"]
    for name in sorted(os.listdir(os.path.join(ROOT, "programs"))):
        out.append(f"## {name}\n\n```epi\n{read('programs/' + name).strip()}\n```\n")
    return "\n".join(out)


# The pages that are not in docs/: where the site has them, and the file that they come from, with its text.
def outside():
    yield "index.md", "README.md", read("README.md")
    for name in ("contributing", "changelog", "security"):
        yield f"{name}.md", f"{name.upper()}.md", read(f"{name.upper()}.md")
    for name in sorted(os.listdir(os.path.join(ROOT, "bench/notes"))):
        path = f"bench/notes/{name}"
        yield f"notes/{name}", path, read(path)
    yield "programs.md", "programs", programs()
    yield "c.md", "include/epilog.h", header.page("epilog.h", read("include/epilog.h"))
    yield "c-io.md", "include/epilog_io.h", header.page("epilog_io.h", read("include/epilog_io.h"))


sources = {}  # a file of the repository: where the site has it


def on_config(config):
    if config.extra["repository"]:
        config.extra["social"] = [{"icon": "material/source-repository", "link": config.extra["repository"], "name": "The repository"}]
    return config


def on_files(files, config):
    sources.clear()
    for file in files:
        sources[f"docs/{file.src_uri}"] = file.src_uri
    for uri, source, text in outside():
        sources[source] = uri
        files.append(File.generated(config, uri, content=text))
    for name in os.listdir(os.path.join(ROOT, "programs")):
        sources[f"programs/{name}"] = "programs.md#" + name.replace(".", "")
    for name in ("favicon.svg", "extra.css"):
        files.append(File.generated(config, name, content=read(f"website/{name}")))
    return files


def link(match, page, source, config):
    """A link of the page that came from `source`, as the site has it."""
    bang, words, target = match.groups()
    if re.match(r"[a-z]+:|#", target):
        return match.group()
    path, _, anchor = target.partition("#")
    words = re.sub(r"^(?:docs/)?([\w-]+)\.md$", r"\1", words)  # a page is called by its name
    path = os.path.normpath(os.path.join(os.path.dirname(source), path)).replace(os.sep, "/")
    anchor = "#" + anchor if anchor else ""
    if path in sources:
        return f"{bang}[{words}]({os.path.relpath(sources[path], os.path.dirname(page) or '.')}{anchor})"
    if not os.path.exists(os.path.join(ROOT, path)):
        raise SystemExit(f"{source}: the link to {target} leads nowhere")
    repository = config.extra["repository"]
    if repository:
        kind = "tree" if os.path.isdir(os.path.join(ROOT, path)) else "blob"
        return f"{bang}[{words}]({repository.rstrip('/')}/{kind}/main/{path}{anchor})"
    plain = words.strip("`")
    return f"`{plain}`" if plain.rstrip("/") in (path, os.path.basename(path)) else f"{words} (`{path}`)"


def prose(text, page, source, config):
    """Text between blocks of code: links, the marks of tables, and lists as Python-Markdown wants them."""
    text = re.sub(r"<!--.*?-->\n?", "\n", text, flags=re.S)
    text = re.sub(r"(!?)\[((?:[^][`]|`[^`]*`)+)\]\(([^()\s]+)\)", lambda m: link(m, page, source, config), text)
    text = re.sub(r"(?m)^((?! *[-*|#] | *\d+\. |  ).+\n)(?=(?:[-*]|\d+\.) )", r"\1\n", text)  # a list after a paragraph
    return re.sub(r"(?m)^ {2,3}(?=[-*] )", "    ", text)  # a list in a list


def on_page_markdown(markdown, page, config, files):
    uri = page.file.src_uri
    source = next((path for path, at in sources.items() if at == uri), uri)
    out = []
    for i, part in enumerate(re.split(r"(?ms)^(```.*?^```$)", markdown)):
        if i % 2:
            info, body = part[3:].split("\n", 1)
            word = info.split(" ")[0]
            out.append(f"```{LANGUAGES.get(word, word)}\n{body}")
        else:
            out.append(prose(part, uri, source, config))
    return "".join(out)


def on_page_content(html, page, config, files):
    """In a cell of a table a bar is written \\|, and Python-Markdown leaves that in code."""
    return re.sub(r"(?s)<td.*?</td>", lambda cell: cell.group().replace("\\|", "|"), html)
