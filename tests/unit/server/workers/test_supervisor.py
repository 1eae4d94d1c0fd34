"""The supervisor with fake workers."""

import asyncio
import os
import signal
import sys

import pytest
from structlog.testing import capture_logs

from idalloc_server.domain.errors import (
    StartRefused,
    StoreUnavailable,
)
from idalloc_server.settings.model import Settings
from idalloc_server.telemetry import families
from idalloc_server.telemetry.metrics import Counts
from idalloc_server.telemetry.series import MIN_IDS
from idalloc_server.workers import messages, supervisor
from tests.support.fake_workers import SECONDS, FakeWorkers
from tests.support.supervised import new_supervisor, start_both, supervised, supervised_settings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers share a port on Linux only")


def report(lease_count: int = 0, **candidates: int) -> messages.Report:
    return messages.Report(Counts(gauges={families.LEASES: {"": lease_count}}).to_json(), {}, candidates)


class TestStarting:
    async def test_health_waits_for_the_last_worker(self, workers: FakeWorkers) -> None:
        """Health becomes SERVING once every worker is ready."""
        async with supervised(workers):
            one, other = await workers.next(), await workers.next()
            await one.expect(messages.Start)
            one.pipe.send(messages.Ready({}))
            first = asyncio.create_task(one.expect(messages.Serve))
            settings = (await other.expect(messages.Start)).settings
            assert settings["listen"] != "127.0.0.1:0"
            assert (await asyncio.wait({first}, timeout=0.05))[0] == set()
            other.pipe.send(messages.Ready({}))
            await asyncio.wait_for(first, SECONDS)

    @pytest.mark.parametrize(
        ("reason", "error"),
        [
            ("", StartRefused("listen", "is none: name it")),
            ("STORE_REFUSED", StartRefused("store", "host:4200: wrong password")),
            ("STORE_UNAVAILABLE", StoreUnavailable("host:4200: it is away")),
        ],
    )
    async def test_start_error_of_a_worker_stops_the_server(
        self, workers: FakeWorkers, reason: str, error: StartRefused | StoreUnavailable
    ) -> None:
        """A start fails with the error of its first failing worker, and kills the others."""
        async with supervised(workers) as running:
            one, other = await workers.next(), await workers.next()
            one.pipe.send(messages.Ready({}))
            other.pipe.send(messages.StartFailed(reason, str(error).removeprefix("store: ")))
            with pytest.raises(type(error), match=str(error)):
                await asyncio.wait_for(running, SECONDS)
            assert one.exited.is_set()  # It was killed, since it did not serve yet.

    async def test_worker_exit_during_start_stops_the_server(self, workers: FakeWorkers) -> None:
        """A start fails if a worker exits before it is ready."""
        async with supervised(workers) as running:
            one, other = await workers.next(), await workers.next()
            one.pipe.send(messages.Ready({}))
            await other.exit()
            with pytest.raises(StartRefused, match="workers: "):
                await asyncio.wait_for(running, SECONDS)

    async def test_worker_exit_before_serving_stops_the_server(self, workers: FakeWorkers) -> None:
        """A start fails if a ready worker exits before health is SERVING."""
        async with supervised(workers) as running:
            one, other = await workers.next(), await workers.next()
            for worker in (one, other):
                await worker.expect(messages.Start)
                worker.pipe.send(messages.Ready({}))
            await one.expect(messages.Serve)
            one.pipe.send(messages.Serving("here", "a store", 0))
            await other.exit()
            await one.expect(messages.Stop)
            await one.exit()
            with pytest.raises(StartRefused, match="workers: "):
                await asyncio.wait_for(running, SECONDS)

    async def test_unresponsive_worker_at_start_stops_the_server(
        self, workers: FakeWorkers, short_timeout: str
    ) -> None:
        """A start fails if a worker does not reply in time."""
        async with supervised(workers, store_timeout=short_timeout) as running:
            one, _ = await workers.next(), await workers.next()
            one.pipe.send(messages.Ready({}))
            with pytest.raises(StartRefused, match="workers: "):
                await asyncio.wait_for(running, SECONDS)

    @pytest.mark.parametrize("step", ["start", "serve"])
    async def test_stop_signal_during_the_start_stops_all(self, workers: FakeWorkers, step: str) -> None:
        """A stop signal that comes before the workers serve stops all of them, with exit code 0."""
        server = new_supervisor(supervised_settings())
        running = asyncio.create_task(server.run())
        one, other = await workers.next(), await workers.next()
        if step == "serve":
            for worker in (one, other):
                worker.pipe.send(messages.Ready({}))
            await one.expect(messages.Serve)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(running, SECONDS) == 0
        assert one.exited.is_set()
        assert other.exited.is_set()


