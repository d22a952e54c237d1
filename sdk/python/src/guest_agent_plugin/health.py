"""What is wrong, remembered, so that health checks are answered from memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from .plugin import Status

_MAX_PROBLEMS = 32
_MAX_REASON = 512


class Health:
    """Remembers what is wrong. It is healthy at first, and may be used from several threads.

    self.worker = self.health.expect("worker", within=60)   # in start
    self.worker.beat()                                      # in the worker, after each round
    self.health.fail("database", "cannot connect")          # where something fails
    self.health.recover("database")                         # and where it works again
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._problems: dict[str, str] = {}
        self._beats: dict[str, Heartbeat] = {}
        self._now = now

    def fail(self, part: str, reason: str) -> None:
        """Say that a part does not work, and why; a later reason replaces an earlier one. Reasons hold no secrets."""
        with self._lock:
            self._problems[part] = reason[:_MAX_REASON]

    def recover(self, part: str) -> None:
        """Say that a part works."""
        with self._lock:
            self._problems.pop(part, None)

    def expect(self, part: str, within: float) -> Heartbeat:
        """Make a part unhealthy that does not beat within so many seconds, from now on."""
        with self._lock:
            beat = Heartbeat(self, part, within, self._now())
            self._beats[part] = beat
            return beat

    def status(self) -> Status:
        """Healthy, or code 1 with a line per problem, sorted."""
        with self._lock:
            lines = [f"{part}: {reason}" for part, reason in self._problems.items()]
            for part, beat in self._beats.items():
                silent = self._now() - beat._last
                if silent > beat._within:
                    lines.append(f"{part}: silent for {silent:.1f} s, expected within {beat._within:g} s")
        if not lines:
            return Status.healthy()
        lines.sort()
        more = len(lines) - _MAX_PROBLEMS
        if more > 0:
            lines[_MAX_PROBLEMS:] = [f"and {more} more"]
        return Status(1, lines)


class Heartbeat:
    """A part of a plugin that has to show that it lives."""

    def __init__(self, health: Health, part: str, within: float, last: float) -> None:
        self._health = health
        self._part = part
        self._within = within
        self._last = last

    def beat(self) -> None:
        """Show that the part lives."""
        with self._health._lock:
            self._last = self._health._now()

    def end(self) -> None:
        """Say that the part has nothing more to do; its silence is no problem from now on."""
        with self._health._lock:
            if self._health._beats.get(self._part) is self:
                del self._health._beats[self._part]
