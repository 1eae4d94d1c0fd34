"""Callers in the test's own process, for what is to be looked at as it comes. They log it, too."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import idalloc
from tests.faults.scenario import Scenario
from tests.support.processes import Server

# How long a caller waits after a call that failed.
PAUSE = 0.05


class Logs:
    """Clients that log what they get.

    Attributes:
        files: Their logs, for ``Scenario.prove``.
    """

    def __init__(self, folder: Path) -> None:
        self.files: list[Path] = []
        self._folder = folder
        self._numbers = count()

    @contextmanager
    def clients(self, nodes: Sequence[Server], timeout: float = 60) -> Iterator[list[idalloc.Client]]:
        """Opens a client for each node, until the end of the block."""
        with ExitStack() as stack:
            yield [stack.enter_context(self._client(node.address, timeout)) for node in nodes]

    @contextmanager
    def client(self, node: Server, timeout: float = 60) -> Iterator[idalloc.Client]:
        """Opens a client of a node, until the end of the block."""
        with self._client(node.address, timeout) as client:
            yield client

    def _client(self, target: str, timeout: float) -> idalloc.Client:
        file = self._folder / f"near-{next(self._numbers)}.ids"
        self.files.append(file)
        return idalloc.Client(target, timeout=timeout, log=file)


class Caller(threading.Thread):
    """Makes a call over and over, until it is stopped.

    Attributes:
        answers: How many of its calls were answered.
        errors: How many failed, by reason.

    Args:
        call: The call. Whatever else than an error of the SDK it raises ends the caller, and is raised by ``stop``.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.answers = 0
        self.errors: Counter[str] = Counter()
        self._call = call
        self._over = threading.Event()
        self._fault: BaseException | None = None
        self.start()

    def run(self) -> None:
        """See ``Thread.run``."""
        while not self._over.is_set():
            try:
                self._call()
            except idalloc.IdallocError as error:
                self.errors[error.reason] += 1
                self._over.wait(PAUSE)
            except BaseException as fault:
                self._fault = fault
                return
            else:
                self.answers += 1

    def stop(self) -> None:
        """Ends it after its present call."""
        self._over.set()
        self.join()
        if self._fault:
            raise self._fault


def wait_for_answers(scenario: Scenario, callers: Sequence[Caller], more: int = 3) -> None:
    """Waits until each caller got so many answers more; one that ended by a fault raises it here."""
    goals = [caller.answers + more for caller in callers]

    def reached() -> bool:
        for caller in callers:
            if not caller.is_alive():
                caller.stop()
        return all(caller.answers >= goal for caller, goal in zip(callers, goals, strict=True))

    scenario.wait_until(reached, f"{more} more answers for each caller")
