"""A cluster of real OpenSearch nodes, whose nodes are killed, paused and started again."""

import json
import signal
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.support.opensearch.real import OpenSearchNode, Release

_PREFIX = "idalloc-test"
# A paused node does not answer.
_ANSWER_SECONDS = 10


class OpenSearchCluster:
    """A cluster as a context manager, which stops its nodes.

    Args:
        release: Of all nodes.
        folder: For their data.
        size: The number of nodes.
    """

    def __init__(self, release: Release, folder: Path, size: int = 3) -> None:
        names = [f"node-{number}" for number in range(size)]
        self._nodes = {name: OpenSearchNode(release, folder / name, **{"node.name": name}) for name in names}
        self._first = names[0]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            first = self._nodes[self._first]
            first.settings["cluster.initial_cluster_manager_nodes"] = self._first
            stack.enter_context(first)
            for node in self._others(self._first):
                node.settings["discovery.seed_hosts"] = first.transport
                node.start()
                stack.callback(node.stop)
            for node in self._others(self._first):
                node.wait_for_ports()
            self._stack = stack.pop_all()
        seeds = ",".join(node.transport for node in self._nodes.values())
        for node in self._nodes.values():
            node.settings["discovery.seed_hosts"] = seeds
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def url_preferring(self, first: int) -> str:
        """Return the store's URL with a node's host first, which a server then prefers."""
        hosts = [node.host for node in self._nodes.values()]
        return f"opensearch://{','.join(hosts[first:] + hosts[:first])}/?prefix={_PREFIX}"

    def primary(self) -> str:
        """Return the name of the node with the primary of the sequences; empty if no node knows
        it.
        """
        shards = self._shards()
        return next((shard["node"] for shard in shards if shard["prirep"] == "p" and shard["state"] == "STARTED"), "")

    def started_copies(self) -> int:
        """Return the number of started copies of the sequences."""
        return sum(shard["state"] == "STARTED" for shard in self._shards())

    def kill(self, name: str) -> None:
        """Kill a node with SIGKILL."""
        self._nodes[name].send(signal.SIGKILL)
        self._nodes[name].stop()

    def start(self, name: str) -> None:
        """Start a killed node again, and wait until it serves."""
        self._nodes[name].start()
        self._nodes[name].wait_for_ports()

    def pause(self, name: str) -> None:
        """Pause a node with SIGSTOP."""
        self._nodes[name].send(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Resume a paused node."""
        self._nodes[name].send(signal.SIGCONT)

    def _others(self, name: str) -> list[OpenSearchNode]:
        return [node for each, node in self._nodes.items() if each != name]

    def _shards(self) -> list[dict[str, Any]]:
        path = f"/_cat/shards/{_PREFIX}-sequences-data?format=json&h=prirep,state,node"
        for node in self._nodes.values():
            try:
                with urllib.request.urlopen(f"http://{node.host}{path}", timeout=_ANSWER_SECONDS) as answer:
                    return list(json.load(answer))
            except OSError:
                continue
        return []
