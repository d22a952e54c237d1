import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StartRequest(_message.Message):
    __slots__ = ("config", "string_config", "struct_config")
    class Config(_message.Message):
        __slots__ = ("state_directory_path",)
        STATE_DIRECTORY_PATH_FIELD_NUMBER: _ClassVar[int]
        state_directory_path: str
        def __init__(self, state_directory_path: _Optional[str] = ...) -> None: ...
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    STRING_CONFIG_FIELD_NUMBER: _ClassVar[int]
    STRUCT_CONFIG_FIELD_NUMBER: _ClassVar[int]
    config: StartRequest.Config
    string_config: str
    struct_config: _struct_pb2.Struct
    def __init__(self, config: _Optional[_Union[StartRequest.Config, _Mapping]] = ..., string_config: _Optional[str] = ..., struct_config: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class StartResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ApplyRequest(_message.Message):
    __slots__ = ("string_config", "struct_config")
    STRING_CONFIG_FIELD_NUMBER: _ClassVar[int]
    STRUCT_CONFIG_FIELD_NUMBER: _ClassVar[int]
    string_config: str
    struct_config: _struct_pb2.Struct
    def __init__(self, string_config: _Optional[str] = ..., struct_config: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class ApplyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: str
    def __init__(self, data: _Optional[str] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("code", "results")
    CODE_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    code: int
    results: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, code: _Optional[int] = ..., results: _Optional[_Iterable[str]] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("cleanup", "deadline")
    CLEANUP_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    cleanup: bool
    deadline: _duration_pb2.Duration
    def __init__(self, cleanup: bool = ..., deadline: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class StopResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
