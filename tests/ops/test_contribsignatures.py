"""Operators of ``com.microsoft`` on real numbers: their signatures are onnxruntime's schemas."""

from __future__ import annotations

import pytest

from fuse.ops import OPERATORS
from tests.ops import test_contrib_schemas as shared
from tests.ops.test_contrib_schemas import schemas  # noqa: F401

PLAIN = sorted(op for op in OPERATORS if op.startswith(shared.DOMAIN) and op not in shared.CONTRIB)


def test_there_are_some():
    assert len(PLAIN) >= 45


@pytest.mark.parametrize("op", PLAIN)
def test_signature(op, schemas):  # noqa: F811
    shared.test_signature(op, schemas)
    assert OPERATORS[op].infer is not None


def test_old_ones_of_the_default_domain():
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    known = {s.name: s for s in state.get_all_operator_schema() if s.domain == "" and s.since_version == 1}
    for op in (
        "Affine", "Crop", "DynamicSlice", "ImageScaler", "LayerNormalization", "ParametricSoftplus", "Scale",
        "ScaledTanh", "SimplifiedLayerNormalization",
    ):  # fmt: skip
        shared.test_signature(f"{op}-1", {f"{op}-1": known[op]})
