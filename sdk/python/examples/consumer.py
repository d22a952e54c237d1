#!/usr/bin/env python3
"""A plugin that uses what another one offers, through restarts of that plugin. `provider.py` is the other half.

Its own argument is the name that it follows. Questions: `greet` asks the current provider for its greeting, `heard` lists
the changes of the type since the start.
"""

from __future__ import annotations

import asyncio

from guest_agent_plugin import Arguments, Plugin, Start, Status, Stop, run
from guest_agent_plugin.registry import Kind, Registry, RegistryError


class Consumer(Plugin):
    """Follows a greeter."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heard: list[str] = []

    async def start(self, start: Start) -> None:
        """Follow the greeter, and watch all of them."""
        self.registry = Registry.from_env()
        self.following = self.registry.follow("greeter", self.name)
        self.watching = asyncio.create_task(self.watch())

    async def watch(self) -> None:
        """Write down every change."""
        async for update in self.registry.watch("greeter"):
            what = str(len(update.entries)) if update.kind is Kind.SNAPSHOT else update.entry.offer.name
            self.heard.append(f"{update.kind.name} {what}")

    async def answer(self, question: str) -> Status:
        """Answer a question."""
        if question == "heard":
            return Status.healthy(*self.heard)
        try:
            # Shorter than the agent waits for an answer.
            provider = await self.following.connection(timeout=3)
            # A gRPC client would be made of `provider.channel`.
            reader, writer = await asyncio.open_unix_connection(provider.entry.offer.socket)
            greeting = (await reader.read()).decode()
            writer.close()
        except (RegistryError, OSError) as error:
            return Status.unhealthy(1, str(error))
        return Status.healthy(greeting)

    async def stop(self, stop: Stop) -> None:
        """End."""
        self.watching.cancel()
        await self.following.close()
        await self.registry.close()


if __name__ == "__main__":
    run(Consumer(Arguments.parse().own[0]))
