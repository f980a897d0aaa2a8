"""Evidence: all answers on one input set, and what they say of each output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fuse.ir.dtypes import name_of
from fuse.ir.types import TensorType, Type
from fuse.proof.chance import Chance
from fuse.proof.compare import Difference, compare_arrays, epsilon
from fuse.proof.tolerance import FACTOR, why_moved
from fuse.proof.verdict import OutputRow

Answers = Mapping[str, Any]

#: Two runtimes disagree where one's error against float64 is beyond this many times the other's: a faster product
#: in another order is no disagreement.
_RUNTIMES = 10.0


@dataclass
class Evidence:
    """The answers by output name.

    ``raw`` and ``optimised`` are fuse's, ``exact_raw`` is the raw graph's in float64, ``peers`` are onnxruntime's of
    both files.  ``structure`` runs the optimised graph in float64 and ``nudges`` the raw one with its weights moved by
    one unit in the last place; both are called at most once, and only where they decide or explain.
    ``disagreements`` collects the outputs on which the runtimes differ, with how.
    """

    label: str
    exact: str
    raw: Answers
    optimised: Answers
    exact_raw: Answers | None
    peers: tuple[Answers, Answers] | None
    structure: Callable[[], Answers | None]
    nudges: Callable[[], Sequence[Answers]]
    disagreements: dict[str, str] = field(default_factory=dict)
    _nudged: Sequence[Answers] | None = None
    _structure: list[Answers | None] = field(default_factory=list)

    def row(self, name: str, declared: Type | None, chance: Chance) -> OutputRow:
        """What the answers say of output ``name``, which the model declares to be ``declared``."""
        raw, optimised = self.raw[name], self.optimised[name]
        difference = compare_arrays(raw, optimised)
        if name in chance.unseeded:
            moved = _shape_moved(raw, optimised, declared)
            return OutputRow(name, self.label, difference, random=True, moved=moved)
        errors = [self._error(name, answer) for answer in (raw, optimised)]
        moved = self._moved(name, difference, errors, epsilon(raw), self.exact)
        if moved:
            moved += _what_changed(raw, optimised, difference) + self._in_double(name, difference)
        row = OutputRow(name, self.label, difference, errors[0], errors[1], moved=moved)
        return row if self.peers is None else self._with_peers(row, self.peers, chance)

    def _with_peers(self, row: OutputRow, peers: tuple[Answers, Answers], chance: Chance) -> OutputRow:
        name = row.output
        raw, optimised = peers[0][name], peers[1][name]
        both = compare_arrays(raw, optimised)
        errors = [self._error(name, answer) for answer in (raw, optimised)]
        moved = row.moved
        if not moved:
            moved = self._moved(name, both, errors, epsilon(raw), "close")
            moved += " on onnxruntime (it does not on fuse)" if moved else ""
        runtimes = None
        if name not in chance.drawn:
            runtimes = compare_arrays(self.raw[name], raw)
            pair = [row.raw_error, errors[0]]
            apart = self._moved(name, runtimes, pair, epsilon(raw), "close", _RUNTIMES)
            if apart:
                self.disagreements[name] = apart.split(";")[0]
        return OutputRow(
            name, self.label, row.difference, row.raw_error, row.optimised_error, both, runtimes, moved=moved
        )

    # ---- the yardstick

    def _error(self, name: str, answer: Any) -> Difference | None:
        """The answer's distance from the float64 one; None where there is none of the same shape."""
        if self.exact_raw is None or epsilon(answer) == 0:
            return None
        error = compare_arrays(self.exact_raw[name], answer)
        return error if error.same_shape and error.max_abs is not None else None

    def _moved(
        self,
        name: str,
        difference: Difference,
        errors: Sequence[Difference | None],
        step: float,
        exact: str,
        factor: float = FACTOR,
    ) -> str:
        first, second = errors if None not in errors else (None, None)

        def noise() -> list[Difference]:
            found = [self._noise(name, answers[name], first is not None) for answers in self._all_nudges()]
            return [d for d in found if d is not None]

        return why_moved(difference, first, second, step, exact=exact, noise=noise, factor=factor)

    def _all_nudges(self) -> Sequence[Answers]:
        if self._nudged is None:
            self._nudged = self.nudges()
        return self._nudged

    def _noise(self, name: str, answer: Any, measured: bool) -> Difference | None:
        """The nudged answer's error, against the raw answer where float64 gives no measure; None where it broke."""
        moved = compare_arrays(self.raw[name], answer)
        if not (moved.same_shape and moved.same_nonfinite):
            return None
        return self._error(name, answer) if measured else moved

    def _in_double(self, name: str, difference: Difference) -> str:
        """Whether the graphs differ in float64 too, which tells a changed meaning from rounding."""
        if self.exact_raw is None or not difference.same_shape or difference.max_ulp is None:
            return ""
        if not self._structure:
            self._structure.append(self.structure())
        answers = self._structure[0]
        if answers is None:
            return ""
        found = compare_arrays(self.exact_raw[name], answers[name])
        if found.same_nonfinite and found.max_rel is not None and found.max_rel <= max(1e-12, epsilon(self.raw[name])):
            return "; in float64 the two graphs agree, so rounding grew"
        return "; in float64 the two graphs differ as well, so the meaning changed"


def _what_changed(raw: Any, optimised: Any, difference: Difference) -> str:
    if not isinstance(raw, np.ndarray) or not isinstance(optimised, np.ndarray):
        return ""
    if difference.same_dtype and difference.same_shape:
        return ""
    return f": {_shown(optimised)}, it was {_shown(raw)}"


def _shown(array: Any) -> str:
    return f"{name_of(array.dtype)}{list(array.shape)}"


def _shape_moved(raw: Any, optimised: Any, declared: Type | None) -> str:
    """Why a random output is not what it was: its dtype, its rank, or a size that the model declares as a number.

    Other sizes may be drawn too (the places where noise is positive), so they are not held to be equal.
    """
    if not isinstance(raw, np.ndarray) or not isinstance(optimised, np.ndarray):
        return "" if type(raw) is type(optimised) else "is another kind of value"
    dims: Sequence[object] = (declared.shape if isinstance(declared, TensorType) else None) or (None,) * raw.ndim
    same = raw.dtype == optimised.dtype and raw.ndim == optimised.ndim
    if same and all(
        a == b or not isinstance(d, int) for d, a, b in zip(dims, raw.shape, optimised.shape, strict=False)
    ):
        return ""
    return f"has another dtype or shape: {_shown(optimised)}, it was {_shown(raw)}"
