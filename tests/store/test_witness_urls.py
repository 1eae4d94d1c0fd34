"""URLs of witnesses: each kind of store, but never a part of the store."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from idalloc_server.domain.errors import StartRefused
from idalloc_server.store.cratedb.witness import CrateWitness
from idalloc_server.store.opensearch.witness import OpenSearchWitness
from idalloc_server.store.sqlite.witness import SqliteWitness
from idalloc_server.store.urls import open_witness
from idalloc_server.store.witness import is_on_same_disk

STORE = "sqlite:///var/lib/idalloc/ids.db"
# In no file system, so on no disk of a test.
ELSEWHERE = Path("/proc/ids.db")


@pytest.mark.parametrize(
    ("url", "store", "kind", "address"),
    [
        ("sqlite:///mnt/marks.db", STORE, SqliteWitness, "sqlite:///mnt/marks.db"),
        ("sqlite:///mnt/marks.db", "crate://h", SqliteWitness, "sqlite:///mnt/marks.db"),
        ("crate://al:s3cret@h?schema=w", STORE, CrateWitness, "crate://al@h:4200/?schema=w"),
        ("crate://h:4201", "crate://h,i:4201", CrateWitness, "crate://h:4201/?schema=doc"),
        ("opensearch://h/?prefix=w", "crate://h", OpenSearchWitness, "opensearch://h:9200/?prefix=w"),
        ("elasticsearch://h:1", "opensearch://h:2", OpenSearchWitness, "elasticsearch://h:1/?prefix=idalloc"),
    ],
)
def test_valid_urls(url: str, store: str, kind: type, address: str) -> None:
    """A valid URL apart from the store opens its kind of witness, whose address has no secret."""
    witness = open_witness(url, store)
    assert isinstance(witness, kind)
    assert witness.address == address


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "the URL has no kind"),
        ("postgres://al:s3cret@h/db", "unknown kind of store 'postgres'"),
        ("sqlite:///ids.db?s3cret", "takes no parameters"),
        ("crate://al:s3cret@h:http/", "the hosts of a URL of CrateDB"),
        ("crate://al:s3cret@h/doc", "only parameters"),
        ("crate://al:s3cret@h/?jwt=s3cret", "give one of a password"),
        ("opensearch://h/?api_key=s3cret s3cret", "the parameter api_key is not a token"),
        ("opensearch://al:s3cret@[::1/", "reserved characters"),
    ],
)
@pytest.mark.parametrize("store", [STORE, "crate://i:s3cret@i/"])
def test_invalid_urls(url: str, store: str, why: str) -> None:
    """An invalid URL is refused as the setting witness, and no message has a secret."""
    with pytest.raises(StartRefused, match=why) as caught:
        open_witness(url, store)
    assert caught.value.setting == "witness"
    assert str(caught.value).startswith("witness: ")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "store"),
    [
        ("crate://h", "crate://h/"),
        ("crate://h/?schema=witness", "crate://al:s3cret@H:4200/?schema=ids"),
        ("crate://al:s3cret@i,j", "crate://h,j:4200"),
        ("crate://localhost", "crate://127.0.0.1"),
        ("crate://[::1]:4201", "crate://LOCALHOST:4201"),
        ("opensearch://h", "elasticsearch://h"),
        ("elasticsearch://h/?prefix=w", "opensearch://i,h:9200/?prefix=ids"),
        ("opensearch://127.0.0.1", "elasticsearch://[::1]"),
    ],
)
def test_the_cluster_of_the_store_is_refused(url: str, store: str) -> None:
    """P3: a witness with a host of the store would be restored with it."""
    with pytest.raises(StartRefused, match=r"^witness: .* would be restored with it; name another cluster") as caught:
        open_witness(url, store)
    assert "s3cret" not in str(caught.value)


class TestFiles:
    @pytest.mark.parametrize("is_there", [False, True])
    def test_the_file_of_the_store_is_refused(self, tmp_path: Path, is_there: bool) -> None:
        """P3: the file of the store is no witness, by any path, even if missing."""
        folder = tmp_path / "real"
        folder.mkdir()
        (tmp_path / "link").symlink_to(folder)
        (folder / "alias.db").symlink_to(folder / "ids.db")
        if is_there:
            (folder / "ids.db").touch()
            (folder / "hard.db").hardlink_to(folder / "ids.db")
        for path in (
            folder / "ids.db",
            folder / "alias.db",
            tmp_path / "link" / "ids.db",
            folder / ".." / "real" / "ids.db",
            *([folder / "hard.db"] if is_there else []),
        ):
            for url, store in ((path, folder / "ids.db"), (folder / "ids.db", path)):
                with pytest.raises(StartRefused, match=r"^witness: .* the file of the store, .*; name another file"):
                    open_witness(f"sqlite://{url}", f"sqlite://{store}")
        open_witness(f"sqlite://{folder}/marks.db", f"sqlite://{folder}/ids.db")

    async def test_the_disk_of_the_store_is_logged(self, tmp_path: Path) -> None:
        """P3: a start warns of a witness on the store's disk, whose folder may not exist yet."""
        for store, warned in ((tmp_path / "no" / "such" / "ids.db", True), (ELSEWHERE, False)):
            witness = open_witness(f"sqlite://{tmp_path}/marks/marks.db", f"sqlite://{store}")
            with capture_logs() as logs:
                await witness.open()
            await witness.close()
            found = [log["next_step"] for log in logs if log["event"] == "witness_on_the_stores_disk"]
            assert found == ["name a file on another disk in the setting witness"] * warned

    def test_a_disk_that_cannot_be_examined_is_not_logged(self, tmp_path: Path) -> None:
        """An unreadable folder does not end the start."""
        assert is_on_same_disk(tmp_path / "a.db", tmp_path / "b" / "c.db")
        assert not is_on_same_disk(tmp_path / "a.db", tmp_path / f"{'x' * 300}" / "c.db")
