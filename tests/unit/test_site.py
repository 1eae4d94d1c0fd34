"""The documentation site lists all pages, its links work, and it loads nothing from other hosts."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from scripts.check_site import findings
from scripts.reference import pages
from tests.support.paths import ROOT

CONFIG = (ROOT / "zensical.toml").read_text()
FAULTLESS = """# Top

[itself](#top), [another page](more.md#more), [the web](https://example.org), ![image](image.svg)
"""
FAULTY = """# Faults

![image](none.svg)
[file](../outside.toml)
[page](../outside.md)

<a href="more.html#none">anchor</a>
<script src="https://example.org/a.js"></script>
<link rel="stylesheet" href="//example.org/a.css">
<img srcset="https://example.org/a.png 2x">
<div class="mermaid" style="background: url(https://example.org/b.png)"></div>
<style>@import "https://example.org/b.css"; @font-face { src: url('https://example.org/a.woff2') }</style>
"""
FOUND = """\
faults.html: class mermaid makes the theme load a script from another host
faults.html: no such file: none.svg
faults.html: no such file: ../outside.toml
faults.html: no such file: ../outside.html
faults.html: no such anchor: more.html#none
faults.html: refers to another host: https://example.org/a.js
faults.html: refers to another host: //example.org/a.css
faults.html: refers to another host: https://example.org/a.png
faults.html: refers to another host: https://example.org/b.png
faults.html: refers to another host: https://example.org/b.css
faults.html: refers to another host: https://example.org/a.woff2
image.svg: refers to another host: https://example.org/c.png"""
LISTED = """\
docs/unlisted.md: not in the nav of zensical.toml
zensical.toml: docs/missing.md does not exist
zensical.toml: index.md is listed more than once"""


def build(root: Path, *options: str) -> None:
    """Build the site of a folder with zensical.toml and docs/."""
    command = Path(sys.executable).with_name("zensical")
    subprocess.run([command, "build", *options], cwd=root, check=True, timeout=100)


def write(root: Path, nav: str, **pages: str) -> None:
    """Write a small documentation with the repository's settings and styles."""
    shutil.copytree(ROOT / "docs/assets", root / "docs/assets", ignore=shutil.ignore_patterns("*.svg", "*.png"))
    (root / "zensical.toml").write_text(re.sub(r"(?ms)^nav = \[.*?^\]", f"nav = {nav}", CONFIG))
    for name, text in pages.items():
        (root / f"docs/{name}.md").write_text(text)


@pytest.mark.test_long
def test_the_site_is_whole(tmp_path: Path) -> None:
    """`make docs` succeeds: Zensical warns of nothing, and the checks find nothing."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    pages.write(tmp_path / "docs/reference")
    (tmp_path / "zensical.toml").write_text(CONFIG)
    build(tmp_path, "--strict")
    assert [*findings(tmp_path)] == []


def test_the_repository_has_one_address() -> None:
    """`git clone` on the first page has the address to which the head of each page links."""
    cloned = re.findall(r"^git clone (\S+)$", (ROOT / "docs/index.md").read_text(), re.MULTILINE)
    assert cloned == [tomllib.loads(CONFIG)["project"]["repo_url"]]


def test_dead_links_and_foreign_resources_are_found(tmp_path: Path) -> None:
    """Each planted fault of a built page or image is found, and a page without faults has none."""
    write(tmp_path, '["index.md", "more.md", "faults.md"]', index=FAULTLESS, more="# More", faults=FAULTY)
    (tmp_path / "docs/image.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg"><image href="https://example.org/c.png"/></svg>'
    )
    build(tmp_path)
    assert sorted(findings(tmp_path)) == sorted(FOUND.splitlines())


def test_pages_and_nav_must_agree(tmp_path: Path) -> None:
    """A page missing from the nav, an entry without a page, and a page listed twice are found."""
    write(tmp_path, '["index.md", {"Guides" = [{"Title" = "missing.md"}, "index.md"]}]', index="# A", unlisted="# B")
    assert "\n".join(findings(tmp_path)) == LISTED
