"""Tests plugins without an agent: calls them as guest-agent does, over a real socket; and a registry; and an admission.

async def test_greets() -> None:
    async with Tested(Greeter()) as tested:
        await tested.start({"greeting": "salut"})
        assert (await tested.ask("you")).results == ["salut, you"]
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from google.protobuf import empty_pb2

from . import admission
from ._wire import cipd_pb2, cipd_plugin_pb2, cipd_plugin_pb2_grpc, host_pb2, host_pb2_grpc
from ._wire import plugin_comm_pb2 as pb
from ._wire import plugin_comm_pb2_grpc as pb_grpc
from .address import Address
from .environment import Ticket
from .plugin import Plugin, Status
from .registry import Registry
from .server import Server
from .state import StateDir

# Longer than anything takes here that is not broken.
_PATIENCE = 30.0
_OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))


class Refusal(Exception):
    """A call that failed, as the agent gets it."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        super().__init__(f"{error.code().name}: {error.details()}")
        self.code = error.code()
        self.message = error.details() or ""


class Tested:
    """A plugin that is being served on a socket of the test, with an agent that calls it. It is not started yet."""

    __test__ = False  # for pytest, which takes every Test... for a test

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self._until = asyncio.Event()

    async def __aenter__(self) -> Tested:
        self._folder = Path(tempfile.mkdtemp(prefix="plugin"))
        state = self._folder / "state"
        state.mkdir(mode=0o700)
        self.state = StateDir(state)
        """The plugin's own directory."""
        address = Address.unix(str(self._folder / "plugin.sock"))
        server = await Server.bind(self._plugin, address)
        self._served = asyncio.create_task(server.run(self._until))
        self._channel = grpc.aio.insecure_channel(address.targets()[0], options=_OPTIONS)
        self._client = pb_grpc.GuestAgentPluginStub(self._channel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()
        self._until.set()
        await asyncio.wait({self._served}, timeout=_PATIENCE)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def start(self, config: str | Mapping[str, Any] | None = None) -> None:
        """Start the plugin with a configuration: none, a text, or a structure."""
        request = pb.StartRequest(config=pb.StartRequest.Config(state_directory_path=str(self.state.path)))
        _put(request, config)
        await _refusing(self._client.Start(request, timeout=_PATIENCE))

    async def apply(self, config: str | Mapping[str, Any] | None) -> None:
        """Hand over a configuration."""
        request = pb.ApplyRequest()
        _put(request, config)
        await _refusing(self._client.Apply(request, timeout=_PATIENCE))

    async def vm_event(self, event: str) -> None:
        """Send news of the machine."""
        await self.apply(json.dumps({"Command": "VmEvent", "Event": event}))

    async def health(self) -> Status:
        """Make a health check."""
        return await self._status(pb.GetStatusRequest())

    async def ask(self, question: str) -> Status:
        """Ask a question."""
        return await self._status(pb.GetStatusRequest(data=question))

    async def _status(self, request: pb.GetStatusRequest) -> Status:
        answer = await _refusing(self._client.GetStatus(request, timeout=_PATIENCE))
        return Status(answer.code, list(answer.results))

    async def stop(self, *, cleanup: bool = False, deadline: float = 10) -> None:
        """Stop the plugin as the agent does."""
        request = pb.StopRequest(cleanup=cleanup)
        request.deadline.FromMilliseconds(int(deadline * 1000))
        await _refusing(self._client.Stop(request, timeout=_PATIENCE))

    async def signal(self) -> None:
        """Stop the plugin as SIGTERM does, and wait for its end."""
        self._until.set()
        await self.ended()

    async def ended(self) -> None:
        """Wait until the plugin's server has ended; raises its error."""
        await asyncio.wait_for(asyncio.shield(self._served), _PATIENCE)


def _put(request: pb.StartRequest | pb.ApplyRequest, config: str | Mapping[str, Any] | None) -> None:
    if isinstance(config, str):
        request.string_config = config
    elif config is not None:
        request.struct_config.SetInParent()
        request.struct_config.update(dict(config))


async def _refusing(call: Any) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise Refusal(error) from None


class FakeRegistry(host_pb2_grpc.RegistrarServicer, host_pb2_grpc.RegistryServicer):
    """An agent's registry in this process. It does not try whether sockets answer, and remembers nothing on a disk."""

    def __init__(self) -> None:
        self._entries: list[host_pb2.Entry] = []
        self._watchers: list[asyncio.Queue[host_pb2.Change]] = []
        self._sequence = 0

    async def __aenter__(self) -> FakeRegistry:
        self._folder = Path(tempfile.mkdtemp(prefix="registry"))
        self.socket = str(self._folder / "host.sock")
        """The host socket."""
        await self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop(None)
        shutil.rmtree(self._folder, ignore_errors=True)

    def of(self, name: str) -> Registry:
        """The registry as a plugin of this name sees it."""
        return Registry(self.socket, Ticket(name))

    async def restart(self, *, lose: bool = False) -> None:
        """End all connections, as a restart of the agent does; `lose` forgets all entries, as a damaged store does."""
        await self._server.stop(None)
        if lose:
            self._entries.clear()
        await self._listen()

    async def _listen(self) -> None:
        self._server = grpc.aio.server()
        host_pb2_grpc.add_RegistrarServicer_to_server(self, self._server)
        host_pb2_grpc.add_RegistryServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def Register(self, request: host_pb2.RegisterRequest, context: Any) -> host_pb2.RegisterResponse:
        """Answer a call of a plugin."""
        caller, offer = await _caller(context), request.offer
        if not (offer.type and offer.name and offer.socket_path):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "an offer has a type, a name and a socket")
        offer.instance = offer.instance or caller
        self._sequence += 1
        entry = host_pb2.Entry(offer=offer, plugin=caller, epoch=1, verified=True, order=self._sequence)
        former = self._find(offer.type, offer.name, offer.instance)
        if former is not None:
            entry.order = self._entries[former].order
            self._entries[former] = entry
        else:
            self._entries.append(entry)
        kind = host_pb2.Change.REGISTERED if former is None else host_pb2.Change.UPDATED
        self._tell(host_pb2.Change(kind=kind, entry=entry))
        return host_pb2.RegisterResponse(entry=entry)

    async def Deregister(self, request: host_pb2.DeregisterRequest, context: Any) -> host_pb2.DeregisterResponse:
        """Answer a call of a plugin."""
        caller = await _caller(context)
        at = self._find(request.type, request.name, request.instance or caller)
        if at is not None:
            change = host_pb2.Change(
                kind=host_pb2.Change.DEREGISTERED, reason=host_pb2.Change.ASKED, entry=self._entries.pop(at)
            )
            self._tell(change)
        return host_pb2.DeregisterResponse()

    async def List(self, request: host_pb2.ListRequest, context: Any) -> host_pb2.ListResponse:
        """Answer a call of a plugin."""
        await _caller(context)
        found: dict[tuple[str, str], host_pb2.Entry] = {}
        for entry in self._selected(request.type, ""):
            found.setdefault((entry.offer.type, entry.offer.name), entry)
        return host_pb2.ListResponse(entries=list(found.values()), sequence=self._sequence)

    async def Get(self, request: host_pb2.GetRequest, context: Any) -> host_pb2.GetResponse:
        """Answer a call of a plugin."""
        await _caller(context)
        for entry in self._selected(request.type, request.name):
            if request.instance in ("", entry.offer.instance):
                return host_pb2.GetResponse(entry=entry)
        await context.abort(grpc.StatusCode.NOT_FOUND, f"no {request.type} of the name {request.name} is registered")
        raise AssertionError("abort does not return")

    async def Wait(self, request: host_pb2.WaitRequest, context: Any) -> host_pb2.WaitResponse:
        """Answer a call of a plugin."""
        await _caller(context)
        changes = self._watch()
        try:
            while not (found := self._selected(request.type, request.name)):
                await changes.get()
            return host_pb2.WaitResponse(entry=found[0])
        finally:
            self._watchers.remove(changes)

    async def Watch(self, request: host_pb2.WatchRequest, context: Any) -> Any:
        """Answer a call of a plugin."""
        await _caller(context)
        changes = self._watch()
        try:
            entries = self._selected(request.type, request.name)
            snapshot = host_pb2.Snapshot(entries=entries, sequence=self._sequence)
            yield host_pb2.WatchResponse(snapshot=snapshot)
            while True:
                change = await changes.get()
                if _is_selected(change.entry, request.type, request.name):
                    yield host_pb2.WatchResponse(change=change)
        finally:
            self._watchers.remove(changes)

    async def Dispense(self, request: host_pb2.DispenseRequest, context: Any) -> host_pb2.DispenseResponse:
        """Answer a call of a plugin."""
        get = host_pb2.GetRequest(type=request.type, name=request.name, instance=request.instance)
        entry = (await self.Get(get, context)).entry
        return host_pb2.DispenseResponse(target=f"unix:{entry.offer.socket_path}", entry=entry)

    def _watch(self) -> asyncio.Queue[host_pb2.Change]:
        changes: asyncio.Queue[host_pb2.Change] = asyncio.Queue()
        self._watchers.append(changes)
        return changes

    def _tell(self, change: host_pb2.Change) -> None:
        self._sequence += 1
        change.sequence = self._sequence
        for watcher in self._watchers:
            watcher.put_nowait(change)

    def _find(self, kind: str, name: str, instance: str) -> int | None:
        found = (at for at, it in enumerate(self._entries) if _is_selected(it, kind, name) and it.offer.instance == instance)
        return next(found, None)

    def _selected(self, kind: str, name: str) -> list[host_pb2.Entry]:
        """The entries of a type and name, or of all where they are empty, the newest first."""
        found = [entry for entry in reversed(self._entries) if _is_selected(entry, kind, name)]
        return sorted(found, key=lambda entry: (entry.offer.type, entry.offer.name))


