"""The registry: plugins register what they offer, and find what others offer.

    async with Registry.from_env() as registry:
        # A provider listens on a socket first, then registers it. Keep what is returned.
        kept = await registry.offer(Offer("greeter", "hello", "/run/hello.sock", version="1.0"))
        # A consumer waits for it, wherever and whenever it is offered.
        entry = await registry.wait("greeter", "hello", timeout=30)

    offer something for as long as the plugin runs   Registry.offer
    look once                                        Registry.list, Registry.get
    wait until it is there                           Registry.wait
    receive every change                             Registry.watch
    connect to the current provider                  Registry.dispense
    always be connected to the current provider      Registry.follow
    test it without an agent                         testing.FakeRegistry

An entry ends with the process that registered it, and survives restarts of the agent. While the agent cannot be reached,
calls are tried again for a while, and a watch connects again by itself and begins with a snapshot of all entries.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import enum
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

import grpc

from ._wire import host_pb2 as pb
from ._wire import host_pb2_grpc as pb_grpc
from .environment import HOST_SOCKET, TICKET, Environment, Ticket
from .errors import PluginError

T = TypeVar("T")

# How long a call is tried again while the agent cannot be reached.
_PATIENCE = 20.0
# Timeout of one try; only a wait may take longer.
_CALL_TIMEOUT = 15.0
# Longest wait in one request, so that a connection that broke unseen delays it no longer than this.
_WAIT_SLICE = 60.0
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 5.0
# How long calls of a former instance may take to their end.
_DRAIN = 30.0
_OPTIONS = (
    # Without it gRPC names the path of the socket as its server, which the agent's server refuses.
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.use_local_subchannel_pool", 1),
)
_TRANSIENT = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
}


class RegistryError(PluginError):
    """A call of the registry failed."""


class NotUnderAgent(RegistryError):
    """No agent with a registry started this process."""


class NotFound(RegistryError):
    """The registry has no such entry. The text says whether type, name or instance is unknown."""


class TimedOut(RegistryError):
    """A wait reached its deadline."""


class Unreachable(RegistryError):
    """The agent could not be reached for a while."""


class Refused(RegistryError):
    """The agent refused the call, and would refuse it again."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(f"the registry refused: {message}")
        self.code = code


