#!/usr/bin/env python3
"""A plugin that greets: its configuration has the greeting, a question is the name of who is greeted."""

from __future__ import annotations

import pathlib
import sys
from dataclasses import dataclass

# What `build` put beside this file.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))

from guest_agent_plugin import Config, Health, Plugin, Start, Status, run  # noqa: E402


@dataclass
class Settings:
    """What an operator may set."""

    greeting: str = "hello"

    def __post_init__(self) -> None:
        if "\n" in self.greeting:
            raise ValueError("a greeting is one line")


class Greeter(Plugin):
    """Greets."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.health = Health()

    async def start(self, start: Start) -> None:
        """Return when the work has begun, not when it is done."""
        self.settings = start.config.decode(Settings, strict=True)
        print("started", flush=True)

    async def apply(self, config: Config) -> None:
        """Take over a configuration, or refuse it and keep the former one."""
        self.settings = config.decode(Settings, strict=True)

    async def status(self) -> Status:
        """Answer from memory: a health check comes every few seconds."""
        return self.health.status()

    async def answer(self, question: str) -> Status:
        """Answer a question."""
        return Status.healthy(f"{self.settings.greeting}, {question}")


if __name__ == "__main__":
    run(Greeter())