class TestReplacing:
    async def test_failed_replacement_is_retried(self, workers: FakeWorkers) -> None:
        """The supervisor retries a replacement that cannot start, and the server goes on."""
        async with supervised(workers) as running:
            one, _ = await start_both(workers)
            await one.exit()
            for error in (StoreUnavailable("it is away"), StartRefused("node_prefix", "in use")):
                late = await workers.next()
                late.pipe.send(messages.StartFailed(getattr(error, "reason", ""), str(error)))
                await late.exit()
            await (await workers.next()).serve()
            assert not running.done()

    async def test_pauses_grow_while_no_process_can_start(
        self, workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The pause between attempts doubles while the system cannot create a process."""
        monkeypatch.setattr(supervisor, "STABLE_SECONDS", 0.0)  # as if it had served long
        monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", 0.1)
        async with supervised(workers):
            one, _ = await start_both(workers)
            workers.start_errors = [BlockingIOError("no process left") for _ in range(4)]
            clock = asyncio.get_running_loop().time
            began = clock()
            with capture_logs() as logs:
                await one.exit()
                await (await workers.next()).serve()
            assert workers.start_attempts == 2 + 4 + 1
            assert clock() - began > 0.1 + 0.2 + 0.4 + 0.8 - 0.1
            assert [line["event"] for line in logs].count("worker_ended") == 1
            assert [line["error"] for line in logs if line["event"] == "worker_not_started"] == ["no process left"] * 4

    async def test_pauses_grow_while_replacements_never_serve(
        self, workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The pause before a replacement doubles while no replacement serves."""
        monkeypatch.setattr(supervisor, "STABLE_SECONDS", 0.0)
        monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", 0.1)
        async with supervised(workers):
            one, _ = await start_both(workers)
            with capture_logs() as logs:
                await one.exit()
                for _ in range(3):
                    late = await workers.next()
                    late.pipe.send(messages.StartFailed("STORE_UNAVAILABLE", "it is away"))
                    await late.exit()
                await workers.next()
            assert [line["restart_in"] for line in logs if line["event"] == "worker_ended"] == [0.0, 0.1, 0.2, 0.4]

    async def test_unresponsive_replacement_is_killed_and_replaced(
        self, workers: FakeWorkers, short_timeout: str
    ) -> None:
        """An unresponsive replacement is killed; the next one has the newest settings."""
        async with supervised(workers, store_timeout=short_timeout):
            one, other = await start_both(workers)
            await one.exit()
            hung = await workers.next()
            await hung.expect(messages.Start)
            await other.change(auto_increment_offset=5)
            await asyncio.wait_for(hung.exited.wait(), SECONDS)
            assert (await (await workers.next()).serve())["auto_increment_offset"] == 5


class TestAuthentication:
    async def test_authentication_is_required_in_all_workers(self, workers: FakeWorkers) -> None:
        """Once one worker requires authentication, all present and later workers do."""
        async with supervised(workers):
            one, other = await start_both(workers)
            assert [each.start.requires_authentication for each in (one, other)] == [False, False]
            await one.exit()
            late = await workers.next()
            assert (await late.expect(messages.Start)).requires_authentication is False
            other.pipe.send(messages.AuthenticationRequired())
            await late.expect(messages.AuthenticationRequired)  # even while it starts
            await other.expect(messages.AuthenticationRequired)
            await late.exit()
            later = await workers.next()
            await later.serve()
            assert later.start.requires_authentication

    async def test_required_authentication_is_broadcast_once(self, workers: FakeWorkers) -> None:
        """The supervisor sends each worker the requirement once."""
        async with supervised(workers):
            one, other = await start_both(workers)
            one.pipe.send(messages.AuthenticationRequired())
            await other.expect(messages.AuthenticationRequired)
            other.pipe.send(messages.AuthenticationRequired())
            other.pipe.send(report())
            await other.expect(messages.NodeState)
            await one.expect(messages.AuthenticationRequired)
            one.pipe.send(report())
            await one.expect(messages.NodeState)


class TestStopping:
    @pytest.mark.parametrize("ends", [True, False])
    async def test_exit_code_is_1_if_a_worker_was_killed(
        self, workers: FakeWorkers, monkeypatch: pytest.MonkeyPatch, ends: bool
    ) -> None:
        """The exit code of a stop is 0, or 1 if a worker had to be killed."""
        monkeypatch.setattr(supervisor, "STOP_MARGIN_SECONDS", SECONDS if ends else 1.0)
        settings = Settings.model_validate({"listen": "127.0.0.1:0", "workers": 2, "drain_timeout": "0s"})
        server = new_supervisor(settings)
        running = asyncio.create_task(server.run())
        one, other = await start_both(workers)
        with capture_logs() as logs:
            server._on_stop_signal(signal.SIGTERM)
            for worker in (one, other):
                await worker.expect(messages.Stop)
            one.pipe.send(messages.Closed())
            one.pipe.send(messages.Drained())
            if ends:
                other.pipe.send(messages.Closed())
                for worker in (one, other):
                    await worker.expect(messages.AllClosed)
                other.pipe.send(messages.Drained())
                for worker in (one, other):
                    await worker.expect(messages.Exit)
                    await worker.exit()
            assert await asyncio.wait_for(running, SECONDS) == (0 if ends else 1)
        killed = [(line["workers"], line["exit_code"]) for line in logs if line["event"] == "workers_killed"]
        assert killed == ([] if ends else [([1, 2], 1)])
        assert one.exited.is_set()
        assert other.exited.is_set()

    async def test_calls_are_rejected_after_all_workers_closed(self, workers: FakeWorkers) -> None:
        """No rejected caller reconnects to a worker that is about to close."""
        settings = Settings.model_validate({"listen": "127.0.0.1:0", "workers": 2})
        server = new_supervisor(settings)
        running = asyncio.create_task(server.run())
        one, other = await start_both(workers)
        server._on_stop_signal(signal.SIGTERM)
        for worker in (one, other):
            await worker.expect(messages.Stop)
        one.pipe.send(messages.Closed())
        one.pipe.send(report())
        await one.expect(messages.NodeState)  # and no AllClosed before it
        await other.exit()
        await one.expect(messages.AllClosed)
        one.pipe.send(messages.Drained())
        await one.expect(messages.Exit)
        await one.exit()
        assert await asyncio.wait_for(running, SECONDS) == 0


class TestCounting:
    async def test_lease_count_sums_the_other_workers(self, workers: FakeWorkers) -> None:
        """A worker that reports its counts gets the number of leases of the other workers."""
        async with supervised(workers):
            one, other = await start_both(workers)
            for worker, own, of_others in ((one, 1, 0), (other, 4, 1), (one, 2, 4)):
                worker.pipe.send(report(own))
                assert (await worker.expect(messages.NodeState)).other_leases == of_others

    async def test_sequences_get_a_series_by_their_ids_in_all_workers(self, workers: FakeWorkers) -> None:
        """A sequence gets a series when all workers together have issued enough of its ids."""
        async with supervised(workers):
            one, other = await start_both(workers)
            for worker, series in ((one, []), (other, ["orders"]), (one, ["orders"])):
                worker.pipe.send(report(orders=MIN_IDS // 2))
                assert (await worker.expect(messages.NodeState)).series == series

    async def test_rates_of_the_other_workers_are_added(self, workers: FakeWorkers) -> None:
        """A worker gets the sums of the others' rates; one that has exited is left out."""
        async with supervised(workers, count=4):
            asking, one, other, exited = [await workers.next() for _ in range(4)]
            await asyncio.gather(*(each.serve() for each in workers.all))
            receiving = asyncio.create_task(asking.expect(messages.Answered))
            rates = asyncio.create_task(asking.pipe.ask("rates", {"counters": ["a", "b", "c"]}, SECONDS))
            for each, found in ((one, {"a": 1.0, "b": 2.0}), (other, {"b": 3.0})):
                asked = await each.expect(messages.Asked)
                assert asked.arguments == {"counters": ["a", "b", "c"]}
                each.pipe.send(messages.Answered(asked.number, "", found))
            await exited.expect(messages.Asked)
            await exited.exit()
            assert await rates == {"a": 1.0, "b": 5.0, "c": 0.0}
            await receiving