def _is_selected(entry: host_pb2.Entry, kind: str, name: str) -> bool:
    return kind in ("", entry.offer.type) and name in ("", entry.offer.name)


async def _caller(context: Any) -> str:
    """The plugin that calls: tickets are names here."""
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and value.startswith("Bearer "):
            return str(value.removeprefix("Bearer "))
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no ticket")
    raise AssertionError("abort does not return")


@dataclass(frozen=True)
class Question:
    """Content that an admission plugin is asked about."""

    package: str
    sha256: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdicts:
    """What an admission plugin answered."""

    by_package: dict[str, str]
    """Empty where a package is admitted, otherwise the code and the reason."""
    log: list[str]
    """The lines that it wrote into the agent's log."""


async def ask(judge: admission.Judge, *questions: Question) -> Verdicts:
    """Ask an admission plugin about content as the agent does."""
    agent = _Asker(questions)
    server = grpc.aio.server()
    cipd_plugin_pb2_grpc.add_AdmissionsServicer_to_server(agent, server)
    cipd_plugin_pb2_grpc.add_HostServicer_to_server(agent, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stream = asyncio.StreamReader()
    stream.feed_data(json.dumps({"port": port, "ticket": _Asker.TICKET}).encode() + b"\n")
    plugin = asyncio.create_task(admission.serve(stream, "test", judge))
    try:
        await asyncio.wait_for(agent.answered.wait(), _PATIENCE)
        stream.feed_eof()
        await asyncio.wait_for(plugin, _PATIENCE)
    finally:
        plugin.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await plugin
        await server.stop(None)
    return Verdicts(agent.verdicts, agent.lines)


class _Asker(cipd_plugin_pb2_grpc.AdmissionsServicer, cipd_plugin_pb2_grpc.HostServicer):
    """An agent that asks one admission plugin."""

    TICKET = "the ticket of a test"

    def __init__(self, questions: tuple[Question, ...]) -> None:
        self._questions = questions
        self.verdicts: dict[str, str] = {}
        self.lines: list[str] = []
        self.answered = asyncio.Event()

    async def _check(self, context: Any) -> None:
        if ("x-plugin-ticket", self.TICKET) not in [tuple(it) for it in context.invocation_metadata()]:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no ticket")

    async def ListAdmissions(self, request: cipd_plugin_pb2.ListAdmissionsRequest, context: Any) -> Any:
        await self._check(context)
        if request.protocol_version != 1:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "another version")
        for question in self._questions:
            instance = cipd_pb2.ObjectRef(hash_algo=cipd_pb2.SHA256, hex_digest=question.sha256)
            yield cipd_plugin_pb2.Admission(
                admission_id=question.package, service_url="local", package=question.package, instance=instance
            )
        await asyncio.Event().wait()

    async def ResolveAdmission(self, request: cipd_plugin_pb2.ResolveAdmissionRequest, context: Any) -> empty_pb2.Empty:
        await self._check(context)
        names = {code.value[0]: code.name for code in grpc.StatusCode}
        status = request.status
        verdict = f"{names[status.code]}: {status.message}" if status.code else ""
        self.verdicts.setdefault(request.admission_id, verdict)
        if len(self.verdicts) == len(self._questions):
            self.answered.set()
        return empty_pb2.Empty()

    async def Log(self, request: cipd_plugin_pb2.LogRequest, context: Any) -> empty_pb2.Empty:
        await self._check(context)
        self.lines.append(f"{request.severity}: {request.message}")
        return empty_pb2.Empty()

    async def ListMetadata(
        self,
        request: cipd_plugin_pb2.ListMetadataRequest,
        context: Any,
    ) -> cipd_plugin_pb2.ListMetadataResponse:
        await self._check(context)
        known = {question.package: question.metadata for question in self._questions}[request.package]
        entries = [
            cipd_pb2.InstanceMetadata(key=key, value=value.encode())
            for key, value in known.items()
            if not request.keys or key in request.keys
        ]
        return cipd_plugin_pb2.ListMetadataResponse(metadata=entries)
