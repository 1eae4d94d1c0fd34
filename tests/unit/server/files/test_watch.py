"""Files are read again after a change."""

import os
from contextlib import aclosing
from pathlib import Path

import pytest

from idalloc_server.domain.errors import FileUnreadable, StartRefused
from idalloc_server.files.watch import FileWatch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "file"
    file.write_text("first")
    return file


def test_a_change_is_read_once(path: Path) -> None:
    """A file is read again once after a change, also one of the same size and mtime."""
    watch = FileWatch([path], lambda: path.read_text() if path.exists() else "none")
    assert [watch.check(), watch.check()] == ["first", None]
    mtime = path.stat().st_mtime_ns
    path.write_text("again")
    os.utime(path, ns=(0, mtime))
    assert [watch.check(), watch.check()] == ["again", None]
    other = path.with_name("other")
    other.write_text("third")
    os.utime(other, ns=(0, mtime))
    other.replace(path)
    assert [watch.check(), watch.check()] == ["third", None]
    path.unlink()
    assert [watch.check(), watch.check()] == ["none", None]


def test_a_change_during_a_read_is_read(path: Path) -> None:
    """A file that changes while it is read is read again."""
    watch = FileWatch([path], lambda: path.write_text("longer than the first"))
    watch.read()
    assert watch.check() is not None


@pytest.mark.parametrize(
    ("error", "again"),
    [(StartRefused("access_file", "is invalid"), False), (FileUnreadable("access_file", "no access"), True)],
)
def test_a_failed_read_is_repeated_if_the_file_was_unreadable(path: Path, error: StartRefused, again: bool) -> None:
    """An invalid file is read again after a change, an unreadable one at each check."""

    def fail() -> None:
        raise error

    watch = FileWatch([path], fail)
    with pytest.raises(StartRefused):
        watch.read()
    assert [watch.check(), watch.check()] == ([error] * 2 if again else [None] * 2)
    assert watch.check(forced=True) is error
    path.unlink()
    assert watch.check() is error


async def test_a_request_ends_the_wait(path: Path) -> None:
    """A requested check begins at once, and once; it reads an unchanged file."""
    watch = FileWatch([path], path.read_text)
    watch.read()
    watch.requested.set()
    async with aclosing(watch.poll()) as checks:
        assert [await anext(checks), await anext(checks)] == [("first", True), (None, False)]
