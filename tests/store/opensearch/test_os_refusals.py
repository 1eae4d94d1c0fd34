"""Faults of OpenSearch that need an operator, at a start and while serving; also on a real one."""

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from idalloc_server.domain.errors import SequenceInvalid, StartRefused, StoreAnsweredError, StoreRefused
from idalloc_server.domain.sequences.sequence import Kind, Sequence
from idalloc_server.domain.store.protocol import Store
from idalloc_server.domain.store.records import RecordedAllocation, RowChange
from tests.store.conftest import OPENSEARCH
from tests.support.opensearch.backend import OpenSearchBackend
from tests.support.store_backends import Opener
from tests.support.store_rows import grant, requested_row

pytestmark = pytest.mark.parametrize("opener", OPENSEARCH, indirect=True)

FLOOD_STAGE = {"index.blocks.read_only_allow_delete": "true"}


async def send(backend: OpenSearchBackend, method: str, path: str, body: object = None) -> dict[str, Any]:
    """Send a request of an operator, which must succeed; ``{}`` is the alias of the sequences."""
    status, answer = await backend.send(method, path.replace("{}", backend.alias), body)
    assert status == 200, answer
    return answer


async def run(backend: OpenSearchBackend, message: str) -> None:
    """Run the request that a message names as the next step."""
    found = re.search(r"run (PUT|POST) (\S+)(?: (\{.*\}))?$", message)
    assert found, message
    method, path, body = found.groups()
    await send(backend, method, path, json.loads(body) if body else None)


