"""The command line: the plugin's own arguments first, then the agent's three."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from .address import Address


@dataclass(frozen=True)
class Arguments:
    """The parsed command line. Of the agent's arguments the last occurrence counts; an earlier one is the plugin's own."""

    own: list[str]
    address: Address
    error_log: str | None = None

    @staticmethod
    def parse(line: Sequence[str] | None = None) -> Arguments:
        """Read a command line without the program's name, or that of this process.

        The agent's arguments may be written --key=value or --key value. ValueError says what is wrong.
        """
        own = list(sys.argv[1:] if line is None else line)

        def required(name: str) -> str:
            value = _take(own, name)
            if value is None:
                raise ValueError(
                    f"{name} is missing: guest-agent adds it when it launches a plugin; to try one by hand, add "
                    "--protocol=unix --address=/tmp/plugin.sock"
                )
            return value

        protocol = required("--protocol")
        address = Address.parse(protocol, required("--address"))
        error_log = _take(own, "--errorlogfile") or None
        return Arguments(own, address, error_log)


def error_log_of(line: Sequence[str]) -> str | None:
    """The error log named on a command line that is otherwise wrong."""
    return _take(list(line), "--errorlogfile") or None


def _take(line: list[str], name: str) -> str | None:
    """Remove the last occurrence of an argument and return its value."""
    for at in range(len(line) - 1, -1, -1):
        if line[at].startswith(name + "="):
            return line.pop(at).partition("=")[2]
        # A following argument with dashes is not a value: the plugin's own may only look like one of the agent's.
        if line[at] == name and at + 1 < len(line) and not line[at + 1].startswith("--"):
            del line[at]
            return line.pop(at)
    return None
