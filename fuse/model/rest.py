"""What is left of a protobuf message once the understood fields are taken: carried as bytes, merged back on saving."""

from __future__ import annotations

from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

_VARINT, _FIXED64, _LENGTH, _GROUP, _FIXED32 = 0, 1, 2, 3, 5


def rest_of(message: Any, *understood: str) -> bytes:
    """The other fields of ``message``, those of unknown number included, without copying the understood ones."""
    left = type(message)()
    for field, value in message.ListFields():
        if field.name in understood:
            continue
        if hasattr(value, "extend"):
            getattr(left, field.name).extend(value)
        elif field.message_type is not None:
            getattr(left, field.name).CopyFrom(value)
        else:
            setattr(left, field.name, value)
    return bytes(left.SerializeToString()) + _unknown(UnknownFieldSet(message))


def _unknown(fields: Any) -> bytes:
    parts: list[bytes] = []
    for field in fields:
        parts.append(_varint(field.field_number << 3 | field.wire_type))
        if field.wire_type == _VARINT:
            parts.append(_varint(field.data))
        elif field.wire_type == _LENGTH:
            parts += [_varint(len(field.data)), bytes(field.data)]
        elif field.wire_type == _GROUP:
            parts += [_unknown(field.data), _varint(field.field_number << 3 | 4)]
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
