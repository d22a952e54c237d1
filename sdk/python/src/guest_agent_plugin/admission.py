"""Admission plugins: guest-agent asks one before it deploys any content, and deploys only content that it admits.

    from guest_agent_plugin.admission import Check, Denial, run

    async def judge(check: Check) -> None:
        if check.package != "trusted":
            raise Denial(f"{check.package} is not on the list")

    if __name__ == "__main__":
        run("1.0", judge)

The agent starts the program named by admission.command when it first needs it, sends it a port and a ticket on its standard
input, and closes that input to ask it to end. It remembers answers, so a judge judges the same content once. The protocol is
CIPD's deployment admission; docs/admission.md in the agent's sources describes the rest.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NoReturn

import grpc
from google.rpc import status_pb2

from ._wire import cipd_plugin_pb2 as pb
from ._wire import cipd_plugin_pb2_grpc as pb_grpc
from .errors import PluginError
from .log import setup_logging

_LOG = logging.getLogger("guest_agent_plugin.admission")
_PROTOCOL_VERSION = 1
# Longest handshake, in bytes.
_MAX_HANDSHAKE = 64 * 1024
_CALL_TIMEOUT = 20.0
_PAGE_SIZE = 100
_MAX_REASON = 2048
_HINT = "no handshake on the standard input; the agent starts this program, see admission.command"
_OPTIONS = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))


class Denial(Exception):
    """Why content may not be deployed. The text is shown to operators and sent to the control plane: no secrets."""

    def __init__(self, reason: str, code: grpc.StatusCode = grpc.StatusCode.PERMISSION_DENIED) -> None:
        super().__init__(reason)
        # A denial is never an admission.
        self.code = grpc.StatusCode.UNKNOWN if code == grpc.StatusCode.OK else code


@dataclass(frozen=True)
class Metadata:
    """One metadata entry of a package's content."""

    key: str
    """A word such as revision, source-url or entry-point."""
    value: bytes
    attached_at: datetime | None


@dataclass(frozen=True)
class Check:
    """A question of the agent: may this content be deployed?"""

    service_url: str
    """The control plane that deploys."""
    package: str
    """The plugin's name."""
    sha256: str
    """SHA-256 of its archive in hexadecimal digits; of a plugin that came with the machine, that of its entry point."""
    _admission: pb.Admission
    _agent: _Agent

    async def metadata(self, *keys: str) -> list[Metadata]:
        """The metadata entries of the content, newest first: those with these keys, or all.

        Raises Denial when the agent does not answer.
        """
        found, token = [], ""
        while True:
            request = pb.ListMetadataRequest(
                service_url=self.service_url,
                package=self.package,
                instance=self._admission.instance,
                keys=keys,
                page_size=_PAGE_SIZE,
                page_token=token,
            )
            try:
                page = await self._agent.host.ListMetadata(request, metadata=self._agent.metadata, timeout=_CALL_TIMEOUT)
            except grpc.aio.AioRpcError as error:
                reason = f"its metadata cannot be read: {error.details()}"
                raise Denial(reason, grpc.StatusCode.UNAVAILABLE) from None
            for entry in page.metadata:
                at = entry.attached_ts.ToDatetime(timezone.utc) if entry.HasField("attached_ts") else None
                found.append(Metadata(entry.key, entry.value, at))
            token = page.next_page_token
            if not token:
                return found

    async def log(self, level: int, message: str) -> None:
        """Write a line into the agent's log, with a level of `logging`. A failure to write it is ignored."""
        names = ((logging.ERROR, "error"), (logging.WARNING, "warning"), (logging.INFO, "info"))
        severity = next((name for least, name in names if level >= least), "debug")
        line = pb.LogRequest(severity=severity, message=message.encode(errors="replace").decode())
        try:
            await self._agent.host.Log(line, metadata=self._agent.metadata, timeout=_CALL_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            _LOG.debug("the agent did not take a line: %s", error.details())


Judge = Callable[[Check], Awaitable[None]]
"""Decides about a check: returning admits, an exception denies. Several may run at the same time."""


class _Agent:
    """The agent's side of the conversation."""

    def __init__(self, channel: grpc.aio.Channel, ticket: str) -> None:
        self.metadata = (("x-plugin-ticket", ticket),)
        self.admissions = pb_grpc.AdmissionsStub(channel)
        self.host = pb_grpc.HostStub(channel)


def run(version: str, judge: Judge) -> NoReturn:
    """Answer checks until the agent asks the plugin to end, and end the process: the whole main of an admission plugin.

    The agent's log shows the version.
    """
    setup_logging()

    async def main() -> None:
        stream = asyncio.StreamReader(limit=_MAX_HANDSHAKE)
        try:
            protocol = asyncio.StreamReaderProtocol(stream)
            await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        except ValueError:
            raise PluginError(_HINT) from None
        await serve(stream, version, judge)

    try:
        asyncio.run(main())
    except PluginError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


async def serve(stream: asyncio.StreamReader, version: str, judge: Judge) -> None:
    """Answer checks until the input ends, which begins with the handshake."""
    port, ticket = await _handshake(stream)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS) as channel:
        answering = asyncio.create_task(_answer_all(_Agent(channel, ticket), version, judge))
        gone = asyncio.create_task(_end_of(stream))
        try:
            await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
            if not gone.done():
                await answering
        finally:
            for task in (answering, gone):
                task.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)


