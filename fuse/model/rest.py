"""What is left of a protobuf message once the understood fields are taken: carried as bytes, merged back on saving."""

from __future__ import annotations

import functools
from typing import Any

import onnx
from google.protobuf.unknown_fields import UnknownFieldSet

from fuse.ir.model import Model

_VARINT, _FIXED64, _LENGTH, _GROUP, _FIXED32 = 0, 1, 2, 3, 5


def rest_of(message: Any, understood: frozenset[str]) -> bytes:
    """The other fields of ``message``, those of unknown number included, without touching the understood ones."""
    parts: list[bytes] = []
    left = None
    for name, number in _others(message.DESCRIPTOR, understood):
        value = getattr(message, name)
        many = hasattr(value, "extend")
        if not (len(value) if many else message.HasField(name)):
            continue
        if isinstance(value, bytes):  # text that is not UTF-8, which a string field does not take back
            parts += [_varint(number << 3 | _LENGTH), _varint(len(value)), value]
            continue
        left = left if left is not None else type(message)()
        if many:
            getattr(left, name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(left, name).CopyFrom(value)
        else:
            setattr(left, name, value)
    if left is not None:
        parts.append(left.SerializeToString())
    unknown = UnknownFieldSet(message)
    if len(unknown):
        parts.append(_encoded(unknown))
    return b"".join(parts)


@functools.cache
def _others(descriptor: Any, understood: frozenset[str]) -> tuple[tuple[str, int], ...]:
    """Name and number of each field that is not understood."""
    return tuple((field.name, field.number) for field in descriptor.fields if field.name not in understood)


def _encoded(fields: Any) -> bytes:
    parts: list[bytes] = []
    for field in fields:
        parts.append(_varint(field.field_number << 3 | field.wire_type))
        if field.wire_type == _VARINT:
            parts.append(_varint(field.data))
        elif field.wire_type == _LENGTH:
            parts += [_varint(len(field.data)), bytes(field.data)]
        elif field.wire_type == _GROUP:
            parts += [_encoded(field.data), _varint(field.field_number << 3 | 4)]
        else:
            parts.append(int(field.data).to_bytes(8 if field.wire_type == _FIXED64 else 4, "little"))
    return b"".join(parts)


def _varint(number: int) -> bytes:
    out = bytearray()
    number &= (1 << 64) - 1
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def producer(model: Model) -> str:
    """The tool that wrote the file, and its version, as carried from it; empty where it does not say."""
    carried = onnx.ModelProto.FromString(model.extra)
    return " ".join(filter(None, map(_text, [carried.producer_name, carried.producer_version])))


def _text(carried: str | bytes) -> str:
    """A string that nobody has checked: protobuf hands out what is not UTF-8 as bytes."""
    return carried if isinstance(carried, str) else carried.decode("utf-8", "backslashreplace")
