"""The operators beside the default domain: none is missing, and every signature is that of all its versions."""

from __future__ import annotations

import pytest
from onnx import defs, helper

from fuse.ops import OPERATORS
from tests.ops.test_schemas import Option, plain, required

HISTORY: dict[str, list] = {}
for one in defs.get_all_schemas_with_history():
    if one.domain:
        HISTORY.setdefault(f"{one.domain}::{one.name}", []).append(one)

#: Carries its derivative in an attribute of its own.
GRADIENT = "ai.onnx.preview.training::Gradient"


def test_there_are_such():
    assert {op.split("::")[0] for op in HISTORY} == {"ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training"}


@pytest.mark.parametrize("op", sorted(HISTORY))
def test_every_operator_has_a_kernel_and_inference(op):
    assert op in OPERATORS
    assert OPERATORS[op].infer is not None


@pytest.mark.parametrize("op", sorted(set(HISTORY) - {GRADIENT}))
def test_signature(op):
    """What was required once and no longer is may be absent; an attribute of any version has its default."""
    record = OPERATORS[op]
    for schema in HISTORY[op]:
        variadic = any(i.option == Option.Variadic for i in schema.inputs)
        assert record.min_inputs == required(schema)
        assert record.max_inputs == (None if variadic else len(schema.inputs))
        assert record.required == {name for name, formal in schema.attributes.items() if formal.required}
        for name, formal in schema.attributes.items():
            if not formal.required:
                given = formal.default_value
                wanted = helper.get_attribute_value(given) if given.name else None
                assert plain(record.defaults[name]) == plain(wanted), name
    assert {*record.defaults, *record.required} == {name for schema in HISTORY[op] for name in schema.attributes}
