"""Ties each answer to its request: by the index behind the alias, the key, and a nonce.

A rollover, a person or a policy can exchange the index behind an alias, and a proxy can mix up
answers. The values of such an answer are never used.
"""

import secrets
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from idalloc_server.domain.store.exchange import StoreExchanged
from idalloc_server.store.cluster.connections import Request, WrongAnswer
from idalloc_server.store.cluster.write_mark import WriteMark
from idalloc_server.store.opensearch.answers import read_answer

# The results of writes that OpenSearch applied.
_APPLIED = ("created", "updated", "deleted")


class OpenedIndex(NamedTuple):
    """An index as this process opened it. A new index never has the UUID of an older one."""

    name: str
    uuid: str

    def __str__(self) -> str:
        return f"the index {self.name} ({self.uuid})"


class Tie(NamedTuple):
    """What an answer must repeat."""

    alias: str  # the alias of the request
    opened: OpenedIndex | None  # the index behind it; None before the store is open
    key: str  # the key of the row
    nonce: str  # a text that no other request has; empty if the index has no field for it
    mark: WriteMark | None = None  # the number of the last write of the index
    floor: int = -1  # that number when the request was made

    def added_to(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body of an update whose row gets the nonce: by its script, or as a new row."""
        if not self.nonce:
            return body
        script = {**body["script"], "params": {**body["script"]["params"], "nonce": self.nonce}}
        tied = {**body, "script": script}
        if "upsert" in body and "scripted_upsert" not in body:
            tied["upsert"] = {**body["upsert"], "nonce": self.nonce}
        return tied

    def check(self, answer: Mapping[str, Any]) -> None:
        """Check the answer to a write, or to an item of ``_bulk``, before its values are used.

        Raises:
            WrongAnswer: The answer is that of another request.
            StoreExchanged: The write went to another index than the opened one.
        """
        error = answer.get("error")
        key = answer.get("_id", self.key)
        if key != self.key or (error and not str(error.get("reason")).startswith(f"[{self.key}]:")):
            raise WrongAnswer(f"that is not about the key {self.key!r}")
        if self.nonce and not error and answer.get("get", {}).get("_source", {}).get("nonce") != self.nonce:
            raise WrongAnswer(f"to another write of the key {self.key!r}")
        if self.opened:
            found = error.get("index", self.opened.name) if error else answer["_index"]
            if found != self.opened.name:
                raise StoreExchanged(f"{self.opened} behind the alias {self.alias}", f"the index {found}")
        if self.mark and answer.get("result") in _APPLIED:
            self.mark.accept(int(answer["_seq_no"]), self.floor)


class OpenedIndices:
    """The indices that this process opened, by alias."""

    def __init__(self) -> None:
        self._by_alias: dict[str, OpenedIndex] = {}
        self._marks: dict[str, WriteMark] = {}
        self._without_nonce: set[str] = set()

    def add(self, alias: str, opened: OpenedIndex, *, has_nonce: bool) -> None:
        """Keep the index behind an alias. Later answers of another one are refused."""
        self._by_alias[alias] = opened
        self._marks[alias] = WriteMark(str(opened))
        if not has_nonce:
            self._without_nonce.add(alias)

    @property
    def found(self) -> dict[str, str]:
        """The index behind each alias."""
        return {f"index behind {alias}": str(opened) for alias, opened in self._by_alias.items()}

    def tie(self, alias: str, key: str, *, has_script: bool = True) -> Tie:
        """Return what the answer to a write must repeat; only a script can write a nonce.

        Raises:
            StoreExchanged: The index repeated the number of a write before.
        """
        opened, mark = self._by_alias.get(alias), self._marks.get(alias)
        has_nonce = has_script and opened is not None and alias not in self._without_nonce
        return Tie(alias, opened, key, secrets.token_hex(8) if has_nonce else "", mark, mark.floor() if mark else -1)

    def check_hits(self, alias: str, answer: Mapping[str, Any]) -> None:
        """Raise ``StoreExchanged`` if a search found rows in another index than the opened one."""
        if opened := self._by_alias.get(alias):
            self._marks[alias].floor()
            for found in {str(hit["_index"]) for hit in answer["hits"]["hits"]} - {opened.name}:
                raise StoreExchanged(f"{opened} behind the alias {alias}", f"the index {found}")

    def check_request(self) -> Request[None]:
        """Return the request that reads and checks the indices behind all aliases.

        Its reader raises ``StoreExchanged`` if one is another than the opened one. A missing one is
        left to the writes, which name it.
        """
        aliases = ",".join(self._by_alias)
        read = partial(read_answer, parse=self._check_all, subject=aliases)
        return Request(
            "GET",
            f"/{aliases}?local=true&ignore_unavailable=true&filter_path=*.settings.index.uuid,*.aliases",
            None,
            read,
            aliases,
        )

    def _check_all(self, answer: Mapping[str, Any]) -> None:
        for alias, opened in self._by_alias.items():
            found = {
                OpenedIndex(name, index["settings"]["index"]["uuid"])
                for name, index in answer.items()
                if alias in index.get("aliases", ())
            }
            if found and found != {opened}:
                raise StoreExchanged(f"{opened} behind the alias {alias}", " and ".join(map(str, sorted(found))))