@dataclass(frozen=True)
class Offer:
    """What a plugin offers. Every plugin may read it, so it must not hold secrets.

    Types, names and instances consist of letters, digits, '.', '_' and '-'.
    """

    type: str
    name: str
    socket: str
    """The absolute path of the unix socket on which it answers."""
    instance: str = ""
    """Unique within the name; empty for the plugin's own name."""
    version: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options for consumers."""


@dataclass(frozen=True)
class Entry:
    """An offer in the registry."""

    offer: Offer
    plugin: str
    """The plugin that offers it."""
    epoch: int
    """The life of that plugin: a later process has a higher number."""
    verified: bool
    """Whether the socket has answered since the agent started."""
    order: int
    """Of the instances of a name the one with the highest number is current."""

    def is_same_instance(self, other: Entry) -> bool:
        """Whether both are of the same type, name and instance."""
        mine, others = self.offer, other.offer
        return (mine.type, mine.name, mine.instance) == (others.type, others.name, others.instance)


class Kind(enum.Enum):
    """What an update is about."""

    SNAPSHOT = enum.auto()
    """All entries; it replaces those of earlier updates."""
    REGISTERED = enum.auto()
    UPDATED = enum.auto()
    """A known entry has changed, or its socket answers now."""
    WITHDRAWN = enum.auto()
    """Its plugin deregistered it."""
    PLUGIN_ENDED = enum.auto()
    """The process that offered it has ended."""


@dataclass(frozen=True)
class Update:
    """A message of a watch."""

    kind: Kind
    entries: list[Entry]
    """Those of a snapshot, or the one that the change is about."""

    @property
    def entry(self) -> Entry:
        """The entry of a change."""
        return self.entries[0]


@dataclass(frozen=True)
class Connection:
    """A connection to an instance, made on first use. A client is made of its channel: NodeStub(connection.channel)."""

    entry: Entry
    channel: grpc.aio.Channel

    async def close(self) -> None:
        """Close the connection."""
        await self.channel.close()


class Registry:
    """The agent's registry, as one plugin sees it. Its calls share one connection, which is made on first use."""

    def __init__(self, socket: str, ticket: Ticket) -> None:
        self._metadata = (("authorization", f"Bearer {ticket.reveal()}"),)
        self._channel = _channel(socket)
        self._registrar = pb_grpc.RegistrarStub(self._channel)
        self._reader = pb_grpc.RegistryStub(self._channel)

    @staticmethod
    def from_env(environment: Environment | None = None) -> Registry:
        """The registry of the agent that started this plugin. It does not connect yet."""
        environment = environment or Environment.read()
        if environment.host_socket is None or environment.ticket is None:
            raise NotUnderAgent(
                f"{HOST_SOCKET} and {TICKET} are not set: only a plugin that guest-agent started can use its registry"
            )
        return Registry(environment.host_socket, environment.ticket)

    async def close(self) -> None:
        """Close the connection. Entries stay until the process ends."""
        await self._channel.close()

    async def __aenter__(self) -> Registry:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def offer(self, offer: Offer) -> Registration:
        """Offer something until the process ends or it is withdrawn, even if the agent loses its store meanwhile.

        The plugin must listen on the socket already. It returns when the agent has made the entry durable.
        """
        entry = await self.register(offer)
        return Registration(self, offer, entry)

    async def register(self, offer: Offer) -> Entry:
        """Register an instance once, or change an instance of this plugin. Most plugins want `offer`."""
        wire = pb.Offer(
            type=offer.type,
            name=offer.name,
            instance=offer.instance,
            version=offer.version,
            socket_path=offer.socket,
            options=dict(offer.options),
        )
        request = pb.RegisterRequest(offer=wire)
        answer = await _call(lambda: self._registrar.Register(request, metadata=self._metadata, timeout=_CALL_TIMEOUT))
        return _entry(answer.entry)

    async def deregister(self, kind: str, name: str, instance: str = "") -> None:
        """Deregister an instance; an empty one is that with this plugin's own name.

        An unknown instance is no error; a type that no plugin ever offered is.
        """
        request = pb.DeregisterRequest(type=kind, name=name, instance=instance)
        await _call(lambda: self._registrar.Deregister(request, metadata=self._metadata, timeout=_CALL_TIMEOUT))

    async def list(self, kind: str = "") -> list[Entry]:
        """The current instance of every name of a type, or of all types where it is empty."""
        request = pb.ListRequest(type=kind)
        answer = await _call(lambda: self._reader.List(request, metadata=self._metadata, timeout=_CALL_TIMEOUT))
        return [_entry(entry) for entry in answer.entries]

    async def get(self, kind: str, name: str, instance: str = "") -> Entry:
        """One entry: an instance exactly, or the current one. NotFound says what is unknown."""
        request = pb.GetRequest(type=kind, name=name, instance=instance)
        answer = await _call(lambda: self._reader.Get(request, metadata=self._metadata, timeout=_CALL_TIMEOUT))
        return _entry(answer.entry)

    async def wait(self, kind: str, name: str, timeout: float) -> Entry:
        """Wait until a name is offered and its socket answers; TimedOut after so many seconds, also without an agent."""
        clock = asyncio.get_running_loop().time
        deadline, pauses = clock() + timeout, _Pauses()
        while True:
            left = max(min(deadline - clock(), _WAIT_SLICE), 0.001)
            request = pb.WaitRequest(type=kind, name=name, timeout_ms=max(int(left * 1000), 1))
            try:
                # A little longer than the agent's own deadline, so that its answer arrives first.
                answer = await self._reader.Wait(request, metadata=self._metadata, timeout=left + 1)
                return _entry(answer.entry)
            except grpc.aio.AioRpcError as error:
                if error.code() not in _TRANSIENT:
                    raise _error(error) from None
                if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
                    await asyncio.sleep(min(pauses.next(), max(deadline - clock(), 0)))
            if clock() >= deadline:
                raise TimedOut(f"no {kind} of the name {name} was offered within {timeout:g} s")

    def watch(self, kind: str = "", name: str = "") -> Watch:
        """Watch the entries of one type or of all, of one name or of all. It begins with a snapshot."""
        return Watch(self, pb.WatchRequest(type=kind, name=name))

    async def dispense(self, kind: str, name: str) -> Connection:
        """Connect to the current instance of a name. Close the connection when it is not needed any more."""
        entry = await self.get(kind, name)
        return Connection(entry, _channel(entry.offer.socket))

    def follow(self, kind: str, name: str) -> Following:
        """Follow the current instance of a name."""
        return Following(self, kind, name)


