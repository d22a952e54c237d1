"""A plugin that listens: it serves calls until its life ends, then finishes the calls in flight."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat

import grpc

from ._wire import plugin_comm_pb2_grpc as pb_grpc
from .address import Address
from .error_log import ErrorLog
from .errors import PluginError
from .life import Life
from .plugin import Plugin, Stop
from .service import Service

# How long stop may take when a signal asks for it, which names no deadline.
_SIGNAL_DEADLINE = 10.0
# After the end, calls in flight get until the stop's deadline, but no less and no more than these two.
_SHORTEST_DRAIN = 0.2
_LONGEST_DRAIN = 2.0
# Concurrent calls per connection; further ones wait.
_MAX_CALLS = 64
# How many ports of the kernel's choice are tried for one that is free on both loopback addresses.
_PORTS_TRIED = 16


class Server:
    """A plugin bound to its address. It leaves the process alone: no signal handler, no exit.

    `run` and `serve` use it for whole processes.
    """

    def __init__(self, life: Life, server: grpc.aio.Server, address: Address) -> None:
        self._life = life
        self._server = server
        self.address = address
        """Where the plugin listens; for port 0 with the port that the kernel chose."""
        self._file = _file_of(address.path) if address.path else None

    @staticmethod
    async def bind(plugin: Plugin, address: Address, error_log: ErrorLog | None = None) -> Server:
        """Listen on an address, and serve. OSError says what is wrong with the address."""
        life = Life(plugin, error_log)
        for tried in range(1, _PORTS_TRIED + 1):
            # Two processes must not share a port; and a server cannot give back an address that it has.
            options = [("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", _MAX_CALLS)]
            server = grpc.aio.server(options=options)
            pb_grpc.add_GuestAgentPluginServicer_to_server(Service(life), server)
            try:
                real = _listen(server, address)
                break
            except OSError:
                # The kernel may choose a port that is free on one of the addresses only.
                if address.path or address.port or tried == _PORTS_TRIED:
                    raise
        await server.start()
        return Server(life, server, real)

    async def run(self, until: asyncio.Event | None = None) -> None:
        """Serve until the agent stopped the plugin, or until the event is set, which stops it as well.

        Calls in flight are finished. An error of `stop` is raised only where the event asked for it: the agent gets the
        others.
        """
        ended = asyncio.create_task(self._life.ended.wait())
        asked = asyncio.create_task((until or asyncio.Event()).wait())
        try:
            await asyncio.wait((ended, asked), return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                try:
                    await self._life.stop(Stop(cleanup=False, deadline=_SIGNAL_DEADLINE))
                except PluginError as error:
                    raise PluginError(f"stopping on a signal failed: {error}") from error
        finally:
            ended.cancel()
            asked.cancel()
            left = self._life.deadline - asyncio.get_running_loop().time()
            await self._server.stop(min(max(left, _SHORTEST_DRAIN), _LONGEST_DRAIN))
            # Not the file of a successor.
            if self._file is not None and self._file == _file_of(self.address.path):
                with contextlib.suppress(OSError):
                    os.unlink(self.address.path)

    def log(self, text: str) -> None:
        """Write an entry into the error log, if the agent gave one."""
        self._life.log(text)


def _listen(server: grpc.aio.Server, address: Address) -> Address:
    if address.path:
        _remove_stale(address.path)
        # The socket is its owner's alone from the beginning.
        before = os.umask(0o177)
        try:
            _add(server, address.targets()[0])
        finally:
            os.umask(before)
        return address
    hosts = [host for host in address.hosts if _is_here(host)]
    if not hosts:
        raise OSError(f"cannot listen on {' and '.join(address.targets())}: the machine does not have the address")
    # A port that another process has on one of them is an error: the agent could connect to that process, and would send it
    # the plugin's configuration.
    port = address.port
    for host in hosts:
        port = _add(server, Address(hosts=(host,), port=port).targets()[0])
    return Address(hosts=tuple(hosts), port=port)


def _add(server: grpc.aio.Server, target: str) -> int:
    try:
        port = server.add_insecure_port(target)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {target}: {error}") from error
    if not port:
        raise OSError(f"cannot listen on {target}")
    return port


def _is_here(host: str) -> bool:
    """Whether the machine has an address: some have no IPv6."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def _file_of(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _remove_stale(path: str) -> None:
    """Remove the socket of an earlier process, and leave everything else alone."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise OSError(f"{path} exists and is not a socket: it was left alone; use another path")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        except OSError:
            pass  # a listener whose queue is full is a listener
    raise OSError(f"another process listens on {path}: end it first or use another path")
