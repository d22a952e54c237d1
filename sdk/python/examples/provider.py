#!/usr/bin/env python3
"""A plugin that offers a greeting to other plugins, on a socket of its own. `consumer.py` is the other half.

Its own arguments are the name in the registry and the greeting.
"""

from __future__ import annotations

import asyncio

from guest_agent_plugin import Arguments, Plugin, Start, Stop, run
from guest_agent_plugin.registry import Offer, Registry


class Provider(Plugin):
    """Greets every client that connects."""

    def __init__(self, name: str, greeting: str) -> None:
        self.name = name
        self.greeting = greeting

    async def start(self, start: Start) -> None:
        """Listen first: the agent tries whether the socket answers."""
        start.state.remove("greet.sock")
        socket = str(start.state / "greet.sock")
        self.server = await asyncio.start_unix_server(self.greet, socket)
        self.registry = Registry.from_env()
        self.kept = await self.registry.offer(Offer("greeter", self.name, socket, version="1"))

    async def greet(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Greet a client. The agent connects as well, to see whether somebody listens, and leaves."""
        writer.write(self.greeting.encode())
        writer.close()

    async def stop(self, stop: Stop) -> None:
        """End; the entry goes with the process."""
        await self.registry.close()


if __name__ == "__main__":
    own = Arguments.parse().own
    run(Provider(own[0], own[1]))
