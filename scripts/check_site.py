"""Refuses what Zensical accepts: pages out of the nav, dead links, content of other hosts.

``make docs`` runs it after the build: ``python scripts/check_site.py`` in the repository. It reads
zensical.toml, the pages under docs/ and the built site, and prints a line for each finding.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from posixpath import normpath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

_ADDRESSES = {"action", "data", "href", "poster", "src", "xlink:href"}
_FOLLOWED_TAGS = {"a", "area", "form"}
_FOLLOWED_RELS = {"alternate", "canonical", "describedby", "next", "prev"}
# The theme's script loads a library from another host for elements of these classes.
_LOADING_CLASSES = {"glightbox", "mermaid", "pyodide"}
_CSS_ADDRESS = re.compile(r"""url\(\s*(?:"([^"]*)"|'([^']*)'|([^)]*))\s*\)|@import\s+["']([^"']*)""")


class Reference(NamedTuple):
    """An address in a page."""

    address: str  # the address as written
    is_loaded: bool  # whether a browser loads it with the page; otherwise a reader follows it


class _Page(HTMLParser):
    """The references and anchors of an HTML or SVG file."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[Reference] = []
        self.anchors: set[str] = set()
        self.classes: set[str] = set()
        self._is_style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._is_style = tag == "style"
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        self.classes.update(values.get("class", "").split())
        is_followed = tag in _FOLLOWED_TAGS or (tag == "link" and values.get("rel") in _FOLLOWED_RELS)
        self.references += [Reference(values[name], not is_followed) for name in sorted(_ADDRESSES & values.keys())]
        sources = values.get("srcset", "").split(",")
        self.references += [Reference(source.split()[0], True) for source in sources if source.strip()]
        self.references += css_references(values.get("style", ""))

    def handle_data(self, data: str) -> None:
        if self._is_style:
            self.references += css_references(data)

    def handle_endtag(self, tag: str) -> None:
        self._is_style = False


def css_references(text: str) -> list[Reference]:
    """Return what a style sheet loads."""
    return [Reference(next(filter(None, found), "").strip(), True) for found in _CSS_ADDRESS.findall(text)]


def listed_pages(nav: Iterable[Any]) -> Iterator[str]:
    """Yield the pages of a nav: texts, lists, and tables of titles."""
    for entry in nav:
        if isinstance(entry, str):
            yield entry
        else:
            for value in entry.values():
                yield from listed_pages([value] if isinstance(value, str) else value)


def nav_findings(config: dict[str, Any], root: Path) -> Iterator[str]:
    """Yield pages that only the nav or only the folder has, and those that the nav lists twice."""
    docs = root / config["docs_dir"]
    listed = [*listed_pages(config["nav"])]
    present = {file.relative_to(docs).as_posix() for file in docs.rglob("*.md")}
    for page in sorted(present.difference(listed)):
        yield f"{config['docs_dir']}/{page}: not in the nav of zensical.toml"
    for page in sorted(set(listed) - present):
        yield f"zensical.toml: {config['docs_dir']}/{page} does not exist"
    for page in sorted({page for page in listed if listed.count(page) > 1}):
        yield f"zensical.toml: {page} is listed more than once"


def site_findings(site: Path) -> Iterator[str]:
    """Yield the faults of a built site."""

    @cache
    def read(file: str) -> _Page:
        return _Page((site / file).read_text())

    files = {file.relative_to(site).as_posix() for file in site.rglob("*") if file.is_file()}
    if "index.html" not in files:
        yield f"{site}: no index.html"
    for file in sorted(files):
        references: list[Reference] = []
        if file.endswith(".css"):
            references = css_references((site / file).read_text())
        elif file.endswith((".html", ".svg")):
            references = read(file).references
            for name in sorted(_LOADING_CLASSES & read(file).classes):
                yield f"{file}: class {name} makes the theme load a script from another host"
        for reference in dict.fromkeys(references):
            address = urlsplit(reference.address)
            if address.scheme == "data":
                continue
            if address.scheme or address.netloc:
                if reference.is_loaded or address.scheme not in {"http", "https", "mailto"}:
                    yield f"{file}: refers to another host: {reference.address}"
                continue
            target = _target(file, unquote(address.path))
            if target not in files:
                yield f"{file}: no such file: {reference.address}"
            elif address.fragment and unquote(address.fragment) not in read(target).anchors:
                yield f"{file}: no such anchor: {reference.address}"


def _target(file: str, path: str) -> str:
    if not path:
        return file
    folder = "" if path.startswith("/") else file.rpartition("/")[0]
    target = normpath(f"{folder}/{path}".lstrip("/"))
    return normpath(f"{target}/index.html") if path.endswith(("/", ".")) else target


def findings(root: Path) -> Iterator[str]:
    """Yield what is wrong with the documentation of a repository and with its built site."""
    config = tomllib.loads((root / "zensical.toml").read_text())["project"]
    # A page that the nav lists in vain is a dead link of every page.
    yield from [*nav_findings(config, root)] or site_findings(root / config["site_dir"])


if __name__ == "__main__":
    found = [*findings(Path())]
    print(*found or ["The site is .build/site/index.html"], sep="\n")
    sys.exit(bool(found))
