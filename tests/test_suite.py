"""Every model of onnx's backend suite, optimised for every target: answers stay, as exact as the record promises."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

from fuse.errors import FuseError
from fuse.ir.check import check
from fuse.model.load import load
from fuse.model.save import to_proto
from fuse.ops import Trait, has_trait
from fuse.passes.pipeline import TARGETS, run_pipeline
from fuse.runtime.interpret import run
from tests.models import assert_same

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
READERS = {
    "tensor_type": (onnx.TensorProto, numpy_helper.to_array),
    "sequence_type": (onnx.SequenceProto, numpy_helper.to_list),
    "optional_type": (onnx.OptionalProto, numpy_helper.to_optional),
}
CHUNKS = 8


def node_cases() -> Iterator[tuple[str, onnx.ModelProto, dict[str, Any]]]:
    """The generated cases with the feeds of their first data set."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for case in collect_testcases(None):
            names = [declared.name for declared in case.model.graph.input]
            yield case.name, case.model, dict(zip(names, map(_plain, case.data_sets[0][0]), strict=False))


def stored_cases() -> Iterator[tuple[str, onnx.ModelProto, dict[str, Any]]]:
    """The cases that lie in files: simple ones, and those that PyTorch made."""
    for path in sorted(DATA.glob("*/*/model.onnx")):
        model = onnx.load(path)
        given = {}
        for index, declared in enumerate(model.graph.input):
            file = path.parent / "test_data_set_0" / f"input_{index}.pb"
            proto, read = READERS[declared.type.WhichOneof("value")]
            if file.exists():  # the other inputs have defaults
                given[declared.name] = _strings(read(proto.FromString(file.read_bytes())))
        yield path.parent.name, model, given


def _plain(given: Any) -> Any:
    for proto, read in READERS.values():
        if isinstance(given, proto):
            return _strings(read(given))
    return _strings(np.asarray(given) if isinstance(given, np.generic) else given)


def _strings(given: Any) -> Any:
    """String tensors as fuse has them: ``str`` in object arrays."""
    if isinstance(given, np.ndarray) and given.dtype.kind in "OSU":
        texts = [s.decode() if isinstance(s, bytes) else str(s) for s in given.ravel()]
        result = np.empty(len(texts), object)
        result[:] = texts
        return result.reshape(given.shape)
    return given


def same(got: Any, want: Any, exact: bool, tolerance: float) -> None:
    """``assert_same`` through sequences, maps and optionals."""
    if isinstance(want, list):
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            same(a, b, exact, tolerance)
    elif isinstance(want, dict):
        assert got == want
    elif want is None:
        assert got is None
    else:
        assert_same(got, want, exact, tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_optimising_moves_no_answer_of_the_suite(chunk: int) -> None:
    seen = 0
    for index, (name, proto, feeds) in enumerate([*node_cases(), *stored_cases()]):
        if index % CHUNKS != chunk:
            continue
        raw = load(proto)
        if any(has_trait(n, Trait.RANDOM) for n in raw.graph.walk()):
            continue
        want = run(raw, feeds)
        for target in TARGETS:
            try:
                result, journal = run_pipeline(raw, target=target)
                check(load(to_proto(result)))
                got = run(result, feeds)
                assert list(got) == list(want)
                exact = journal.exactness() == "bits"
                for output, value in want.items():
                    same(got[output], value, exact, 2e-6)
            except (AssertionError, FuseError) as error:
                pytest.fail(f"{name} for {target}: {error}")
            seen += 1
    assert seen > 600
