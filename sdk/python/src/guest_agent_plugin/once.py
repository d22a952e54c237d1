"""Plugins that run to completion: no server, no calls, only work and an exit code."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from .arguments import Arguments
from .config import Config
from .environment import Environment
from .errors import PluginError
from .log import setup_logging
from .state import StateDir


@dataclass(frozen=True)
class Run:
    """The argument of the work."""

    state: StateDir
    """The plugin's own directory; the current directory where the process was started by hand."""
    config: Config
    """The configuration. A structure is JSON text here."""
    arguments: list[str]
    """The plugin's own arguments."""
    environment: Environment
    """The plugin's name, revision and trigger."""


def run_once(work: Callable[[Run], None]) -> NoReturn:
    """Run a plugin that runs to completion, and end the process: the whole main of one.

    The exit code is the answer: 0 where the work returns; after an exception 1, and the text of a PluginError, or a
    traceback, is printed, where the agent finds it. SIGTERM asks the process to end: because its time is over, another
    revision is installed, or the plugin is removed. Without a handler of its own it ends at once.
    """
    setup_logging()
    try:
        work(run_of(Environment.read(), sys.argv[1:]))
    except PluginError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


def run_of(environment: Environment, line: list[str]) -> Run:
    """The argument of a process with this environment and command line."""
    # A process that was started by hand has the plugin's own arguments only.
    with contextlib.suppress(ValueError):
        line = Arguments.parse(line).own
    config = Config()
    if environment.config_file:
        try:
            config = Config(Path(environment.config_file).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise PluginError(f"the configuration cannot be read: {error}") from error
    return Run(environment.state or StateDir("."), config, line, environment)
