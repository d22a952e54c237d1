"""A plugin over a real socket, called as the agent calls it."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Awaitable
from pathlib import Path

import grpc
import pytest
from helpers import run

from guest_agent_plugin import (
    Address,
    BadConfig,
    Config,
    ErrorLog,
    Plugin,
    PluginError,
    Server,
    Start,
    Status,
    Stop,
    Unsupported,
    VmEvent,
)
from guest_agent_plugin.testing import Refusal, Tested


class Scripted(Plugin):
    """Does as its configurations and questions say, and writes down what it was asked."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def start(self, start: Start) -> None:
        self.heard.append(f"start {start.config.text}")
        if start.config.text == "fail":
            raise PluginError("no such licence")
        if start.config.text == "crash":
            raise ZeroDivisionError("start gone wrong")

    async def apply(self, config: Config) -> None:
        self.heard.append(f"apply {config.text}")
        if config.text == "unsupported":
            raise Unsupported
        if config.text == "bad":
            raise BadConfig("no port")

    async def vm_event(self, event: VmEvent) -> None:
        self.heard.append(f"event {event.value}")
        if event is VmEvent.SPECIALIZE:
            raise Unsupported

    async def answer(self, question: str) -> Status:
        if question == "not text":
            return Status.healthy("\udcff")
        return Status.unhealthy(0, question)

    async def stop(self, stop: Stop) -> None:
        self.heard.append(f"stop {stop.cleanup}")
        if stop.deadline < 1:
            await asyncio.Event().wait()


class OnlyStart(Plugin):
    async def start(self, start: Start) -> None:
        pass


async def refused(call: Awaitable[None], code: str, text: str) -> None:
    with pytest.raises(Refusal) as refusal:
        await call
    assert refusal.value.code is getattr(grpc.StatusCode, code)
    assert text in refusal.value.message


def test_calls_come_in_their_order() -> None:
    async def main() -> None:
        plugin = Scripted()
        async with Tested(plugin) as tested:
            assert (await tested.health()).code == 0
            await refused(tested.apply("early"), "FAILED_PRECONDITION", "not been started")
            await refused(tested.start("fail"), "INTERNAL", "no such licence")
            await refused(tested.start("crash"), "INTERNAL", "start failed: ZeroDivisionError: start gone wrong")
            await tested.start("first")
            await tested.start("again")
            await tested.apply("second")
            await refused(tested.apply("unsupported"), "UNIMPLEMENTED", "not supported")
            await refused(tested.apply("bad"), "INVALID_ARGUMENT", "bad configuration: no port")
            await tested.apply(None)
            await tested.vm_event("startup")
            await tested.vm_event("moon")
            await refused(tested.vm_event("specialize"), "UNIMPLEMENTED", "")
            await tested.stop(cleanup=True)
            await tested.ended()
        heard = "start fail,start crash,start first,apply second,apply unsupported,apply bad,apply ,event startup"
        assert plugin.heard == [*heard.split(","), "event other", "event specialize", "stop True"]

    run(main())


def test_answers_are_valid_text_and_never_healthy_by_mistake() -> None:
    async def main() -> None:
        async with Tested(Scripted()) as tested:
            assert await tested.ask("what") == Status(1, ["what"])
            assert (await tested.ask("not text")).results == ["?"]

    run(main())


def test_a_stop_that_hangs_ends_at_its_deadline() -> None:
    async def main() -> None:
        async with Tested(Scripted()) as tested:
            await refused(tested.stop(deadline=0.05), "DEADLINE_EXCEEDED", "stop did not end within 0.05 s")
            await tested.ended()

    run(main())


def test_a_signal_stops_as_the_agent_does() -> None:
    async def main() -> None:
        plugin = Scripted()
        async with Tested(plugin) as tested:
            await tested.signal()
        assert plugin.heard == ["stop False"]

    run(main())


def test_the_defaults_ask_for_a_restart_and_are_healthy() -> None:
    async def main() -> None:
        async with Tested(OnlyStart()) as tested:
            await tested.start({"a": 1})
            await refused(tested.apply("x"), "UNIMPLEMENTED", "")
            await refused(tested.vm_event("shutdown"), "UNIMPLEMENTED", "")
            assert (await tested.health()).code == 0
            assert (await tested.ask("x")).code == 1

    run(main())


def test_a_mistake_is_in_the_error_log_with_its_traceback(tmp_path: Path) -> None:
    async def main() -> None:
        log = tmp_path / "log"
        address = Address.unix(str(tmp_path / "s"))
        until = asyncio.Event()
        server = await Server.bind(Scripted(), address, ErrorLog(log))
        with pytest.raises(PluginError):
            await server._life.start(Start(None, Config("crash")))  # type: ignore[arg-type]
        until.set()
        await server.run(until)
        assert "ZeroDivisionError: start gone wrong\n    Traceback" in log.read_text()
        assert log.stat().st_mode & 0o777 == 0o600

    run(main())


def test_the_socket_is_the_owners_alone_and_only_stale_ones_are_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "s"
        address = Address.unix(str(path))
        until = asyncio.Event()
        until.set()
        first = await Server.bind(OnlyStart(), address)
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
        with pytest.raises(OSError, match="another process listens"):
            await Server.bind(OnlyStart(), address)
        await first.run(until)
        assert not path.exists()
        path.write_text("precious")
        with pytest.raises(OSError, match="is not a socket"):
            await Server.bind(OnlyStart(), address)
        assert path.read_text() == "precious"

    run(main())


def test_a_port_of_the_loopback_addresses_is_listened_on() -> None:
    async def main() -> None:
        server = await Server.bind(OnlyStart(), Address.parse("tcp", "[::]:0"))
        assert server.address.port != 0
        assert set(server.address.hosts) <= {"::1", "127.0.0.1"}
        with pytest.raises(OSError, match="cannot listen on"):
            await Server.bind(OnlyStart(), Address(hosts=("127.0.0.1",), port=server.address.port))
        until = asyncio.Event()
        until.set()
        await server.run(until)

    run(main())
