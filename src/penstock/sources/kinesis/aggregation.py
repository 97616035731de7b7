"""Records that the Kinesis Producer Library packed into one: the rows inside.

A packed record begins with four magic bytes and ends with the MD5 of what lies between: a protobuf
message with a table of partition keys (field 1) and the records (field 3), each with the index of
its key (field 1) and its data (field 3).
"""

import hashlib
from collections.abc import Iterator

_MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST = 16


def unpack(partition_key: str, data: bytes) -> list[tuple[str, bytes]]:
    """Partition key and data of each row of a record; one that is not packed stays as it is."""
    if not data.startswith(_MAGIC) or len(data) < len(_MAGIC) + _DIGEST:
        return [(partition_key, data)]
    message, digest = data[len(_MAGIC) : -_DIGEST], data[-_DIGEST:]
    if hashlib.md5(message, usedforsecurity=False).digest() != digest:
        return [(partition_key, data)]
    try:
        keys: list[str] = []
        packed: list[bytes] = []
        for number, value in _fields(message):
            if number == 1 and isinstance(value, bytes):
                keys.append(value.decode())
            elif number == 3 and isinstance(value, bytes):
                packed.append(value)
        return [_row(record, keys) for record in packed]
    except (ValueError, IndexError):
        return [(partition_key, data)]


def _row(record: bytes, keys: list[str]) -> tuple[str, bytes]:
    index, data = 0, b""
    for number, value in _fields(record):
        if number == 1 and isinstance(value, int):
            index = value
        elif number == 3 and isinstance(value, bytes):
            data = value
    return keys[index], data


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            number, at = _varint(message, at)
            yield tag >> 3, number
        elif kind == 2:
            size, at = _varint(message, at)
            if at + size > len(message):
                raise ValueError("a field is cut off")
            yield tag >> 3, message[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {kind} is not expected")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")
