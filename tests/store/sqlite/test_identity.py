"""Which file a path names, without a read of its times."""

from pathlib import Path

import pytest

from idalloc_server.store.sqlite.files import examiner


def test_it_is_the_file_that_stat_finds(tmp_path: Path) -> None:
    """Device, inode and number of links are those of ``os.stat``, also through a symbolic link."""
    file, link = tmp_path / "ids-ü.db", tmp_path / "link"
    file.touch()
    (tmp_path / "other name").hardlink_to(file)
    link.symlink_to(file)
    status = file.stat()
    for path in (file, link):
        assert examiner(str(path))() == (status.st_dev, status.st_ino, 2)


def test_a_missing_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    """The error is the one that ``os.stat`` raises."""
    with pytest.raises(FileNotFoundError) as caught:
        examiner(str(tmp_path / "none"))()
    assert caught.value.filename == str(tmp_path / "none")
