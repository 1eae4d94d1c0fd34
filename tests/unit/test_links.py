"""Links in Markdown lead to a heading of a file in git, or of a page that the site adds."""

import re
from functools import cache
from pathlib import Path

import pytest

from scripts.reference.pages import FOLDER, IN_GIT, PAGES, read
from tests.support.paths import ROOT

PAGES_OF_THE_SITE = {FOLDER / name for name in PAGES.keys() - IN_GIT}
GLOBS = ("*.md", "docs/**/*.md", "examples/*/README.md", "deploy/**/*.md")
DOCUMENTS = sorted({*(path for glob in GLOBS for path in ROOT.glob(glob))} | PAGES_OF_THE_SITE)
SOURCES = [path for folder in ("client", "server", "protos", "deploy") for path in (ROOT / folder).rglob("*.*")]


@cache
def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"(?ms)^```.*?^```$", "", read(path)), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def dead_links(document: Path, text: str) -> list[str]:
    """Return the links to a file or a heading that a reader of the repository does not find."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        path = (document.parent / name).resolve() if name else document
        if re.match(r"https?:|mailto:", link):
            continue
        is_of_the_site = path in PAGES_OF_THE_SITE and document.is_relative_to(ROOT / "docs")
        is_there = is_of_the_site or (path.exists() and path not in PAGES_OF_THE_SITE)
        if not is_there or (anchor and anchor not in anchors(path)):
            found.append(link)
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=[str(each.relative_to(ROOT)) for each in DOCUMENTS])
def test_links_lead_somewhere(document: Path) -> None:
    """Only pages under docs/ link to a page that the site adds: others are read without it."""
    assert dead_links(document, read(document)) == []


@pytest.mark.parametrize("link", ["docs/reference/metrics.md", "docs/none.md", "docs/index.md#none"])
def test_a_dead_link_is_found(link: str) -> None:
    """A page of the site, and a file or heading that does not exist, are found."""
    assert dead_links(ROOT / "README.md", f"[page]({link})") == [link]
    assert dead_links(ROOT / "README.md", "[page](docs/reference/errors.md#store_unavailable)") == []


def test_the_first_page_names_what_the_site_adds() -> None:
    """docs/index.md links to each page that is not in git, and names the command that writes it."""
    page = read(ROOT / "docs/index.md")
    assert "`make docs-reference`" in page
    assert [path.name for path in PAGES_OF_THE_SITE if f"](reference/{path.name})" not in page] == []


def test_texts_of_the_code_name_files_in_git() -> None:
    """No comment, error or message of client, server, protos and deployments names a page of the
    site.
    """
    names = "|".join(re.escape(path.name) for path in PAGES_OF_THE_SITE)
    pattern = re.compile(rf"reference/(?:{names})")
    texts = {path: path.read_text(errors="ignore") for path in SOURCES if path.is_file()}
    assert [str(path) for path, text in texts.items() if pattern.search(text)] == []
