"""The interpreter: runs a graph node by node, frees each value after its last use, and defines what a model means.

It runs in the model's own dtypes, or with every floating value in float64 (``precision="double"``), which is the
yardstick that verification measures rounding with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuse.errors import FuseError, InputError, RunError, UnsupportedError, quote
from fuse.ir.dtypes import CODE, DOUBLE, FLOATING, NAME, STRING, Array
from fuse.ir.graph import Attr, Graph, Node, Value
from fuse.ir.model import Function, Model
from fuse.ops import Trait, lookup
from fuse.ops.infer import check_arity, describe
from fuse.runtime.feeds import checked_feeds

Observer = Callable[[Node, Sequence[Any], float], None]
Bound = Mapping[str, Attr]


@dataclass(slots=True)
class _Step:
    """A node made ready: what runs it, what it reads and makes, and which values nothing reads after it."""

    node: Node
    run: Callable[..., Any]
    keywords: dict[str, Any]
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value | None, ...]
    frees: tuple[Value, ...] = ()
    references: bool = False


class Interpreter:
    """Runs ``model``.  ``observe(node, outputs, seconds)`` is called after each node of the main graph and below it.

    ``precision="double"`` computes every floating value in float64: constants and feeds are widened, and casts to a
    narrower float round nothing.
    """

    def __init__(self, model: Model, *, precision: str | None = None, observe: Observer | None = None) -> None:
        if precision not in (None, "double"):
            raise InputError(f"precision is None or 'double', not {precision!r}")
        self.model, self.observe = model, observe
        self.double = precision == "double"
        self._ready: dict[Graph, list[_Step]] = {}
        self._wide: dict[Value, Array] = {}
        self._values: dict[Value, Any] = {}
        self._bound: list[Bound] = []

    def run(self, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None) -> dict[str, Any]:
        """The outputs by name (all, or those asked for) for ``feeds`` by input name.

        Raises ``InputError`` for feeds that do not fit, ``RunError`` or ``UnsupportedError`` with the node's name.
        """
        graph = self.model.graph
        names = [slot.name for slot in graph.outputs]
        wanted = list(dict.fromkeys(names)) if outputs is None else list(outputs)
        for name in wanted:
            if name not in names:
                hint = f"outputs are {', '.join(quote(n) for n in names[:20])}"
                raise InputError(f"there is no output {quote(name)}", where=self.model.source, hint=hint)
        given = checked_feeds(self.model, feeds)
        try:
            with np.errstate(all="ignore"):
                results = self._graph(graph, [self._widened(v) for v in given])
        except FuseError as error:
            raise error.within(self.model.source) from None
        finally:
            self._values.clear()
            self._bound.clear()
        by_name = dict(zip(names, results, strict=True))
        return {name: by_name[name] for name in wanted}

    # ---- graphs

    def _graph(self, graph: Graph, arguments: Sequence[Any]) -> list[Any]:
        values = self._values
        for value, argument in zip(graph.inputs, arguments, strict=False):
            values[value] = argument
        for step in self._prepared(graph):
            self._step(step)
        return [self._read(slot.value) for slot in graph.outputs]

    def _step(self, step: _Step) -> None:
        arguments = [None if v is None else self._read(v) for v in step.inputs]
        keywords = self._resolved(step) if step.references else step.keywords
        started = time.perf_counter() if self.observe is not None else 0.0
        try:
            result = step.run(*arguments, **keywords)
        except FuseError as error:
            raise error.within(describe(step.node)) from None
        except MemoryError:
            raise RunError("there is not enough memory for the result", where=describe(step.node)) from None
        except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            shapes = ", ".join(_show(a) for a in arguments)
            text = " ".join(str(error).split())
            raise RunError(f"{text} (inputs {shapes})", where=describe(step.node)) from error
        results = result if isinstance(result, tuple) else (result,)
        if self.observe is not None:
            self.observe(step.node, results, time.perf_counter() - started)
        for value, got in zip(step.outputs, results, strict=False):
            if value is not None:
                self._values[value] = self._widened(np.asarray(got) if isinstance(got, np.generic) else got)
        for value in step.frees:
            self._values.pop(value, None)

    def _read(self, value: Value) -> Any:
        found = self._values.get(value)
        if found is not None or not value.is_const:
            return found
        if not self.double or value.dtype not in FLOATING:
            return value.data
        if value not in self._wide:
            self._wide[value] = value.array.astype(np.float64)
        return self._wide[value]

    def _widened(self, value: Any) -> Any:
        if self.double:
            if isinstance(value, np.ndarray) and value.dtype in FLOATING:
                return value.astype(np.float64, copy=False)
            if isinstance(value, list):
                return [self._widened(v) for v in value]
        return value

    # ---- preparation, once for each graph

    def _prepared(self, graph: Graph) -> list[_Step]:
        steps = self._ready.get(graph)
        if steps is None:
            steps = self._ready[graph] = [self._prepare(node) for node in graph.nodes]
            self._set_frees(graph, steps)
        return steps

    def _prepare(self, node: Node) -> _Step:
        function = self.model.functions.get((node.op, node.overload)) if node.domain else None
        record = lookup(node.op)
        keywords = {name: attr.value for name, attr in node.attrs.items() if not attr.reference}
        references = any(attr.reference for attr in node.attrs.values())
        run: Callable[..., Any]
        if record is not None:
            run = record.kernel
            check_arity(record, node.inputs)
            if record.wants_outputs:
                keywords["n_outputs"] = len(node.outputs)
            if Trait.CONTROL in record.traits:
                keywords["run"] = self._graph
            if self.double and node.op == "Cast" and not references:
                keywords = _wide_cast(keywords)
            if self.double and node.op == "BitCast":
                run = _of_declared(node, run)
        elif function is not None:
            run, keywords, references = self._caller(node, function), {}, False
        else:
            hint = "the optimizer carries it through untouched; onnxruntime may run it"
            raise UnsupportedError("this runtime has no kernel for the operator", where=describe(node), hint=hint)
        return _Step(node, run, keywords, node.inputs, tuple(node.outputs), references=references)

    def _resolved(self, step: _Step) -> dict[str, Any]:
        keywords = dict(step.keywords)
        for name, attr in step.node.attrs.items():
            if attr.reference:
                bound = self._bound[-1].get(attr.reference) if self._bound else None
                if bound is not None:
                    keywords[name] = bound.value
        return keywords

    def _caller(self, node: Node, function: Function) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            outer = self._bound[-1] if self._bound else {}
            bound = dict(function.defaults)
            for name, attr in node.attrs.items():
                own = outer.get(attr.reference) if attr.reference else attr
                if own is not None:
                    bound[name] = own
            self._bound.append(bound)
            try:
                padded = [*arguments, *[None] * (len(function.graph.inputs) - len(arguments))]
                return tuple(self._graph(function.graph, padded))
            finally:
                self._bound.pop()

        return call

    def _set_frees(self, graph: Graph, steps: list[_Step]) -> None:
        """Each step frees the values of ``graph`` that are read for the last time there, captures included."""
        last: dict[Value, int] = {}
        inputs = set(graph.inputs)
        for index, step in enumerate(steps):
            for value in step.outputs:
                if value is not None:
                    last[value] = index
            for value in _reads(step.node):
                if value in last or value in inputs:
                    last[value] = index
        for slot in graph.outputs:
            last.pop(slot.value, None)
        frees: dict[int, list[Value]] = {}
        for value, index in last.items():
            frees.setdefault(index, []).append(value)
        for index, values in frees.items():
            steps[index].frees = tuple(values)


def _reads(node: Node) -> list[Value]:
    """What a node reads, what its subgraphs capture included."""
    reads = [v for v in node.inputs if v is not None]
    for sub in node.subgraphs if node.attrs else ():
        for graph in sub.walk_graphs():
            reads += [slot.value for slot in graph.outputs]
            for inner in graph.nodes:
                reads += [v for v in inner.inputs if v is not None]
    return reads


def _wide_cast(keywords: dict[str, Any]) -> dict[str, Any]:
    narrow = {CODE[d] for d in FLOATING}
    return {**keywords, "to": CODE[DOUBLE]} if keywords["to"] in narrow else keywords


def _of_declared(node: Node, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """``kernel`` on its input in the dtype that the model gives it: bits are read, so widening would change them."""
    first = node.input(0)
    dtype = first.dtype if first is not None else None
    return lambda x, **keywords: kernel(x if dtype is None else x.astype(dtype, copy=False), **keywords)


def _show(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{NAME.get(value.dtype, 'string' if value.dtype == STRING else str(value.dtype))}{list(value.shape)}"
    return "absent" if value is None else type(value).__name__


def run(
    model: Model, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None, *, precision: str | None = None
) -> dict[str, Any]:
    """Interpret ``model`` once: see ``Interpreter``."""
    return Interpreter(model, precision=precision).run(feeds, outputs)
