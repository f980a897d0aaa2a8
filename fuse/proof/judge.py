"""The judge: runs a raw and an optimised model on the same inputs and says whether the answers moved.

Three opinions are heard.  fuse's runtime runs both graphs, and the raw one in float64 as the yardstick for rounding;
onnxruntime, where it is installed, runs the bytes of both files.  Either runtime can find that the answers moved, by
comparing its own two answers; where the two runtimes differ on the raw graph, that is noted and never held against the
optimised one.  What could not be compared is said: a verdict of ``ok`` has looked at every output.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fuse.errors import FuseError, InputError, UnsupportedError, quote
from fuse.ir.model import Model
from fuse.ir.types import Shape, TensorType, Type
from fuse.passes.record import EXACTNESS
from fuse.proof import peer
from fuse.proof.chance import random_outputs
from fuse.proof.compare import compare_arrays, epsilon
from fuse.proof.evidence import Answers, Evidence
from fuse.proof.inputs import POSITIVE, InputSet, make_inputs
from fuse.proof.interface import compare_interfaces
from fuse.proof.noise import nudged
from fuse.proof.verdict import OutputRow, Verdict
from fuse.runtime.interpret import Interpreter

__all__ = ["OutputRow", "Verdict", "verify_models"]

Progress = Callable[[str], None]

#: How often the raw graph is run with nudged weights, where its noise decides.
_NUDGES = 2


def verify_models(
    raw: Model,
    optimised: Model,
    *,
    inputs: Sequence[Mapping[str, Any] | InputSet] | None = None,
    seed: int = 0,
    exact: str = "close",
    onnxruntime: bool | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Whether ``optimised`` gives the answers of ``raw``.

    ``inputs`` are feeds to use (None: made up from ``seed``).  ``exact`` is what the rewrites promised: ``bits``,
    ``values`` (the sign of zero may differ) or ``close`` (see ``fuse.proof.tolerance``).  ``onnxruntime`` asks for the
    second opinion (None: where installed).  ``progress`` is told what is about to run.  Raises ``InputError`` for
    feeds that do not fit, for models with different inputs, and where onnxruntime is asked for and missing.
    """
    started = time.perf_counter()
    if exact not in EXACTNESS:
        raise InputError(f"there is no exactness {exact!r}", hint=f"it is one of {', '.join(EXACTNESS)}")
    if onnxruntime:
        peer.require()
    use_peer = peer.installed() if onnxruntime is None else onnxruntime
    trial = _Trial(raw, optimised, exact, progress, _Peers(raw, optimised) if use_peer else None)
    trial.reasons += compare_interfaces(raw, optimised)
    if not trial.reasons:
        trial.run_all(inputs, seed)
    return trial.verdict(seed, time.perf_counter() - started)


def _given(inputs: Sequence[Mapping[str, Any] | InputSet]) -> Iterator[InputSet]:
    for number, feeds in enumerate(inputs, 1):
        yield feeds if isinstance(feeds, InputSet) else InputSet(f"given {number}", dict(feeds))


def _dims(kind: Type | None) -> Shape:
    return (kind.shape if isinstance(kind, TensorType) else None) or ()


class _Peers:
    """onnxruntime on both files, as far as it can run them.

    ``notes`` say where the raw file did not run, by what was said; ``fault`` where only the raw one did.
    """

    def __init__(self, raw: Model, optimised: Model) -> None:
        self.models = {"raw": raw, "optimised": optimised}
        self.sessions: dict[str, peer.Peer] = {}
        self.version, self.fault = "", ""
        self.notes: dict[str, None] = {}
        self._closed = False

    def ask(self, feeds: Answers, quiet: bool = False) -> tuple[Answers, Answers] | None:
        """Both answers; None where there are not two.  ``quiet`` leaves no note of feeds that the raw file refuses."""
        if self._closed:
            return None
        raw = self._answer("raw", feeds)
        if isinstance(raw, UnsupportedError):
            if not quiet or "raw" not in self.sessions:
                self.notes[raw.what] = None
            self._closed = "raw" not in self.sessions
            return None
        other = self._answer("optimised", feeds)
        if isinstance(other, UnsupportedError):
            self.fault = f"{other.what} (the optimised one; it runs the raw one)"
            self._closed = True
            return None
        self.version = self.sessions["raw"].version
        return raw, other

    def _answer(self, which: str, feeds: Answers) -> Answers | UnsupportedError:
        try:
            if which not in self.sessions:
                self.sessions[which] = peer.Peer(self.models[which])
            return self.sessions[which].run({name: value for name, value in feeds.items() if value is not None})
        except UnsupportedError as error:
            return error


