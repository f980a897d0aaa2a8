"""How names, strings, numbers and arrays are spelled in text, so that reading them back gives the same bits.

Each spelling stands beside its inverse.  Names are quoted only where they need to be; whatever could disturb a terminal
or reorder a line (control characters, right-to-left letters, combining marks, lone surrogates) is escaped.  Numbers are
the shortest decimal that reads back to the same bits, and the raw bits in hexadecimal where no decimal does.
"""

from __future__ import annotations

import hashlib
import re
import struct
import unicodedata
from collections.abc import Sequence

import numpy as np

from fuse.errors import quote
from fuse.ir.dtypes import BOOL, INTEGER, STRING, Array, DType, name_of

WORD = r"[A-Za-z_][A-Za-z0-9_.$]*"
LABEL = r"(?:[A-Za-z0-9_./$-]|::)+"
_PLAIN_WORD = re.compile(WORD)
_PLAIN_PATH = re.compile(rf"{WORD}(?:::{WORD})*")
_PLAIN_LABEL = re.compile(LABEL)
_RESERVED = frozenset({"_", "floor"})

# ---- strings and names

_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_LONG = {short[1]: char for char, short in _SHORT.items()}
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))", re.DOTALL)
_TURNING = frozenset({"R", "AL", "AN", "RLE", "LRE", "RLO", "LRO", "PDF", "RLI", "LRI", "FSI", "PDI"})


def quoted(text: str) -> str:
    """``text`` in double quotes on one line, every disturbing character escaped."""
    if text.isascii() and text.isprintable():
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return '"' + "".join(_SHORT.get(c) or (c if _harmless(c) else _escaped(c)) for c in text) + '"'


def _harmless(char: str) -> bool:
    if char.isascii() or not char.isprintable():
        return char.isascii() and char.isprintable()
    return unicodedata.category(char)[0] != "M" and unicodedata.bidirectional(char) not in _TURNING


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def unquoted(token: str) -> str:
    """The inverse of ``quoted``.  Raises ``ValueError`` on an escape that it does not write."""

    def char(match: re.Match[str]) -> str:
        if match[4] is None:
            return chr(int(match[1] or match[2] or match[3], 16))
        if match[4] not in _LONG:
            raise ValueError(f"no such escape: {quote(match[0])}")
        return _LONG[match[4]]

    return _ESCAPE.sub(char, token[1:-1])


def word(text: str) -> str:
    """A symbol, an attribute or part of an operator's name: bare where it reads as one word, else quoted."""
    return text if _PLAIN_WORD.fullmatch(text) and text not in _RESERVED else quoted(text)


def path(text: str) -> str:
    """An operator's name, ``domain::Name``: bare where it reads as words, else quoted."""
    return text if _PLAIN_PATH.fullmatch(text) and text not in _RESERVED else quoted(text)


def label(text: str) -> str:
    """A value's name, which follows a percent sign: bare where possible, else quoted; nothing where empty."""
    return text if not text or _PLAIN_LABEL.fullmatch(text) else quoted(text)


# ---- numbers


def spell_float(value: float) -> str:
    """A double as its shortest decimal, or that of the float32 it equals with ``f`` behind; odd NaNs as hex bits."""
    value = float(value)
    bits = struct.pack("<d", value)
    if value != value:
        return "nan" if bits == struct.pack("<d", float("nan")) else f"0x{bits[::-1].hex()}"
    exact = repr(value)
    with np.errstate(over="ignore"):
        single = np.float32(value)
    short = f"{single!s}f"
    return short if float(single) == value and len(short) < len(exact) and read_float(short) == value else exact


def read_float(token: str) -> float:
    """The inverse of ``spell_float``.  Raises ``ValueError`` on anything else."""
    if token.startswith("0x"):
        return float(struct.unpack("<d", _bits(token, 8))[0])
    if token.endswith("f") and not token.endswith("inf"):
        with np.errstate(over="ignore"):
            return float(np.float32(token[:-1]))
    return float(token)


