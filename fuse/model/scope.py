"""Scopes: the names that a node sees while a file is read, those of its graph and those of the graphs around it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuse.errors import LimitError, ModelError, quote
from fuse.ir.graph import Value
from fuse.limits import Limits


def text(value: Any, what: str) -> str:
    """``value``, which protobuf gives as bytes where it is not UTF-8: refused then."""
    if not isinstance(value, str):
        raise ModelError(f"{what} {quote(value)} is not UTF-8 text")
    return value


class Scope:
    """The values of one graph by name, in front of the scopes around it."""

    __slots__ = ("limits", "outer", "own")

    def __init__(self, limits: Limits, outer: Scope | None = None) -> None:
        self.limits, self.outer = limits, outer
        self.own: dict[str, Value] = {}
        if len(list(self.around())) > limits.nesting:
            raise LimitError(f"subgraphs stand more than {limits.nesting} deep in each other")

    def around(self) -> Iterator[Scope]:
        """The scopes around this one, innermost first."""
        scope = self.outer
        while scope is not None:
            yield scope
            scope = scope.outer

    def find(self, name: str) -> Value | None:
        """The value called ``name``, in this graph or around it; None where there is none."""
        scope: Scope | None = self
        while scope is not None:
            value = scope.own.get(name)
            if value is not None:
                return value
            scope = scope.outer
        return None

    def need(self, name: str, what: str) -> Value:
        """The value called ``name``; ``ModelError`` where there is none."""
        value = self.find(name)
        if value is None:
            raise ModelError(f"{what} {quote(name)} is defined nowhere")
        return value

    def define(self, name: str, value: Value, what: str) -> Value:
        """Make ``value`` known as ``name``, which must be new here and around: ONNX does not let names hide others."""
        if not name:
            raise ModelError(f"{what} has no name")
        if self.find(name) is not None:
            raise ModelError(f"{what} {quote(name)} is defined twice")
        check_name(name, what, self.limits)
        self.own[name] = value
        return value


def check_name(name: Any, what: str, limits: Limits) -> None:
    """Refuse a name that is no text, or longer than anyone means it to be."""
    if len(name) > limits.name_bytes // 4 and len(text(name, what).encode()) > limits.name_bytes:
        raise LimitError(f"{what} {quote(name)} has more than {limits.name_bytes:,} bytes")
    text(name, what)
