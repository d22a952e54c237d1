import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HashAlgo(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HASH_ALGO_UNSPECIFIED: _ClassVar[HashAlgo]
    SHA1: _ClassVar[HashAlgo]
    SHA256: _ClassVar[HashAlgo]
HASH_ALGO_UNSPECIFIED: HashAlgo
SHA1: HashAlgo
SHA256: HashAlgo

class ObjectRef(_message.Message):
    __slots__ = ("hash_algo", "hex_digest")
    HASH_ALGO_FIELD_NUMBER: _ClassVar[int]
    HEX_DIGEST_FIELD_NUMBER: _ClassVar[int]
    hash_algo: HashAlgo
    hex_digest: str
    def __init__(self, hash_algo: _Optional[_Union[HashAlgo, str]] = ..., hex_digest: _Optional[str] = ...) -> None: ...

class InstanceMetadata(_message.Message):
    __slots__ = ("key", "value", "content_type", "fingerprint", "attached_by", "attached_ts")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_BY_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_TS_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    content_type: str
    fingerprint: str
    attached_by: str
    attached_ts: _timestamp_pb2.Timestamp
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ..., content_type: _Optional[str] = ..., fingerprint: _Optional[str] = ..., attached_by: _Optional[str] = ..., attached_ts: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