class Watch:
    """A watch of the registry. Changes arrive in order and without a gap; after a gap a snapshot arrives instead.

    async for update in registry.watch("greeter"):
        ...
    """

    def __init__(self, registry: Registry, request: pb.WatchRequest) -> None:
        self._registry = registry
        self._request = request
        self._call: grpc.aio.UnaryStreamCall[pb.WatchRequest, pb.WatchResponse] | None = None
        self._pauses = _Pauses()
        self._known: list[Entry] = []

    async def next(self) -> Update:
        """The next update; the first is a snapshot.

        While the agent is away it connects again and again, in longer and longer intervals. An exception says that the agent
        refused the watch, and would again. A call that is cancelled is followed by a snapshot.
        """
        while True:
            try:
                if self._call is None:
                    self._call = self._registry._reader.Watch(self._request, metadata=self._registry._metadata)
                response = await self._call.read()
            except grpc.aio.AioRpcError as error:
                # A watch waits for a place as well as for the agent.
                if error.code() not in _TRANSIENT and error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise _error(error) from None
                response = grpc.aio.EOF
            except asyncio.CancelledError:
                self.close()
                raise
            if not isinstance(response, pb.WatchResponse):
                self.close()
                await asyncio.sleep(self._pauses.next())
                continue
            self._pauses = _Pauses()
            update = _update(response)
            if update is not None:
                self._remember(update)
                return update

    def close(self) -> None:
        """End the watch; `next` begins it again."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    @property
    def known(self) -> list[Entry]:
        """The entries that this watch has received, the newest of each name first."""
        return list(self._known)

    @property
    def current(self) -> Entry | None:
        """The current entry of the watched name, if its socket answers."""
        newest = max(self._known, key=lambda entry: entry.order, default=None)
        return newest if newest is not None and newest.verified else None

    async def __aiter__(self) -> AsyncIterator[Update]:
        try:
            while True:
                yield await self.next()
        finally:
            self.close()

    def _remember(self, update: Update) -> None:
        if update.kind is Kind.SNAPSHOT:
            self._known = list(update.entries)
        else:
            self._known = [entry for entry in self._known if not entry.is_same_instance(update.entry)]
            if update.kind in (Kind.REGISTERED, Kind.UPDATED):
                self._known.append(update.entry)
        self._known.sort(key=lambda entry: (entry.offer.type, entry.offer.name, -entry.order))


class Registration:
    """An offer that is kept: it is registered again if the agent loses it."""

    def __init__(self, registry: Registry, offer: Offer, entry: Entry) -> None:
        self._registry = registry
        self.entry = entry
        """The entry at the time of its registration."""
        self._keeping = asyncio.create_task(self._keep(offer))

    async def withdraw(self) -> None:
        """Deregister the offer."""
        await _end(self._keeping)
        offer = self.entry.offer
        await self._registry.deregister(offer.type, offer.name, offer.instance)

    async def _keep(self, offer: Offer) -> None:
        watch, pauses = self._registry.watch(offer.type, offer.name), _Pauses()
        # A refusal is final: the ticket is no longer this process's, so the entry is not either.
        with contextlib.suppress(RegistryError):
            async for update in watch:
                if any(self.entry.is_same_instance(known) for known in watch.known):
                    pauses = _Pauses()
                    continue
                vanished = update.kind in (Kind.WITHDRAWN, Kind.PLUGIN_ENDED) and update.entry.is_same_instance(self.entry)
                if update.kind is Kind.SNAPSHOT or vanished:
                    await asyncio.sleep(pauses.next())
                    # One that fails is tried again with the next snapshot.
                    with contextlib.suppress(RegistryError):
                        await self._registry.register(offer)


class Following:
    """A connection to the current instance of a name, while providers change, restart or are upgraded."""

    def __init__(self, registry: Registry, kind: str, name: str) -> None:
        self._what = f"{kind} of the name {name}"
        self._current: Connection | None = None
        self._refused: RegistryError | None = None
        self._changed = asyncio.Condition()
        self._closing: set[asyncio.Task[None]] = set()
        self._task = asyncio.create_task(self._follow(registry.watch(kind, name)))

    @property
    def now(self) -> Connection | None:
        """The connection to the current instance, if a plugin offers one now."""
        return self._current

    async def connection(self, timeout: float) -> Connection:
        """The connection to the current instance, waiting until a plugin offers one.

        It is closed soon after another instance became current: ask for it before every use, and do not close it.
        """

        async def wait() -> Connection:
            async with self._changed:
                while self._current is None:
                    if self._refused is not None:
                        raise self._refused
                    await self._changed.wait()
                return self._current

        try:
            return await asyncio.wait_for(wait(), timeout)
        except asyncio.TimeoutError:
            raise TimedOut(f"no {self._what} was offered within {timeout:g} s") from None

    async def close(self) -> None:
        """End the following and its connection."""
        await _end(self._task)
        if self._current is not None:
            await self._current.close()

    async def _follow(self, watch: Watch) -> None:
        try:
            async for _ in watch:
                newest = watch.current
                known = watch.known
                # A restarted agent has not tried the socket yet; the connection to the same process is as good as before.
                if self._current is not None and any(_is_same_process(self._current.entry, it) for it in known[:1]):
                    continue
                await self._set(Connection(newest, _channel(newest.offer.socket)) if newest else None)
        except RegistryError as error:
            self._refused = error
            await self._set(None)

    async def _set(self, connection: Connection | None) -> None:
        old = self._current
        async with self._changed:
            self._current = connection
            self._changed.notify_all()
        if old is not None:
            closing = asyncio.create_task(old.channel.close(_DRAIN))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


class _Pauses:
    """Pauses that double, each between half and all of its step, so that not all plugins connect at the same time."""

    def __init__(self) -> None:
        self._step = _FIRST_PAUSE / 2

    def next(self) -> float:
        self._step = min(2 * self._step, _LONGEST_PAUSE)
        return self._step * random.uniform(0.5, 1)  # noqa: S311 - not a secret


def _channel(socket: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS)


async def _call(once: Callable[[], Awaitable[T]]) -> T:
    """Try again for a while until the agent answers."""
    clock = asyncio.get_running_loop().time
    deadline, pauses = clock() + _PATIENCE, _Pauses()
    while True:
        try:
            return await once()
        except grpc.aio.AioRpcError as error:
            if error.code() not in _TRANSIENT or clock() >= deadline:
                raise _error(error) from None
            await asyncio.sleep(pauses.next())


def _error(error: grpc.aio.AioRpcError) -> RegistryError:
    message = error.details() or error.code().name
    if error.code() == grpc.StatusCode.NOT_FOUND:
        return NotFound(message)
    if error.code() in _TRANSIENT:
        return Unreachable(f"the agent cannot be reached: {message}")
    return Refused(error.code(), message)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _is_same_process(a: Entry, b: Entry) -> bool:
    return a.is_same_instance(b) and (a.plugin, a.epoch, a.offer.socket) == (b.plugin, b.epoch, b.offer.socket)


def _entry(entry: pb.Entry) -> Entry:
    it = entry.offer
    offer = Offer(it.type, it.name, it.socket_path, it.instance, it.version, dict(it.options))
    return Entry(offer, entry.plugin, entry.epoch, entry.verified, entry.order)


def _entries(entries: Iterable[pb.Entry]) -> builtins.list[Entry]:
    return [_entry(entry) for entry in entries]


def _update(response: pb.WatchResponse) -> Update | None:
    """The message as an update; None for a kind that only later agents send."""
    if response.HasField("snapshot"):
        return Update(Kind.SNAPSHOT, _entries(response.snapshot.entries))
    change = response.change
    if change.kind == pb.Change.DEREGISTERED:
        kind = Kind.PLUGIN_ENDED if change.reason == pb.Change.PLUGIN_ENDED else Kind.WITHDRAWN
    elif change.kind in (pb.Change.REGISTERED, pb.Change.UPDATED):
        kind = Kind.REGISTERED if change.kind == pb.Change.REGISTERED else Kind.UPDATED
    else:
        return None
    return Update(kind, [_entry(change.entry)])
