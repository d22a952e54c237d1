"""The registry, with an agent's registry in this process."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from helpers import PATIENCE, run

from guest_agent_plugin import Environment
from guest_agent_plugin.registry import Kind, NotFound, NotUnderAgent, Offer, Refused, Registry, TimedOut, Unreachable
from guest_agent_plugin.testing import FakeRegistry

HELLO = Offer("greeter", "hello", "/run/hello.sock", version="1", options={"a": "b"})


def test_an_offer_is_found_until_it_is_withdrawn() -> None:
    async def main() -> None:
        async with FakeRegistry() as agent, agent.of("provider") as provider, agent.of("consumer") as consumer:
            with pytest.raises(NotFound):
                await consumer.get("greeter", "hello")
            waiting = asyncio.create_task(consumer.wait("greeter", "hello", PATIENCE))
            kept = await provider.offer(HELLO)
            entry = await waiting
            assert (entry.plugin, entry.offer.instance) == ("provider", "provider")
            assert entry.offer.options == {"a": "b"}
            assert [it.offer.socket for it in await consumer.list()] == ["/run/hello.sock"]
            await kept.withdraw()
            assert await consumer.list("greeter") == []
            with pytest.raises(TimedOut):
                await consumer.wait("greeter", "hello", 0.05)

    run(main())


def test_a_watch_tells_every_change_and_survives_a_restart() -> None:
    async def main() -> None:
        async with FakeRegistry() as agent, agent.of("provider") as provider, agent.of("consumer") as consumer:
            watch = consumer.watch("greeter")
            assert (await watch.next()).kind is Kind.SNAPSHOT
            await provider.register(HELLO)
            assert (await watch.next()).kind is Kind.REGISTERED
            await provider.register(Offer("greeter", "hello", "/run/hello.sock", version="2"))
            assert (await watch.next()).kind is Kind.UPDATED
            assert [it.offer.version for it in watch.known] == ["2"]
            await agent.restart()
            assert len((await watch.next()).entries) == 1
            await provider.deregister("greeter", "hello")
            update = await watch.next()
            assert (update.kind, update.entry.plugin) == (Kind.WITHDRAWN, "provider")
            assert watch.known == []
            watch.close()

    run(main())


def test_a_kept_offer_comes_back_when_the_agent_lost_it() -> None:
    async def main() -> None:
        async with FakeRegistry() as agent, agent.of("provider") as provider, agent.of("consumer") as consumer:
            kept = await provider.offer(HELLO)
            await agent.restart(lose=True)
            await consumer.wait("greeter", "hello", PATIENCE)
            await kept.withdraw()

    run(main())


def test_following_changes_with_the_provider() -> None:
    async def main() -> None:
        async with FakeRegistry() as agent, agent.of("one") as one, agent.of("two") as two, agent.of("me") as me:
            following = me.follow("greeter", "hello")
            assert following.now is None
            await one.register(HELLO)
            first = await following.connection(PATIENCE)
            assert first.entry.plugin == "one"
            await agent.restart()
            await two.register(HELLO)
            while (await following.connection(PATIENCE)).entry.plugin != "two":  # noqa: ASYNC110 - it has no event for that
                await asyncio.sleep(0.001)
            await following.close()
            dispensed = await me.dispense("greeter", "hello")
            assert dispensed.entry.plugin == "two"
            await dispensed.close()

    run(main())


def test_a_refusal_is_not_tried_again() -> None:
    async def main() -> None:
        async with FakeRegistry() as agent, agent.of("provider") as provider:
            with pytest.raises(Refused) as refused:
                await provider.register(Offer("", "", ""))
            assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT

    run(main())


def test_an_agent_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with FakeRegistry() as agent, agent.of("me") as me:
            await agent._server.stop(None)
            monkeypatch.setattr("guest_agent_plugin.registry._PATIENCE", 0.0)
            with pytest.raises(Unreachable):
                await me.list()
            monkeypatch.setattr("guest_agent_plugin.registry._PATIENCE", PATIENCE)
            listing = asyncio.create_task(me.list())
            await agent._listen()
            assert await listing == []

    run(main())


def test_without_an_agent_there_is_no_registry() -> None:
    with pytest.raises(NotUnderAgent):
        Registry.from_env(Environment())
