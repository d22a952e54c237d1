#!/usr/bin/env python3
"""A whole plugin: a typed configuration, state that survives, health from memory, news of the machine.

Questions: `count` counts, `settings` shows the configuration, `events` the news so far.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from guest_agent_plugin import Config, Health, Plugin, Start, StateDir, Status, Stop, VmEvent, run

log = logging.getLogger("counter")


@dataclass
class Settings:
    """What an operator may set."""

    step: int = 1
    unit: str = "things"

    def __post_init__(self) -> None:
        if self.step < 1:
            raise ValueError("step has to be 1 or more")


class Counter(Plugin):
    """Counts, and remembers how far."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.health = Health()
        self.events: list[str] = []
        self.count = 0
        self.worker: asyncio.Task[None] | None = None

    async def start(self, start: Start) -> None:
        """Begin, and return when the work has begun."""
        self.settings = start.config.decode(Settings, strict=True)
        self.state: StateDir = start.state
        self.count = int(self.state.read("count") or b"0")
        self.worker = asyncio.create_task(self.work())
        log.info("started at %d %s", self.count, self.settings.unit)

    async def work(self) -> None:
        """Stand for lasting work. A worker that hangs makes the plugin unhealthy."""
        beat = self.health.expect("worker", within=60)
        while True:
            beat.beat()
            await asyncio.sleep(5)

    async def apply(self, config: Config) -> None:
        """Take over a configuration, or refuse it and keep the former one."""
        self.settings = config.decode(Settings, strict=True)

    async def vm_event(self, event: VmEvent) -> None:
        """Take news of the machine."""
        self.events.append(event.value)

    async def status(self) -> Status:
        """Answer from memory."""
        return self.health.status()

    async def answer(self, question: str) -> Status:
        """Answer a question."""
        match question:
            case "count":
                self.count += self.settings.step
                self.state.write("count", str(self.count).encode())
                return Status.healthy(f"{self.count} {self.settings.unit}")
            case "settings":
                return Status.healthy(f"{self.settings.step} {self.settings.unit}")
            case "events":
                return Status.healthy(*self.events)
            case _:
                return Status.unhealthy(1, "I do not understand that")

    async def stop(self, stop: Stop) -> None:
        """End; the process exits afterwards."""
        if self.worker:
            self.worker.cancel()
        log.info("stopped, cleanup: %s", stop.cleanup)


if __name__ == "__main__":
    run(Counter())
