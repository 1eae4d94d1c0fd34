"""Clients in the test's own process, for tests that inspect each answer; they log their ids."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import idalloc
from tests.support.faults.scenario import Scenario
from tests.support.processes import Server

# How long a call loop waits after a failed call, in seconds.
RETRY_PAUSE = 0.05


@dataclass(eq=False)
class LoggedClients:
    """Opens clients that log issued ids."""

    folder: Path
    files: list[Path] = field(default_factory=list)  # the logs, for ``Scenario.prove``

    @contextmanager
    def clients(self, nodes: Sequence[Server], timeout: float = 60) -> Iterator[list[idalloc.Client]]:
        """Open a client for each node, until the end of the block."""
        with ExitStack() as stack:
            yield [stack.enter_context(self._client(node.address, timeout)) for node in nodes]

    @contextmanager
    def client(self, node: Server, timeout: float = 60) -> Iterator[idalloc.Client]:
        """Open a client of a node, until the end of the block."""
        with self._client(node.address, timeout) as client:
            yield client

    def _client(self, target: str, timeout: float) -> idalloc.Client:
        file = self.folder / f"local-{len(self.files)}.ids"
        self.files.append(file)
        return idalloc.Client(target, timeout=timeout, log=file)


class CallLoop(threading.Thread):
    """A thread that repeats a call until it is stopped."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.answers = 0  # successful calls
        self.errors: Counter[str] = Counter()  # failed calls, by reason
        self._call = call
        self._stop_requested = threading.Event()
        # An exception other than the SDK's ends the loop, and ``stop`` raises it.
        self._fault: BaseException | None = None
        self.start()

    def run(self) -> None:
        """See ``Thread.run``."""
        while not self._stop_requested.is_set():
            try:
                self._call()
            except idalloc.IdallocError as error:
                self.errors[error.reason] += 1
                self._stop_requested.wait(RETRY_PAUSE)
            except BaseException as fault:
                self._fault = fault
                return
            else:
                self.answers += 1

    def stop(self) -> None:
        """End the loop after its current call."""
        self._stop_requested.set()
        self.join()
        if self._fault:
            raise self._fault


def wait_for_answers(scenario: Scenario, callers: Sequence[CallLoop], more: int = 3) -> None:
    """Wait until each loop has ``more`` further answers; raise the exception of one that ended."""
    goals = [caller.answers + more for caller in callers]

    def reached() -> bool:
        for caller in callers:
            if not caller.is_alive():
                caller.stop()
        return all(caller.answers >= goal for caller, goal in zip(callers, goals, strict=True))

    scenario.wait_until(reached, f"{more} more answers for each caller")
