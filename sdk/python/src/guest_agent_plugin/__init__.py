"""The SDK of guest-agent for plugins in Python: subclass Plugin, call run, and guest-agent can run the program.

    from dataclasses import dataclass
    from guest_agent_plugin import Health, Plugin, Start, Status, run

    @dataclass
    class Settings:
        greeting: str = "hello"

    class Greeter(Plugin):
        def __init__(self) -> None:
            self.health = Health()

        async def start(self, start: Start) -> None:
            settings = start.config.decode(Settings)
            start.state.write("greeting", settings.greeting.encode())

        async def status(self) -> Status:
            return self.health.status()

    if __name__ == "__main__":
        run(Greeter())

The agent launches the program with the plugin's own arguments followed by three of the agent's. The plugin listens on the
address in these arguments and answers four calls, which become calls of the methods of Plugin:

    agent ── exec ──►  run: arguments, error log, socket (owner-only)
          ── Start ──►      start            once, until it succeeds
          ── GetStatus ──►  status, answer   every few seconds, and for every question
          ── Apply ──►      apply, vm_event  a new configuration, or news of the machine
          ── Stop ──►       stop             once; then the server drains and the process exits with 0

SIGTERM and SIGINT do the same as Stop. All methods run on one event loop: work that blocks belongs into
asyncio.to_thread, or health checks wait for it and the agent takes the plugin for hung.

Beside it: guest_agent_plugin.registry offers things to other plugins and finds theirs, guest_agent_plugin.admission is for
programs that decide what may be deployed, guest_agent_plugin.testing tests plugins without an agent. A program that runs
and ends instead (plugin_type ONE_SHOT) is one call of run_once.
"""

from .address import Address
from .arguments import Arguments
from .config import Config, VmEvent
from .environment import Environment, Ticket, Trigger
from .error_log import ErrorLog
from .errors import BadConfig, PluginError, Unsupported
from .health import Health, Heartbeat
from .log import setup_logging
from .once import Run, run_once
from .plugin import Plugin, Start, Status, Stop
from .process import run, serve
from .server import Server
from .state import StateDir

__all__ = [
    "Address",
    "Arguments",
    "BadConfig",
    "Config",
    "Environment",
    "ErrorLog",
    "Health",
    "Heartbeat",
    "Plugin",
    "PluginError",
    "Run",
    "Server",
    "Start",
    "StateDir",
    "Status",
    "Stop",
    "Ticket",
    "Trigger",
    "Unsupported",
    "VmEvent",
    "run",
    "run_once",
    "serve",
    "setup_logging",
]
