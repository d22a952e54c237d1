"""From a plugin to a process: arguments, error log, signals, event loop, exit code."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from typing import Any, NoReturn

from .arguments import Arguments, error_log_of
from .error_log import ErrorLog
from .errors import PluginError
from .log import setup_logging
from .plugin import Plugin
from .server import Server

_LOG = logging.getLogger("guest_agent_plugin")


def run(plugin: Plugin, *, log_level: int | str = logging.INFO) -> NoReturn:
    """Serve the plugin until it is stopped, and end the process: the whole main of a plugin.

    The exit code is 0 after a stop; otherwise the error is printed and appended to the error log, and the exit code is 1.
    """
    setup_logging(log_level)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # what is printed is in the agent's log at once
    try:
        asyncio.run(serve(plugin))
    except (OSError, ValueError, PluginError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


async def serve(plugin: Plugin, arguments: Arguments | None = None) -> None:
    """Serve the plugin until it is stopped, with the arguments given or those of the process.

    SIGTERM and SIGINT stop the plugin as the agent's Stop would. Return from main then. An exception has been appended to the
    error log already.
    """
    log = None
    try:
        path = arguments.error_log if arguments else error_log_of(sys.argv[1:])
        log = ErrorLog(path) if path else None
        arguments = arguments or Arguments.parse()
        server = await Server.bind(plugin, arguments.address, log)
        until = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, until.set)
        loop.set_exception_handler(lambda loop, context: _record(server, loop, context))
        await server.run(until)
    except Exception as error:
        if log is not None:
            try:
                log.append(f"error: {error}")
            except OSError as failed:
                _LOG.warning("cannot write the error log: %s", failed)
        raise


def _record(server: Server, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Write an exception of a task that nobody awaits into the error log, beside what asyncio does with it."""
    error = context.get("exception")
    server.log(f"{context.get('message')}: {type(error).__name__}: {error}" if error else str(context.get("message")))
    loop.default_exception_handler(context)
