"""The container image starts with the settings that the workflow and the documentation give it."""

import re

import pytest

from idalloc_server.listen.transport import check_settings
from idalloc_server.settings.installed import installed
from idalloc_server.settings.sources import load
from tests.support.paths import ROOT

IMAGE = dict(re.findall(r"(IDALLOC_\w+)=(\S+)", (ROOT / "Dockerfile").read_text().partition("FROM")[2]))


def runs(file: str) -> list[str]:
    """Return the commands `docker run` of a file, each on one line."""
    return re.findall(r"docker run .*? idalloc$", (ROOT / file).read_text().replace("\\\n", ""), re.MULTILINE)


DOCUMENTS = [name for path in sorted((ROOT / "docs").rglob("*.md")) if runs(name := str(path.relative_to(ROOT)))]


@pytest.mark.parametrize("file", [".github/workflows/image.yml", *DOCUMENTS])
def test_the_image_starts_as_it_is_run(file: str) -> None:
    """The image and each documented `docker run` have valid settings, and listen everywhere."""
    commands = runs(file)
    assert commands
    for command in commands:
        given = dict(re.findall(r"--env (IDALLOC_\w+)=(\S+)", command))
        variables = {
            k: v
            for k, v in (IMAGE | given).items()
            if k.removeprefix("IDALLOC_").lower() in installed().settings.model_fields
        }
        settings = load({}, None, variables).settings
        check_settings(settings, requires_authentication=bool(settings.access_file))
