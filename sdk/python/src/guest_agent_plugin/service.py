"""Makes calls of life of messages, and messages of their results."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc
from google.protobuf.struct_pb2 import Struct, Value

from ._wire import plugin_comm_pb2 as pb
from ._wire import plugin_comm_pb2_grpc as pb_grpc
from .config import Config
from .errors import BadConfig, NotStarted, PluginError, Stopping, TooLate, Unsupported
from .life import Life
from .plugin import Start, Stop
from .state import StateDir

# How long a stop may take when the request has no deadline: the agent's default.
_DEFAULT_STOP = 30.0
# The longest error text on the wire. It travels in a header, percent-encoded, and clients refuse headers of more than 16 KiB.
_MAX_MESSAGE = 2048
# Whole numbers up to here are exact in a structure, whose numbers are all floats.
_EXACT = 2**53


class Service(pb_grpc.GuestAgentPluginServicer):
    """The service for one plugin."""

    def __init__(self, life: Life) -> None:
        self._life = life

    async def Start(self, request: pb.StartRequest, context: Any) -> pb.StartResponse:
        """Start the plugin."""
        state = StateDir(request.config.state_directory_path)
        try:
            await self._life.start(Start(state, _config(request)))
        except PluginError as error:
            await _refuse(context, error)
        return pb.StartResponse()

    async def Apply(self, request: pb.ApplyRequest, context: Any) -> pb.ApplyResponse:
        """Hand over a configuration or news of the machine."""
        try:
            await self._life.apply(_config(request))
        except PluginError as error:
            await _refuse(context, error)
        return pb.ApplyResponse()

    async def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.Status:
        """Make a health check, or ask a question."""
        try:
            status = await self._life.status(request.data if request.HasField("data") else None)
        except PluginError as error:
            await _refuse(context, error)
        return pb.Status(code=status.code, results=[_valid(line) for line in status.results])

    async def Stop(self, request: pb.StopRequest, context: Any) -> pb.StopResponse:
        """Stop the plugin."""
        deadline = request.deadline.seconds + request.deadline.nanos / 1e9
        try:
            # A zero, negative or absent deadline means that the sender set none.
            await self._life.stop(Stop(request.cleanup, deadline if deadline > 0 else _DEFAULT_STOP))
        except PluginError as error:
            await _refuse(context, error)
        return pb.StopResponse()


def _config(request: pb.StartRequest | pb.ApplyRequest) -> Config:
    match request.WhichOneof("service_config"):
        case "string_config":
            return Config(request.string_config)
        case "struct_config":
            return Config(_object(request.struct_config))
        case _:
            return Config()


def _object(fields: Struct) -> dict[str, Any]:
    # gRPC bounds the nesting of a message, so the recursion here is bounded too.
    return {name: _value(value) for name, value in fields.fields.items()}


def _value(value: Value) -> Any:
    match value.WhichOneof("kind"):
        case "bool_value":
            return value.bool_value
        case "number_value":
            number = value.number_value
            return int(number) if number.is_integer() and abs(number) <= _EXACT else number
        case "string_value":
            return value.string_value
        case "list_value":
            return [_value(item) for item in value.list_value.values]
        case "struct_value":
            return _object(value.struct_value)
        case _:
            return None


async def _refuse(context: Any, error: PluginError) -> NoReturn:
    """End a call that failed.

    It is UNIMPLEMENTED only when the plugin answered so, because the agent then restarts the plugin. It is never UNKNOWN or
    UNAVAILABLE, because a broken connection looks like these.
    """
    match error:
        case NotStarted() | Stopping():
            code = grpc.StatusCode.FAILED_PRECONDITION
        case Unsupported():
            code = grpc.StatusCode.UNIMPLEMENTED
        case BadConfig():
            code = grpc.StatusCode.INVALID_ARGUMENT
        case TooLate():
            code = grpc.StatusCode.DEADLINE_EXCEEDED
        case _:
            code = grpc.StatusCode.INTERNAL
    await context.abort(code, _valid(str(error)).encode()[:_MAX_MESSAGE].decode(errors="ignore"))
    raise AssertionError("abort does not return")


def _valid(text: str) -> str:
    """Replace what cannot be UTF-8, which a message cannot hold."""
    return text.encode(errors="replace").decode()
