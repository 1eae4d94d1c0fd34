"""The attempts of a repeatable call, by the table of docs/explanation/client-calls.md."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from idalloc import IdallocError, InternalError, ServerUnreachable
from idalloc._base import BaseClient
from idalloc._core.attempts import Attempt, Attempts, Servers
from idalloc._core.calls import allocate_range
from idalloc._core.pipeline import Pending
from idalloc.v1 import id_allocator_pb2 as pb

REPLY = pb.AllocateRangeResponse(range=pb.IdRange(first_id=1, last_id=3, step=1, id_count=3))


class Server:
    def __init__(self, name: str) -> None:
        self.name = name
        self.is_suspect = False


class World:
    """Two servers whose answers the test gives, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("idalloc._core.attempts.time.monotonic", lambda: self.now)
        self._servers = Servers([Server("a"), Server("b")], 2)
        self.sent: list[Attempt[Server]] = []
        self.ends: list[Callable[[Attempt[Server], Any], None]] = []
        self.probes: list[Attempt[Server]] = []
        call = allocate_range("orders", 3)._replace(is_repeatable=True)
        self.attempts = Attempts(self, Pending(call, 30), lambda: None)

    def _send(self, server: Server, pending: Any, end: Callable[[Attempt[Server], Any], None]) -> Attempt[Server]:
        attempt = Attempt(server, None, 0, self.now, SimpleNamespace())
        self.sent.append(attempt)
        self.ends.append(end)
        return attempt

    def _probe(self, server: Server, changed: Callable[[], None]) -> Attempt[Server]:
        self.probes.append(Attempt(server, None, 0, self.now))
        return self.probes[-1]

    def _failed(self, server: Server, error: IdallocError) -> None:
        server.is_suspect = isinstance(error, ServerUnreachable)

    _retry_delay: Any = BaseClient._retry_delay

    def _outcome(self, attempt: Attempt[Server]) -> Any:
        return attempt.future.result()

    def answer(self, number: int, reply: Any = REPLY) -> None:
        def result() -> Any:
            if isinstance(reply, Exception):
                raise reply
            return reply

        attempt = self.sent[number]
        attempt.future.result = result
        self.ends[number](attempt, attempt.future)

    @property
    def asked(self) -> str:
        return "".join(each.server.name for each in self.sent)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_silence_is_followed_by_a_probe_and_another_attempt(world: World) -> None:
    """Patience is 0.5 s, a probe has 0.25 s; the first answer wins, and the late one is counted."""
    assert world.attempts.step() == pytest.approx(0.5)
    world.now += 0.5
    assert world.attempts.step() == pytest.approx(0.25)
    assert [each.server.name for each in world.probes] == ["a"]
    world.now += 0.25
    assert world.attempts.step() > 20
    assert world.asked == "ab"
    world.answer(1)
    assert world.attempts.step() == 0
    assert world._servers.dropped_ids == 0
    world.answer(0)
    assert world._servers.dropped_ids == 3


def test_a_late_answer_with_a_request_id_drops_nothing(world: World) -> None:
    """With a request id the late answer brings the ids that the caller has."""
    world.attempts.pending.call = allocate_range("orders", 3, idempotent=True)
    world.attempts.step()
    world.now += 0.5
    world.attempts.step()
    world.now += 0.25
    world.attempts.step()
    world.answer(1)
    assert world.attempts.step() == 0
    world.answer(0)
    assert world._servers.dropped_ids == 0


def test_an_answered_probe_means_a_slow_store(world: World) -> None:
    """While the server answers probes, nothing more is sent; patience grows."""
    world.attempts.step()
    world.now += 0.5
    world.attempts.step()
    world.probes[0].has_ended = True
    assert world.attempts.step() > 20
    world.now += 5
    assert world.attempts.step() > 20
    assert world.asked == "a"
    assert world._servers.patience == pytest.approx(4 * 0.5)


def test_an_unreachable_server_is_followed_by_another_at_once(world: World) -> None:
    """A round asks each usable server without a wait; then the backoff begins."""
    world.attempts.step()
    world.answer(0, ServerUnreachable())
    world.attempts.step()
    assert world.asked == "ab"
    world.answer(1, ServerUnreachable())
    assert 0.1 <= world.attempts.step() <= 0.12
    world.now += 0.12
    world.attempts.step()
    world.answer(2)
    assert (world.attempts.step(), len(world.asked)) == (0, 3)


def test_a_lasting_error_ends_the_call(world: World) -> None:
    """An error that no retry helps is raised, unless another attempt is under way."""
    world.attempts.step()
    world.answer(0, InternalError())
    with pytest.raises(InternalError):
        world.attempts.step()


def test_calls_use_usable_servers_in_turn(world: World) -> None:
    """Suspect servers are asked only if all are suspect."""
    servers = world._servers
    assert [servers.pick().name for _ in range(4)] == ["a", "b", "a", "b"]
    servers.all[0].is_suspect = True
    assert [servers.pick().name for _ in range(3)] == ["b"] * 3
    servers.all[1].is_suspect = True
    assert {servers.pick().name for _ in range(4)} == {"a", "b"}
