"""The promises about the calls of a plugin: their order, exceptions, deadlines. It knows nothing of gRPC and signals."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from .config import Config
from .error_log import ErrorLog
from .errors import Crashed, NotStarted, PluginError, Stopping, TooLate
from .plugin import Plugin, Start, Status, Stop

T = TypeVar("T")
_LOG = logging.getLogger("guest_agent_plugin")
# The longest deadline; it keeps arithmetic on hostile numbers from overflowing.
_LONGEST_STOP = 24 * 60 * 60.0


class Life:
    """A plugin and the state of its life."""

    def __init__(self, plugin: Plugin, error_log: ErrorLog | None) -> None:
        self._plugin = plugin
        self._error_log = error_log
        self._started = False
        self._stopping = False
        # Held while start, apply or vm_event runs.
        self._work = asyncio.Lock()
        self._stop: asyncio.Task[PluginError | None] | None = None
        self._detached: set[asyncio.Task[None]] = set()
        self.ended = asyncio.Event()
        """Set when stop is over; the process should be gone by the deadline."""
        self.deadline = 0.0
        """On the clock of the event loop."""

    async def start(self, start: Start) -> None:
        """Start the plugin, unless it is started already."""

        async def work() -> None:
            if not self._started:
                await self._contained("start", self._plugin.start(start))
                self._started = True

        await self._alone(work())

    async def apply(self, config: Config) -> None:
        """Hand over a configuration or news of the machine."""

        async def work() -> None:
            if not self._started:
                raise NotStarted("the plugin has not been started")
            event = config.vm_event()
            if event is None:
                await self._contained("apply", self._plugin.apply(config))
            else:
                await self._contained("vm_event", self._plugin.vm_event(event))

        await self._alone(work())

    async def status(self, question: str | None) -> Status:
        """Ask the plugin for its status; it is cancelled with the caller."""
        if question is None:
            return await self._contained("status", self._plugin.status())
        return await self._contained("answer", self._plugin.answer(question))

    async def stop(self, stop: Stop) -> None:
        """Stop the plugin within the deadline. A second call waits for the first stop and has its result."""
        if self._stop is None:
            self._stopping = True
            self._stop = asyncio.create_task(self._end(stop))
        failed = await asyncio.shield(self._stop)
        if failed is not None:
            raise failed

    async def _end(self, stop: Stop) -> PluginError | None:
        allowed = min(stop.deadline, _LONGEST_STOP)
        self.deadline = asyncio.get_running_loop().time() + allowed
        work = asyncio.create_task(self._contained("stop", self._plugin.stop(Stop(stop.cleanup, allowed))))
        await asyncio.wait({work}, timeout=allowed)
        self.ended.set()
        if not work.done():
            work.cancel()
            return TooLate(f"stop did not end within {allowed:g} s")
        failed = work.exception()
        return failed if failed is None or isinstance(failed, PluginError) else Crashed(str(failed))

    async def _alone(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work that never runs beside other work, and that goes on when its caller gives up."""

        async def alone() -> None:
            async with self._work:
                if self._stopping:
                    work.close()
                    raise Stopping("the plugin is stopping")
                await work

        task = asyncio.create_task(alone())
        self._detached.add(task)
        task.add_done_callback(self._detached.discard)
        await asyncio.shield(task)

    async def _contained(self, method: str, call: Awaitable[T]) -> T:
        """Log what was not expected, with its traceback."""
        try:
            return await call
        except PluginError:
            raise
        except Exception as error:
            text = f"{method} failed: {type(error).__name__}: {error}"
            _LOG.error("%s", text, exc_info=True)
            self.log(f"{text}\n{traceback.format_exc()}")
            raise Crashed(text) from error

    def log(self, text: str) -> None:
        """Write an entry into the error log, if the agent gave one."""
        if self._error_log is not None:
            try:
                self._error_log.append(text)
            except OSError as error:
                _LOG.warning("cannot write the error log: %s", error)
