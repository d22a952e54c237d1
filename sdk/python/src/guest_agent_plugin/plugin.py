"""The class that a plugin is, and the arguments of its methods."""

from __future__ import annotations

import abc
from dataclasses import dataclass, field

from .config import Config, VmEvent
from .errors import Unsupported
from .state import StateDir


@dataclass(frozen=True)
class Start:
    """The argument of Plugin.start."""

    state: StateDir
    """A directory that belongs to this plugin alone and survives restarts and upgrades. It exists already."""
    config: Config
    """The configuration that came with the order to install the plugin, or the latest one since; it may be absent."""


@dataclass(frozen=True)
class Stop:
    """The argument of Plugin.stop."""

    cleanup: bool
    """Whether the plugin is being removed, and deletes what it made outside of its own directories."""
    deadline: float
    """How many seconds stopping may take. A stop that still runs then is cancelled, and the agent kills the process."""


@dataclass(frozen=True)
class Status:
    """A code and lines of text: the health of a plugin, or its answer to a question."""

    code: int = 0
    """Zero is healthy. Anything else is unhealthy but alive; the plugin defines the numbers."""
    results: list[str] = field(default_factory=list)
    """Lines for people that explain the code, or the answer to a question."""

    @staticmethod
    def healthy(*lines: str) -> Status:
        """Code 0 with these lines: healthy, or the answer to a question."""
        return Status(0, list(lines))

    @staticmethod
    def unhealthy(code: int, reason: str) -> Status:
        """A code other than zero and its reason. Code 0 would mean healthy and becomes 1."""
        return Status(code or 1, [reason])


class Plugin(abc.ABC):
    """What guest-agent calls. Only `start` has to be written.

    - `start`, `apply` and `vm_event` never run at the same time as each other, and the last two never before a `start` that
      succeeded.
    - `status` and `answer` may be called at any time, before `start` too, and several at once. They are cancelled when the
      agent no longer waits; the others run to their end.
    - `stop` is called at most once, at any time, also while another method runs or when `start` never succeeded. Nothing is
      started or applied after it.
    - An exception fails that one call. A PluginError is a failure that was expected; any other one is logged with its
      traceback.
    """

    @abc.abstractmethod
    async def start(self, start: Start) -> None:
        """Begin the plugin's work and return when it is running, not when it is done: lasting work is a task.

        A start that succeeded is not repeated: when a restarted agent asks again, the SDK answers with success.
        """

    async def stop(self, stop: Stop) -> None:  # noqa: B027 - it need not be written
        """End the plugin's work. When it returns, the process is about to exit."""

    async def status(self) -> Status:
        """Answer a health check, from memory, such as with Health."""
        return Status.healthy()

    async def answer(self, question: str) -> Status:
        """Answer a question that only this plugin understands, from an operator or the control plane."""
        return Status.unhealthy(1, "this plugin answers no questions")

    async def apply(self, config: Config) -> None:
        """Take over a new configuration while running; it is absent where it was cleared.

        Unsupported makes the agent restart the plugin with it. Any other exception is a refusal: the plugin keeps the
        configuration that it had.
        """
        raise Unsupported

    async def vm_event(self, event: VmEvent) -> None:
        """Take news of the machine. Unsupported means "not interested"."""
        raise Unsupported