class TestStart:
    @pytest.mark.parametrize(
        ("setting", "value", "why"),
        [
            ("translog.durability", "async", "a crash loses acknowledged writes"),
            ("blocks.write", "true", "its block write is set"),
            ("blocks.read_only", "true", "its block read_only is set"),
            ("blocks.read_only_allow_delete", "true", "its block read_only_allow_delete is set; free the disk"),
            ("blocks.read", "true", "its block read is set"),
            ("default_pipeline", "theirs", "its default_pipeline could change rows"),
            ("final_pipeline", "theirs", "its final_pipeline could change rows"),
        ],
    )
    async def test_an_unsafe_setting_is_refused(
        self, opener: Opener, backend: OpenSearchBackend, setting: str, value: str, why: str
    ) -> None:
        """A start names the request to run and changes nothing; after that request it succeeds."""
        await opener.open()
        await send(backend, "PUT", "/{}/_settings", {f"index.{setting}": value})
        with pytest.raises(StartRefused, match=re.escape(why)) as caught:
            await opener.open()
        message = str(caught.value)
        assert message.startswith(f"store: the index {backend.alias}-data: ")
        assert "\n" not in message
        await run(backend, message)
        store = await opener.open()
        await store.create(requested_row("s"))
        assert (await grant(store, "s", 10)).last_value == 10

    async def test_a_closed_index_is_refused(self, opener: Opener, backend: OpenSearchBackend) -> None:
        """A start on a closed index is refused with the request to run."""
        await opener.open()
        await send(backend, "POST", "/{}-data/_close")
        with pytest.raises(StartRefused, match="cannot be used") as caught:
            await opener.open()
        await run(backend, str(caught.value))
        await opener.open()

    async def test_a_metadata_block_is_refused(self, opener: Opener, backend: OpenSearchBackend) -> None:
        """A start that may not read the settings of an index is refused with the request to run."""
        await opener.open()
        await send(backend, "PUT", "/{}/_settings", {"index.blocks.metadata": "true"})
        with pytest.raises(StartRefused, match="block") as caught:
            await opener.open()
        await run(backend, str(caught.value))
        await opener.open()

    async def test_an_index_in_place_of_the_alias_is_refused(self, opener: Opener, backend: OpenSearchBackend) -> None:
        """P1: writes need an alias, so that a missing one makes no index."""
        await send(backend, "PUT", "/{}", {})
        with pytest.raises(StartRefused, match=r"is an index, not an alias: .* choose another prefix"):
            await opener.open()
        await send(backend, "DELETE", "/{}")
        await opener.open()

    async def test_an_index_without_its_alias_is_refused(self, opener: Opener, backend: OpenSearchBackend) -> None:
        """P1: the index of another program is not used."""
        await send(backend, "PUT", "/{}-data", {})
        with pytest.raises(StartRefused, match=r"exists without the alias .*; add the alias if the index is idalloc's"):
            await opener.open()

    @pytest.mark.parametrize(
        ("mapping", "why"),
        [
            ({"type": "keyword"}, "its field last_value must have type long, not keyword"),
            ({"type": "text"}, "its field last_value must have type long, not text"),
            ({"type": "long"}, "its field last_value must have coerce false, not its default"),
        ],
    )
    async def test_another_mapping_is_refused(
        self, opener: Opener, backend: OpenSearchBackend, mapping: dict[str, str], why: str
    ) -> None:
        """P1: a field that would keep a text or a fraction is refused by name."""
        await opener.open()
        await send(backend, "DELETE", "/{}-data")
        body = {"aliases": {backend.alias: {}}, "mappings": {"properties": {"last_value": mapping}}}
        await send(backend, "PUT", "/{}-data", body)
        with pytest.raises(StartRefused, match=re.escape(why)):
            await opener.open()

    @pytest.mark.parametrize(
        ("mapping", "named"),
        [
            ({"_source": {"enabled": False}}, '_source of its mapping, {"enabled": false}'),
            ({"_source": {"excludes": ["last_*"]}}, '_source of its mapping, {"excludes": ["last_*"]}'),
            ({"_source": {"includes": ["name"]}}, '_source of its mapping, {"includes": ["name"]}'),
            ({"_routing": {"required": True}}, '_routing of its mapping, {"required": true}'),
        ],
        ids=["disabled", "excludes", "includes", "routing"],
    )
    async def test_a_mapping_of_a_template_is_refused(
        self, opener: Opener, backend: OpenSearchBackend, mapping: dict[str, object], named: str
    ) -> None:
        """P1: an index whose rows lose fields, or take no write by key, is refused, untouched."""
        path = "/_index_template/idalloc-test"
        template = {"index_patterns": [f"{backend.alias}-*"], "priority": 500, "template": {"mappings": mapping}}
        await send(backend, "PUT", path, template)
        try:
            with pytest.raises(StartRefused, match=re.escape(named)) as caught:
                await opener.open()
        finally:
            await send(backend, "DELETE", path)
        assert "; remove it from the index template, then delete the index if it has no documents" in str(caught.value)
        await send(backend, "DELETE", "/{}-data")
        await opener.open()

    async def test_lost_sequences_are_not_made_again(self, opener: Opener, backend: OpenSearchBackend) -> None:
        """P1: a start beside used indices creates no empty index of sequences."""
        store = await opener.open()
        await store.claim_start(3, 1000, "me", 60.0)
        await send(backend, "DELETE", "/{}-data")
        with pytest.raises(StartRefused, match="sequences was lost or exchanged: it is missing"):
            await opener.open()
        assert (await backend.send("GET", f"/{backend.alias}"))[0] == 404

    async def test_another_lost_index_is_refused(self, opener: Opener, backend: OpenSearchBackend) -> None:
        """P6: a start beside sequences creates no empty index of start timestamps."""
        await opener.open()
        starts = backend.alias.removesuffix("sequences") + "starts"
        await send(backend, "DELETE", f"/{starts}-data")
        with pytest.raises(StartRefused, match=f"the index of {starts} was lost or exchanged: it is missing"):
            await opener.open()
        assert (await backend.send("GET", f"/{starts}"))[0] == 404