class _Trial:
    """One comparison under way: what runs, and what was found so far."""

    def __init__(
        self, raw: Model, optimised: Model, exact: str, progress: Progress | None, peers: _Peers | None
    ) -> None:
        self.raw, self.optimised, self.exact = raw, optimised, exact
        self.progress, self.peers = progress, peers
        self.chance = random_outputs(raw)
        self.runs: dict[str, Interpreter] = {}
        self.rows: list[OutputRow] = []
        self.reasons: list[str] = []
        self.notes: dict[str, None] = {}
        self.disagreements: dict[str, str] = {}
        self.done: list[str] = []
        self.failed: list[tuple[str, FuseError]] = []

    # ---- running

    def run_all(self, inputs: Sequence[Mapping[str, Any] | InputSet] | None, seed: int) -> None:
        """Run every input set; one more, of positive numbers, where an output was never a number on those made up."""
        if inputs is not None:
            for entry in _given(inputs):
                self._run_set(entry, own=True)
            return
        try:
            sets = make_inputs(self.raw, seed=seed)
            for entry in sets:
                self._run_set(entry)
            if self._blank() and len(sets) < POSITIVE:
                self._run_set(make_inputs(self.raw, seed=seed, count=POSITIVE)[-1])
        except UnsupportedError as error:
            self.failed.append(("none", error))

    def _run_set(self, entry: InputSet, own: bool = False) -> None:
        try:
            raw = self._answers("raw", entry)
        except FuseError as error:
            if own and isinstance(error, InputError):
                raise
            self.failed.append((entry.label, error))
            self._ask_peers_alone(entry)
            return
        self.done.append(entry.label)
        try:
            optimised = self._answers("optimised", entry)
        except FuseError as error:
            place = f"{error.where}: " if error.where else ""
            self.reasons.append(f"on input set {quote(entry.label)} only the raw graph runs: {place}{error.what}")
            return
        evidence = Evidence(
            label=entry.label,
            exact=self.exact,
            raw=raw,
            optimised=optimised,
            exact_raw=self._double("raw in float64", entry),
            peers=self._ask_peers(entry),
            structure=lambda: self._double("optimised in float64", entry),
            nudges=lambda: self._nudges(entry),
        )
        for slot in self.raw.graph.outputs:
            self._keep(evidence.row(slot.name, slot.type or slot.value.type, self.chance))
        self.disagreements = {**evidence.disagreements, **self.disagreements}

    def _keep(self, row: OutputRow) -> None:
        self.rows.append(row)
        if row.moved:
            self.reasons.append(f"output {quote(row.output)} on input set {quote(row.inputs)} {row.moved}")

    def _answers(self, which: str, entry: InputSet) -> Answers:
        if self.progress is not None:
            self.progress(f"verify on {entry.label}: {which}")
        if which not in self.runs:
            model = self.optimised if which.startswith("optimised") else self.raw
            self.runs[which] = Interpreter(model, precision="double" if which.endswith("float64") else None)
        return self.runs[which].run(entry.feeds)

    def _double(self, which: str, entry: InputSet) -> Answers | None:
        try:
            return self._answers(which, entry)
        except FuseError as error:
            self.notes[f"{which} cannot run ({error.what})"] = None
            return None

    def _nudges(self, entry: InputSet) -> list[Answers]:
        found: list[Answers] = []
        for number in range(_NUDGES):
            which = f"nudged {number + 1}"
            if which not in self.runs:
                self.runs[which] = Interpreter(nudged(self.raw, number))
            try:
                found.append(self._answers(which, entry))
            except FuseError:
                continue  # a weight that was a size or an exponent: this copy says nothing
        return found

    # ---- onnxruntime

    def _ask_peers(self, entry: InputSet, quiet: bool = False) -> tuple[Answers, Answers] | None:
        if self.peers is None:
            return None
        if self.progress is not None:
            self.progress(f"verify on {entry.label}: onnxruntime")
        return self.peers.ask(entry.feeds, quiet)

    def _ask_peers_alone(self, entry: InputSet) -> None:
        """Let onnxruntime compare its answers where fuse has none.

        Without float64 there is no telling rounding from damage below half of the digits, so only what moved beyond
        that is called moved, and the verdict stays unproven otherwise.
        """
        answers = self._ask_peers(entry, quiet=True)
        for slot in self.raw.graph.outputs if answers is not None else ():
            assert answers is not None
            a, b = answers[0][slot.name], answers[1][slot.name]
            found, random = compare_arrays(a, b), slot.name in self.chance.unseeded
            broken = not (found.same_dtype and found.same_shape and found.same_nonfinite)
            far = (found.max_rel or 0.0) > epsilon(a) ** 0.5 if found.max_ulp is not None else not found.same_values
            moved = "differs on onnxruntime" if (broken or far) and not random else ""
            self._keep(OutputRow(slot.name, entry.label, onnxruntime=found, random=random, moved=moved))

    # ---- the verdict

    def _blank(self) -> list[str]:
        """The outputs of which no element was ever a finite number, so that nothing of them was compared.

        One that is empty by its declared shape is whole without any.
        """
        seen = {r.output for r in self.rows if r.random or (r.difference is not None and r.difference.finite)}
        outputs = self.raw.graph.outputs if self.done else []
        return [s.name for s in outputs if s.name not in seen and 0 not in _dims(s.type or s.value.type)]

    def verdict(self, seed: int, seconds: float) -> Verdict:
        """What has been found, as a verdict."""
        unproven = [f"output {quote(n)} is NaN, Inf or empty on every input set" for n in self._blank()]
        if not self.done:
            unproven += [self._why_not_run()]
        elif self.failed:
            label, error = self.failed[0]
            count = f"{len(self.failed)} of {len(self.failed) + len(self.done)} input sets could not run"
            self.notes[f"{count} ({label}: {error.what})"] = None
        if self.peers is not None:
            missing = "some input sets have no second opinion" if self.peers.version else "no second opinion"
            self.notes |= dict.fromkeys(f"{missing}: {note}" for note in self.peers.notes)
            self.reasons += [self.peers.fault] if self.peers.fault else []
        shaped = list(dict.fromkeys(r.output for r in self.rows if r.random))
        if shaped:
            names = ", ".join(quote(n) for n in shaped[:3])
            self.notes[f"random, so compared by dtype and shape alone: {names}"] = None
        status = "moved" if self.reasons else "unproven" if unproven else "ok"
        return Verdict(
            status=status,
            reasons=tuple(self.reasons or unproven),
            notes=tuple(self.notes),
            rows=tuple(self.rows),
            input_sets=tuple(self.done),
            seed=seed,
            exact=self.exact,
            onnxruntime=self.peers.version if self.peers is not None else "",
            disagreements=self.disagreements,
            seconds=seconds,
        )

    def _why_not_run(self) -> str:
        if not self.failed:
            return "there was no input set to run"
        _, error = self.failed[0]
        place = f"{error.where}: " if error.where else ""
        alone = "; onnxruntime runs both files and finds no difference beyond half of the digits"
        return f"fuse cannot run the raw graph: {place}{error.what}{alone if self.rows else ''}"
