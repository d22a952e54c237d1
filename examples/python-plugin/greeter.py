#!/usr/bin/env python3
"""A whole plugin in Python: it answers requests with a greeting, counts them, and remembers the count.

What it is started with and what each call means is in docs/writing-plugins.md.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

# What `build` put beside this file: the SDK, and what it needs.
sys.path.insert(0, str(Path(__file__).resolve().parent / "lib"))

from guest_agent_plugin import BadConfig, Config, Plugin, Start, StateDir, Status, Stop, run

log = logging.getLogger("greeter")


class Greeter(Plugin):
    """The plugin. All calls run on one event loop: work that blocks belongs into asyncio.to_thread."""

    state: StateDir
    greeting = "hello"
    count = 0

    async def start(self, start: Start) -> None:
        """Begin. Return when the work has begun, not when it is done."""
        await self.apply(start.config)
        # This directory is the plugin's alone and survives restarts and upgrades.
        self.state = start.state
        counted = (self.state.read("count") or b"").decode(errors="replace")
        self.count = int(counted) if counted.isdecimal() else 0  # none, or a damaged one, counts from 0
        log.info("started greetings=%d", self.count)  # `guest-agent logs NAME` shows it

    async def apply(self, config: Config) -> None:
        """Use another configuration. An exception refuses it: the agent reports that the old one is still in use."""
        if "\n" in config.text:
            raise BadConfig("a greeting is one line")
        self.greeting = config.text or "hello"

    async def answer(self, question: str) -> Status:
        """Answer a question. Health checks are answered by Plugin."""
        self.count += 1
        try:
            self.state.write("count", str(self.count).encode())
        except OSError as error:
            return Status.unhealthy(1, f"cannot write my count: {error}")  # unhealthy, but alive
        return Status.healthy(f"{self.greeting}, {question}")

    async def stop(self, stop: Stop) -> None:
        """End, before a restart or an upgrade, and with cleanup before the plugin is removed for good.

        Then wipe what is outside of the state directory, which the agent deletes itself.
        """
        log.info("stopping cleanup=%s", str(stop.cleanup).lower())


if __name__ == "__main__":
    run(Greeter())