def _bits(token: str, size: int) -> bytes:
    if len(token) != 2 + 2 * size:
        raise ValueError(f"the bits of {size} bytes are {2 * size} hexadecimal digits")
    return int(token, 16).to_bytes(size, "little")


_TEXT = re.compile(r'".*"', re.DOTALL)
_TRUTH = re.compile("true|false")
_INTEGER = re.compile("-?[0-9]+")
_REAL = re.compile(r"0x[0-9a-f]+|-?(?:inf|nan|[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)")


def spell_elements(array: Array) -> list[str]:
    """The elements in row-major order, as the tokens that ``read_elements`` takes: one each, two for a complex one."""
    flat = np.ascontiguousarray(array).reshape(-1)
    dtype = flat.dtype
    if dtype == STRING:
        return [quoted(str(text)) for text in flat.tolist()]
    if dtype == BOOL:
        return ["true" if x else "false" for x in flat.tolist()]
    if dtype in INTEGER:
        return [str(int(x)) for x in flat]
    if dtype.kind == "c":
        part = np.dtype(f"f{dtype.itemsize // 2}")
        return spell_elements(flat.view(part))
    tokens = [str(x) if dtype.kind == "f" else str(float(x)) for x in flat]
    again = read_elements(tokens, dtype)
    return [
        token if x.tobytes() == y.tobytes() else f"0x{x.tobytes()[::-1].hex()}"
        for token, x, y in zip(tokens, flat, again, strict=True)
    ]


def read_elements(tokens: Sequence[str], dtype: DType) -> Array:
    """The 1-D array that the tokens spell (a complex number is two of them).  ``ValueError`` on what is no element."""
    pattern = _TEXT if dtype == STRING else _TRUTH if dtype == BOOL else _INTEGER if dtype in INTEGER else _REAL
    for token in tokens:
        if not pattern.fullmatch(token):
            raise ValueError(f"{quote(token)} is no element of {name_of(dtype)}")
    if dtype == STRING:
        texts = np.empty(len(tokens), dtype=object)
        texts[:] = [unquoted(t) for t in tokens]
        return texts
    if dtype == BOOL:
        return np.array([t == "true" for t in tokens], dtype=BOOL)
    if dtype in INTEGER:
        return _integers([int(t) for t in tokens], dtype)
    if dtype.kind == "c":
        return read_elements(tokens, np.dtype(f"f{dtype.itemsize // 2}")).view(dtype)
    flat = np.empty(len(tokens), dtype)
    raw = flat.view(np.uint8).reshape(len(tokens), dtype.itemsize)
    for index, token in enumerate(tokens):
        if token.startswith("0x"):
            raw[index] = np.frombuffer(_bits(token, dtype.itemsize), np.uint8)
    with np.errstate(over="ignore"):
        decimal = [index for index, token in enumerate(tokens) if not token.startswith("0x")]
        flat[decimal] = np.array([float(tokens[index]) for index in decimal], np.float64).astype(dtype)
    return flat


def _integers(numbers: list[int], dtype: DType) -> Array:
    bits = int(dtype.name.partition("int")[2])
    low, high = (0, 2**bits - 1) if dtype.name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for number in numbers:
        if not low <= number <= high:
            raise ValueError(f"{number} is outside {dtype.name}")
    return np.array(numbers, np.uint64 if high >= 2**63 else np.int64).astype(dtype)


def digest(array: Array) -> str:
    """Eight hexadecimal digits of a hash over the array's dtype, shape and bytes."""
    state = hashlib.blake2b(f"{array.dtype}{array.shape}".encode(), digest_size=4)
    if array.dtype == STRING:
        for text in array.reshape(-1).tolist():
            coded = str(text).encode("utf-8", "surrogatepass")
            state.update(len(coded).to_bytes(8, "little") + coded)
    elif array.size:
        state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return state.hexdigest()