async def _handshake(stream: asyncio.StreamReader) -> tuple[int, str]:
    try:
        given = json.loads(await stream.readline())
        port, ticket = given["port"], given["ticket"]
    except (ValueError, KeyError, TypeError, RecursionError):
        # The error may quote the input, which holds a secret.
        raise PluginError(f"{_HINT}: not the JSON of a handshake") from None
    if not isinstance(port, int) or not 0 < port < 65536 or not isinstance(ticket, str) or not ticket.isascii():
        raise PluginError(f"{_HINT}: not the JSON of a handshake")
    return port, ticket


async def _end_of(stream: asyncio.StreamReader) -> None:
    """Wait for the end of the input: the agent sends nothing more."""
    while await stream.read(4096):
        pass


async def _answer_all(agent: _Agent, version: str, judge: Judge) -> None:
    request = pb.ListAdmissionsRequest(protocol_version=_PROTOCOL_VERSION, plugin_version=version)
    checks = agent.admissions.ListAdmissions(request, metadata=agent.metadata, wait_for_ready=True)
    judging: set[asyncio.Task[None]] = set()
    try:
        while isinstance(admission := await checks.read(), pb.Admission):
            task = asyncio.create_task(_answer(agent, admission, judge))
            judging.add(task)
            task.add_done_callback(judging.discard)
    except grpc.aio.AioRpcError as error:
        # ABORTED: the agent ended the stream and is about to close the standard input.
        if error.code() != grpc.StatusCode.ABORTED:
            raise PluginError(f"the agent says: {error.details()} ({error.code().name})") from None
    finally:
        for task in judging:
            task.cancel()


async def _answer(agent: _Agent, admission: pb.Admission, judge: Judge) -> None:
    check = Check(admission.service_url, admission.package, admission.instance.hex_digest, admission, agent)
    status = status_pb2.Status()
    try:
        await judge(check)
    except Denial as denial:
        status = _status(denial.code, str(denial))
    except Exception:
        _LOG.exception("the judge failed over %s", check.package)
        status = _status(grpc.StatusCode.INTERNAL, "the admission plugin failed over it")
    answer = pb.ResolveAdmissionRequest(admission_id=admission.admission_id, status=status)
    try:
        await agent.admissions.ResolveAdmission(answer, metadata=agent.metadata, timeout=_CALL_TIMEOUT)
    except grpc.aio.AioRpcError as error:
        _LOG.warning("cannot send an answer: %s", error.details())


def _status(code: grpc.StatusCode, reason: str) -> status_pb2.Status:
    cut = reason.encode(errors="replace")[:_MAX_REASON].decode(errors="ignore")
    number: int = code.value[0]
    return status_pb2.Status(code=number, message=cut)
