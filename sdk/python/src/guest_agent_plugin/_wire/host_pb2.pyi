import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Offer(_message.Message):
    __slots__ = ("type", "name", "instance", "version", "socket_path", "options")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SOCKET_PATH_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    type: str
    name: str
    instance: str
    version: str
    socket_path: str
    options: _containers.ScalarMap[str, str]
    def __init__(self, type: _Optional[str] = ..., name: _Optional[str] = ..., instance: _Optional[str] = ..., version: _Optional[str] = ..., socket_path: _Optional[str] = ..., options: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("offer", "plugin", "epoch", "verified", "registered_at", "order")
    OFFER_FIELD_NUMBER: _ClassVar[int]
    PLUGIN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_AT_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    offer: Offer
    plugin: str
    epoch: int
    verified: bool
    registered_at: _timestamp_pb2.Timestamp
    order: int
    def __init__(self, offer: _Optional[_Union[Offer, _Mapping]] = ..., plugin: _Optional[str] = ..., epoch: _Optional[int] = ..., verified: bool = ..., registered_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., order: _Optional[int] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("offer",)
    OFFER_FIELD_NUMBER: _ClassVar[int]
    offer: Offer
    def __init__(self, offer: _Optional[_Union[Offer, _Mapping]] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("entry",)
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    entry: Entry
    def __init__(self, entry: _Optional[_Union[Entry, _Mapping]] = ...) -> None: ...

class DeregisterRequest(_message.Message):
    __slots__ = ("type", "name", "instance")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    type: str
    name: str
    instance: str
    def __init__(self, type: _Optional[str] = ..., name: _Optional[str] = ..., instance: _Optional[str] = ...) -> None: ...

class DeregisterResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("type", "all_instances")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ALL_INSTANCES_FIELD_NUMBER: _ClassVar[int]
    type: str
    all_instances: bool
    def __init__(self, type: _Optional[str] = ..., all_instances: bool = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("entries", "sequence")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    sequence: int
    def __init__(self, entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., sequence: _Optional[int] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("type", "name", "instance")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    type: str
    name: str
    instance: str
    def __init__(self, type: _Optional[str] = ..., name: _Optional[str] = ..., instance: _Optional[str] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("entry",)
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    entry: Entry
    def __init__(self, entry: _Optional[_Union[Entry, _Mapping]] = ...) -> None: ...

class WaitRequest(_message.Message):
    __slots__ = ("type", "name", "instance", "timeout_ms")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    type: str
    name: str
    instance: str
    timeout_ms: int
    def __init__(self, type: _Optional[str] = ..., name: _Optional[str] = ..., instance: _Optional[str] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class WaitResponse(_message.Message):
    __slots__ = ("entry",)
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    entry: Entry
    def __init__(self, entry: _Optional[_Union[Entry, _Mapping]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("type", "name")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    type: str
    name: str
    def __init__(self, type: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("snapshot", "change")
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    change: Change
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., change: _Optional[_Union[Change, _Mapping]] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("entries", "sequence")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    sequence: int
    def __init__(self, entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., sequence: _Optional[int] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("sequence", "kind", "entry", "reason")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[Change.Kind]
        REGISTERED: _ClassVar[Change.Kind]
        UPDATED: _ClassVar[Change.Kind]
        DEREGISTERED: _ClassVar[Change.Kind]
    KIND_UNSPECIFIED: Change.Kind
    REGISTERED: Change.Kind
    UPDATED: Change.Kind
    DEREGISTERED: Change.Kind
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[Change.Reason]
        ASKED: _ClassVar[Change.Reason]
        PLUGIN_ENDED: _ClassVar[Change.Reason]
    REASON_UNSPECIFIED: Change.Reason
    ASKED: Change.Reason
    PLUGIN_ENDED: Change.Reason
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    kind: Change.Kind
    entry: Entry
    reason: Change.Reason
    def __init__(self, sequence: _Optional[int] = ..., kind: _Optional[_Union[Change.Kind, str]] = ..., entry: _Optional[_Union[Entry, _Mapping]] = ..., reason: _Optional[_Union[Change.Reason, str]] = ...) -> None: ...

class DispenseRequest(_message.Message):
    __slots__ = ("type", "name", "instance")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    type: str
    name: str
    instance: str
    def __init__(self, type: _Optional[str] = ..., name: _Optional[str] = ..., instance: _Optional[str] = ...) -> None: ...

class DispenseResponse(_message.Message):
    __slots__ = ("target", "entry")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    target: str
    entry: Entry
    def __init__(self, target: _Optional[str] = ..., entry: _Optional[_Union[Entry, _Mapping]] = ...) -> None: ...
