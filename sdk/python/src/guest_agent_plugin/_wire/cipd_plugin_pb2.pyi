from guest_agent_plugin._wire import cipd_pb2 as _cipd_pb2
from google.protobuf import empty_pb2 as _empty_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Handshake(_message.Message):
    __slots__ = ("port", "ticket")
    PORT_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    port: int
    ticket: str
    def __init__(self, port: _Optional[int] = ..., ticket: _Optional[str] = ...) -> None: ...

class LogRequest(_message.Message):
    __slots__ = ("severity", "message")
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    severity: str
    message: str
    def __init__(self, severity: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class ListMetadataRequest(_message.Message):
    __slots__ = ("service_url", "package", "instance", "keys", "page_size", "page_token")
    SERVICE_URL_FIELD_NUMBER: _ClassVar[int]
    PACKAGE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    service_url: str
    package: str
    instance: _cipd_pb2.ObjectRef
    keys: _containers.RepeatedScalarFieldContainer[str]
    page_size: int
    page_token: str
    def __init__(self, service_url: _Optional[str] = ..., package: _Optional[str] = ..., instance: _Optional[_Union[_cipd_pb2.ObjectRef, _Mapping]] = ..., keys: _Optional[_Iterable[str]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListMetadataResponse(_message.Message):
    __slots__ = ("metadata", "next_page_token")
    METADATA_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    metadata: _containers.RepeatedCompositeFieldContainer[_cipd_pb2.InstanceMetadata]
    next_page_token: str
    def __init__(self, metadata: _Optional[_Iterable[_Union[_cipd_pb2.InstanceMetadata, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListAdmissionsRequest(_message.Message):
    __slots__ = ("protocol_version", "plugin_version")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    PLUGIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    plugin_version: str
    def __init__(self, protocol_version: _Optional[int] = ..., plugin_version: _Optional[str] = ...) -> None: ...

class Admission(_message.Message):
    __slots__ = ("admission_id", "service_url", "package", "instance")
    ADMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    SERVICE_URL_FIELD_NUMBER: _ClassVar[int]
    PACKAGE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    admission_id: str
    service_url: str
    package: str
    instance: _cipd_pb2.ObjectRef
    def __init__(self, admission_id: _Optional[str] = ..., service_url: _Optional[str] = ..., package: _Optional[str] = ..., instance: _Optional[_Union[_cipd_pb2.ObjectRef, _Mapping]] = ...) -> None: ...

class ResolveAdmissionRequest(_message.Message):
    __slots__ = ("admission_id", "status")
    ADMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    admission_id: str
    status: _status_pb2.Status
    def __init__(self, admission_id: _Optional[str] = ..., status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...
