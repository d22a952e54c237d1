"""The variables that the agent sets for a plugin."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass

from .state import StateDir

NAME = "GUEST_AGENT_PLUGIN"
REVISION = "GUEST_AGENT_REVISION"
STATE_DIR = "GUEST_AGENT_STATE_DIR"
HOST_SOCKET = "GUEST_AGENT_HOST_SOCKET"
TICKET = "GUEST_AGENT_TICKET"
TRIGGER = "GUEST_AGENT_TRIGGER"
CONFIG = "GUEST_AGENT_CONFIG"


class Trigger(str, enum.Enum):
    """Why the agent began a run of a plugin that runs to completion."""

    INSTALL = "install"
    STARTUP = "startup"
    FIRST_BOOT = "firstboot"
    INTERVAL = "interval"
    RULE = "rule"
    PERSON = "run"
    OTHER = "other"
    """A trigger that this version does not know."""


class Ticket:
    """The secret with which a plugin introduces itself to the agent. Printing it shows nothing of it.

    Children inherit the environment: start those that must not call in the plugin's name without the variable.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def reveal(self) -> str:
        """The secret itself, to be sent to the host socket and nowhere else."""
        return self._secret

    def __repr__(self) -> str:
        return "Ticket(hidden)"


@dataclass(frozen=True)
class Environment:
    """What the agent tells a plugin. A process that was started by hand has none of it."""

    name: str | None = None
    revision: str | None = None
    state: StateDir | None = None
    host_socket: str | None = None
    ticket: Ticket | None = None
    trigger: Trigger | None = None
    config_file: str | None = None

    @staticmethod
    def read(variables: Mapping[str, str] | None = None) -> Environment:
        """The environment of this process, or one given by a mapping, for tests."""
        variables = os.environ if variables is None else variables

        def value(name: str) -> str | None:
            return variables.get(name) or None

        state, ticket, trigger = value(STATE_DIR), value(TICKET), value(TRIGGER)
        known = {it.value for it in Trigger}
        return Environment(
            name=value(NAME),
            revision=value(REVISION),
            state=StateDir(state) if state else None,
            host_socket=value(HOST_SOCKET),
            ticket=Ticket(ticket) if ticket else None,
            trigger=(Trigger(trigger) if trigger in known else Trigger.OTHER) if trigger else None,
            config_file=value(CONFIG),
        )
