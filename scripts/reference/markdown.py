"""The parts of Markdown that the pages share."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]

# What comments and docstrings write as plain text, and a page as code. These are names with an
# underscore, options, placeholders, URLs, and quoted texts with characters of Markdown. Names in
# CamelCase are code if they have a link. Code and the targets of links stay as they are.
_NAME = re.compile(
    r"`+[^`]+`+|\]\([^)]*\)"
    r"|(?P<quote>[\"'])[^\"'\s]*[{}*_\\][^\"'\s]*(?P=quote)|\{[^}\s]*\}"
    r"|\b(?:sqlite|crate|opensearch|elasticsearch)://[^\s;]*[^\s;.,)]|(?<![\w-])--[a-z][a-z-]*[a-z]|\bidalloc\[\w+\]"
    r"|\b[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)+\b|\b(?:google|grpc|idalloc|Mysqlx)(?:\.\w+)+|\b[A-Z][a-z]+[A-Z]\w+(?:\.\w+)?"
)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. No cell may have the character |: renderers escape it in different ways."""
    lines = [columns, ["---"] * len(columns), *rows]
    if any("|" in cell for line in lines for cell in line):
        raise ValueError(f"a cell has the character |: {[line for line in lines if '|' in ' '.join(line)]}")
    return "\n".join(f"| {' | '.join(' '.join(cell.split()) for cell in line)} |" for line in lines)


def block(language: str, content: str) -> str:
    """Return a block of code."""
    return f"```{language}\n{content.strip()}\n```"


def prose(text: str, links: Mapping[str, str] | None = None) -> str:
    """Return a text of a comment or a docstring as Markdown.

    Args:
        text: The text; names in it are plain, or in single or double backquotes.
        links: The targets of names.
    """
    known = links or {}

    def mark(match: re.Match[str]) -> str:
        found = match[0]
        if found.startswith("]"):
            return found
        name = found.strip("`")
        if found.isalnum() and name not in known:
            return found  # an ordinary word, such as JavaScript
        return f"[`{name}`]({known[name]})" if name in known else f"`{name}`"

    parts, start = [], 0
    for match in _NAME.finditer(text):
        parts += [text[start : match.start()].replace("*", r"\*"), mark(match)]
        start = match.end()
    return "".join([*parts, text[start:].replace("*", r"\*")])


def one_line(text: str) -> str:
    """Return a text without line breaks."""
    return " ".join(text.split())


def unwrapped(text: str) -> str:
    """Return a text whose paragraphs have a line each; tables stay as they are."""
    parts = text.split("\n\n")
    return "\n\n".join(part if part.startswith("|") else one_line(part) for part in parts)


def document(*parts: str) -> str:
    """Return a page of these parts, with one empty line between them."""
    return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"