class TestRunningServer:
    @pytest.mark.parametrize(
        ("method", "path", "body"),
        [
            ("PUT", "/{}/_settings", {"index.blocks.write": "true"}),
            ("PUT", "/{}/_settings", {"index.blocks.read_only": "true"}),
            ("POST", "/{}-data/_close", None),
        ],
        ids=["write", "read_only", "closed"],
    )
    async def test_a_refusal_names_the_request_to_run(
        self, opener: Opener, backend: OpenSearchBackend, method: str, path: str, body: object
    ) -> None:
        """STORE_REFUSED: nothing was applied; after the named step the same server continues."""
        store = await opener.open()
        await store.create(requested_row("s"))
        await send(backend, method, path, body)
        with pytest.raises(StoreRefused):
            await store.grant("s", 10, 1000)
        with pytest.raises(StoreRefused) as caught:
            await store.grant("s", 10, 1000)
        await run(backend, str(caught.value))
        assert (await grant(store, "s", 10)).last_value == 10

    async def test_a_full_disk_recovers(self, opener: Opener, backend: OpenSearchBackend) -> None:
        """STORE_UNAVAILABLE: OpenSearch sets and removes this block by its disk watermarks."""
        store = await opener.open()
        await store.create(requested_row("s"))
        await send(backend, "PUT", "/{}/_settings", FLOOD_STAGE)
        with pytest.raises(StoreAnsweredError, match=r"429 .*read-only-allow-delete"):
            await store.grant("s", 10, 1000)
        await send(backend, "PUT", "/{}/_settings", dict.fromkeys(FLOOD_STAGE))
        assert (await grant(store, "s", 10)).last_value == 10

    @pytest.mark.parametrize("index", ["sequences", "starts", "allocations"])
    async def test_a_lost_index_is_refused_and_not_made(
        self, opener: Opener, backend: OpenSearchBackend, index: str
    ) -> None:
        """STORE_REFUSED: every call is refused until the index is restored; no write makes it."""
        store = await opener.open()
        alias = backend.alias.removesuffix("sequences") + index
        await send(backend, "DELETE", f"/{alias}-data")
        one = RecordedAllocation("r", "s", 1, 10, 1, 1, "", 0, "node")
        calls: dict[str, list[Callable[[], Awaitable[object]]]] = {
            "sequences": [
                lambda: store.grant("s", 1, 1000),
                lambda: store.create(requested_row("s")),
                lambda: store.get("s"),
                lambda: store.list("", "", 9, with_deleted=True, with_periods=True),
            ],
            "starts": [lambda: store.keep_prefix(1, "me", 60.0), lambda: store.raise_start(1, 5)],
            "allocations": [lambda: store.record([one]), lambda: store.recorded("r"), lambda: store.newest_recorded()],
        }
        for call in calls[index]:
            with pytest.raises(StoreRefused, match=f"restore the alias {alias} from a snapshot"):
                await call()
        assert (await backend.send("GET", f"/{alias}"))[0] == 404


class TestEditedRows:
    @pytest.mark.parametrize("field", ["last_value", "step", "generation"])
    async def test_a_double_is_refused(self, opener: Opener, backend: OpenSearchBackend, field: str) -> None:
        """SEQUENCE_INVALID: a number with a point keeps it in the row; no id is issued from it."""
        store = await opener.open()
        whole = {"name": "s", "last_value": 41, "step": 1, "generation": 1, "rev": 0}
        await backend.put_document("s", {**whole, field: 5.0})
        await assert_invalid(store, "s")
        if field == "last_value":  # a revision replaces the others
            with pytest.raises(SequenceInvalid, match="'s'"):
                await store.revise("s", 0, RowChange(Sequence(), 50, "me", 1.5))
        await backend.put_document("s", whole)
        assert (await grant(store, "s", 1)).last_value == 42

    async def test_a_null_is_refused(self, opener: Opener, backend: OpenSearchBackend) -> None:
        """SEQUENCE_INVALID: a row without a counter grants nothing; the error says what to set."""
        store = await opener.open()
        await backend.put_document("s", {"name": "s", "last_value": None})
        with pytest.raises(SequenceInvalid, match="its last_value is NULL; set it"):
            await store.grant("s", 10, 1000)
        with pytest.raises(SequenceInvalid, match="its last_value is NULL"):
            await store.revise("s", 0, RowChange(Sequence(), 5, "me", 1.5))

    async def test_a_text_is_not_stored(self, opener: Opener, backend: OpenSearchBackend) -> None:
        """P1: the mapping refuses a text or a fraction in place of a number; the row stays."""
        store = await opener.open()
        await store.create(requested_row("s"))
        for value in ("41", 1.5, 2**63):
            status, _ = await backend.send("PUT", f"/{backend.alias}/_doc/s", {"name": "s", "last_value": value})
            assert status == 400
        assert (await grant(store, "s", 1)).last_value == 1

    async def test_timestamps_of_a_double_are_refused(self, opener: Opener, backend: OpenSearchBackend) -> None:
        """SEQUENCE_INVALID: no timestamp is granted from a counter with a point."""
        store = await opener.open()
        await store.create(requested_row("s", Sequence(kind=Kind.TIMESTAMP_MS)))
        await backend.put_document("s", {**(await backend.row("s") or {}), "last_value": 5.0})
        with pytest.raises(SequenceInvalid, match="number in its row was edited"):
            await store.grant_timestamps("s", 1, 1000, 1_800_000_000_000, 1000)


async def assert_invalid(store: Store, name: str) -> None:
    """Assert that grants and reads of a row are SEQUENCE_INVALID."""
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.grant(name, 10, 1000),
        lambda: store.get(name),
        lambda: store.list("", "", 9, with_deleted=True, with_periods=True),
    ]
    for call in calls:
        with pytest.raises(SequenceInvalid, match=f"'{name}'"):
            await call()
