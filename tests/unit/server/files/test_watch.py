"""Files are read again after a change."""

from pathlib import Path

import pytest

from idalloc_server.domain.errors import FileUnreadable, StartRefused
from idalloc_server.files.watch import FileWatch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "file"
    file.write_text("first")
    return file


def failing(error: StartRefused) -> None:
    raise error


def test_a_change_is_noticed_once(path: Path) -> None:
    """A file has changed until it is read, then after a change of content, inode or existence."""
    watch = FileWatch([path])
    assert watch.has_changed()
    assert watch.read(path.read_text) == "first"
    assert not watch.has_changed()
    path.write_text("longer than the first")
    assert watch.has_changed()
    watch.read(path.read_text)
    other = path.with_name("other")
    other.write_text("longer than the first")
    other.replace(path)
    assert watch.has_changed()
    watch.read(path.read_text)
    path.unlink()
    assert watch.has_changed()


def test_a_change_during_a_read_is_noticed(path: Path) -> None:
    """A file that changes while it is read is read again."""
    watch = FileWatch([path])
    watch.read(lambda: path.write_text("longer than the first"))
    assert watch.has_changed()


@pytest.mark.parametrize(
    ("error", "is_read"),
    [(StartRefused("access_file", "is invalid"), True), (FileUnreadable("access_file", "no access"), False)],
)
def test_a_failed_read_is_repeated_if_the_file_was_unreadable(path: Path, error: StartRefused, is_read: bool) -> None:
    """An invalid file is read again after a change, an unreadable one at each check."""
    watch = FileWatch([path])
    with pytest.raises(StartRefused):
        watch.read(lambda: failing(error))
    assert (watch.states is not None, watch.has_changed()) == (is_read, not is_read)


async def test_a_request_ends_the_wait(path: Path) -> None:
    """A requested check begins at once, and once."""
    watch = FileWatch([path])
    watch.requested.set()
    assert [await watch.wait(), await watch.wait()] == [True, False]
