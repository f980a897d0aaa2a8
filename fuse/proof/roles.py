"""Roles: what a graph does with an input, so that made-up values are ones that it can take.

The walk goes forward from the input along every use.  Operators that hand elements on unchanged keep the role exact: an
input that reaches the indices of a Gather through Cast and Unsqueeze must stay below the size of the axis that is
indexed.  Arithmetic on the way keeps the numbers small instead.  An integer that only arithmetic reads is free.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fuse.errors import FuseError
from fuse.ir.dtypes import BY_CODE, FLOATING, STRING
from fuse.ir.graph import Graph, Node, User, Value
from fuse.ir.model import Model
from fuse.ops.infer import infer_graph, known
from fuse.ops.record import Info, Trait, has_trait

#: Numbers without a role lie in [0, SMALL): safe as indices of most tables, as counts and as sizes.
SMALL = 4


@dataclass(frozen=True, slots=True)
class Role:
    """What an input is for.

    ``free`` (any number), ``small`` (unknown use), ``index`` (integers in [low, high)), ``unit`` (reals in that range),
    ``reshape`` and ``expand`` (a target shape), ``axes`` (different integers in that range), ``split`` (parts whose sum
    is ``high``), ``numeral`` (strings that are numbers).
    """

    kind: str = "free"
    low: int = 0
    high: int = SMALL


#: Operators whose first input's elements come out of them unchanged, all or some of them, in whatever order.
_HAND_ON = {
    "Identity", "Cast", "CastLike", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose", "Expand", "Tile",
    "Slice", "Gather", "GatherElements", "GatherND", "Split", "Dropout",
}  # fmt: skip

#: Integer inputs that must be at least 1 and had better be small.
_POSITIVE = {
    ("Tile", 1), ("ConstantOfShape", 0), ("OneHot", 1), ("Div", 1), ("Mod", 1), ("Pow", 1), ("Range", 2), ("Slice", 4),
}  # fmt: skip

_BY_SLOT: dict[tuple[str, int], Role] = {
    **{slot: Role("index", 1, SMALL) for slot in _POSITIVE},
    ("TopK", 1): Role("index", 1, 2),
    ("Loop", 0): Role("index", 0, SMALL),
    ("Reshape", 1): Role("reshape"),
    ("Expand", 1): Role("expand"),
}

#: Float inputs that an operator refuses outside a range.
_REAL: dict[tuple[str, int], Role] = {
    ("Bernoulli", 0): Role("unit", 0, 1),
    ("Dropout", 1): Role("unit", 0, 1),
    ("Resize", 2): Role("unit", 1, 3),
    ("OneHot", 1): Role("unit", 1, SMALL),
}


def find_role(model: Model, value: Value, facts: Mapping[Value, Info]) -> Role:
    """The role of graph input ``value``; ``facts`` hold the shapes for the sizes that the other inputs have."""
    if value.dtype == STRING:
        casts = [u for u in value.readers if isinstance(u, Node) and u.op == "Cast"]
        return Role("numeral") if any(BY_CODE.get(_to(u)) != STRING for u in casts) else Role()
    found = list(_Walk(model, facts).roles(value))
    special = [r for r in found if r.kind in ("reshape", "expand", "axes", "split")]
    if special:
        return special[0]
    for kind in ("index", "unit"):
        ranges = [r for r in found if r.kind == kind]
        if ranges:
            low = max(r.low for r in ranges)
            return Role(kind, low, max(low + 1, min(r.high for r in ranges)))
    return Role("small") if found else Role()


def _to(node: Node) -> int:
    attr = node.attrs.get("to")
    return attr.value if attr is not None and isinstance(attr.value, int) else 0


class _State(NamedTuple):
    value: Value
    exact: bool
    real: bool


class _Walk:
    def __init__(self, model: Model, facts: Mapping[Value, Info]) -> None:
        self.model, self.facts = model, dict(facts)

    def roles(self, start: Value) -> Iterator[Role]:
        """What each use asks for, over everything that ``start`` flows into; nothing where all uses are arithmetic.

        On the way a value is exact until arithmetic changes it, and real until a Cast makes it an integer.
        """
        first = _State(start, True, start.dtype in FLOATING)
        seen, stack = {first}, [first]
        while stack:
            state = stack.pop()
            for user, slot in state.value.uses:
                asked = self._asked(user, slot, state.real)
                if asked is not None:
                    if state.exact:
                        yield asked
                    elif asked.kind == "index":
                        yield Role("index", asked.low, min(asked.high, asked.low + SMALL))
                    continue
                following = self._following(user, slot, state)
                if following is None:
                    yield Role("small")
                    continue
                fresh = [s for s in following if s not in seen]
                seen.update(fresh)
                stack += fresh

    def _asked(self, user: User, slot: int, real: bool) -> Role | None:
        """What the use itself asks of the elements: a range of indices, a shape; None where it asks nothing."""
        if not isinstance(user, Node):
            return None
        if real:
            return _REAL.get((user.op, slot))
        measure = _MEASURED.get((user.op, slot))
        return _BY_SLOT.get((user.op, slot)) if measure is None else measure(self, user)

    def _following(self, user: User, slot: int, state: _State) -> list[_State] | None:
        """Where the elements go from here; None where that is not known.  Arithmetic on reals ends the walk."""
        exact, real = state.exact, state.real
        values: list[Value | None]
        if isinstance(user, Graph):
            if user.parent is not None and user.parent.op != "If":
                return None
            values = [] if user.parent is None else [user.parent.outputs[slot]]
        elif user.op == "Cast":
            real = BY_CODE.get(_to(user)) in FLOATING
            values = list(user.outputs) if state.real or not real else []
        elif (user.op in _HAND_ON and slot == 0) or user.op == "Concat" or (user.op == "Where" and slot > 0):
            values = list(user.outputs)
        elif user.op == "Loop" and slot >= 2:
            values = [user.attrs["body"].value.inputs[slot]]
        elif user.domain and (user.op, user.overload) in self.model.functions:
            body = self.model.functions[user.op, user.overload].graph
            self._enter(body, user)
            values = list(body.inputs[slot : slot + 1])
        elif has_trait(user, Trait.ELEMENTWISE):
            values, exact = ([] if real else list(user.outputs)), False
        else:
            return None
        return [_State(v, exact, real) for v in values if v is not None]

    def _enter(self, body: Graph, call: Node) -> None:
        """Learn the sizes inside a function's body, from the call that was met first."""
        if any(v in self.facts for v in body.inputs):
            return
        given = [known(v, self.facts) or Info() for v in call.inputs]
        with contextlib.suppress(FuseError):  # then the sizes inside stay unknown
            infer_graph(body, self.facts, given, self.model.functions)

    def _dims(self, node: Node) -> list[int]:
        """The sizes of the node's first input; those that are not known are left at SMALL."""
        info = known(node.input(0), self.facts)
        return [d if isinstance(d, int) else SMALL for d in (info.shape if info is not None else None) or ()]

    def along_axis(self, node: Node) -> Role:
        """Indices below the size of the node's axis."""
        return Role("index", 0, max(self._size(node), 1))

    def every_axis(self, node: Node) -> Role:
        """Index tuples below the least size that they may meet."""
        sizes = self._dims(node)[_int(node, "batch_dims") :]
        return Role("index", 0, max(min(sizes, default=SMALL), 1))

    def any_axes(self, node: Node) -> Role:
        """Axes of the first input."""
        return Role("axes", 0, max(len(self._dims(node)), 1))

    def new_axes(self, node: Node) -> Role:
        """Axes of the result of an Unsqueeze."""
        return Role("axes", 0, len(self._dims(node)) + 1)

    def single_axis(self, node: Node) -> Role:
        """An axis of size 1."""
        dims = self._dims(node)
        place = dims.index(1) if 1 in dims else 0
        return Role("axes", place, place + 1)

    def parts(self, node: Node) -> Role:
        """Sizes that make up the node's axis."""
        return Role("split", 0, self._size(node))

    def _size(self, node: Node) -> int:
        dims, axis = self._dims(node), _int(node, "axis")
        return dims[axis] if -len(dims) <= axis < len(dims) else SMALL


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

#: Inputs whose role depends on the sizes of the node's first input.
_MEASURED: dict[tuple[str, int], Callable[[_Walk, Node], Role]] = {
    **{(op, 1): _Walk.along_axis for op in ("Gather", "GatherElements", "ScatterElements")},
    **{(op, 1): _Walk.every_axis for op in ("GatherND", "ScatterND")},
    **{(f"Reduce{name}", 1): _Walk.any_axes for name in _REDUCTIONS},
    **{(op, 1): _Walk.any_axes for op in ("CumSum", "CumProd")},
    **{(op, 3): _Walk.any_axes for op in ("Slice", "Pad")},
    ("Unsqueeze", 1): _Walk.new_axes,
    ("Squeeze", 1): _Walk.single_axis,
    ("Split", 1): _Walk.parts,
    ("SplitToSequence", 1): _Walk.parts,
}


def _int(node: Node, name: str) -> int:
    attr: Any = node.attrs.get(name)
    return attr.value if attr is not None and isinstance(attr.value, int) else 0
