"""Quantised operators of ``com.microsoft``: their signatures are onnxruntime's schemas."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper

from fuse.ops import OPERATORS, nbits, qattention, qconv, qlstm, qmatmul, qpoint, qpool, quant
from tests.ops.test_schemas import plain

DOMAIN = "com.microsoft"
MODULES = {m.__name__ for m in (nbits, qattention, qconv, qlstm, qmatmul, qpoint, qpool, quant)}
CONTRIB = sorted(op for op, r in OPERATORS.items() if op.startswith(DOMAIN) and r.kernel.__module__ in MODULES)


@pytest.fixture(scope="module")
def schemas():
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    return {s.name: s for s in state.get_all_operator_schema() if s.domain == DOMAIN}


def test_there_are_some():
    assert len(CONTRIB) >= 25


@pytest.mark.parametrize("op", CONTRIB)
def test_signature(op, schemas):
    record, schema = OPERATORS[op], schemas[op.removeprefix(f"{DOMAIN}::")]
    options = [i.option.name for i in schema.inputs]
    needed = [k for k, option in enumerate(options) if option != "Optional"]
    assert record.min_inputs == max(needed) + 1 - options.count("Variadic")
    assert record.max_inputs == (None if "Variadic" in options else len(options))
    assert record.optional == frozenset(range(record.min_inputs)) - set(needed)
    assert {*record.defaults, *record.required} == set(schema.attributes)
    assert record.required == {name for name, formal in schema.attributes.items() if formal.required}
    for name, formal in schema.attributes.items():
        if not formal.required and formal._default_value:
            wanted = helper.get_attribute_value(onnx.AttributeProto.FromString(formal._default_value))
            assert plain(record.defaults[name]) == plain(wanted), name


def test_every_record_has_inference():
    assert [op for op in CONTRIB if OPERATORS[op].infer is None] == []
