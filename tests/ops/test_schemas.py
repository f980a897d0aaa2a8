"""Every operator's signature is ONNX's schema: inputs, attributes, defaults."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import defs, helper

from fuse.ops import OPERATORS

Option = defs.OpSchema.FormalParameterOption
STANDARD = sorted(op for op in OPERATORS if "::" not in op and "-" not in op)


def required(schema):
    """How many inputs must be given: the single ones, and as many of a variadic one as the schema says."""
    return sum(1 if i.option == Option.Single else i.min_arity for i in schema.inputs if i.option != Option.Optional)


def plain(value):
    """A default as Python has it, floats as the float32 that the schema holds."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, float):
        return float(np.float32(value))
    return tuple(map(plain, value)) if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("op", STANDARD)
def test_signature(op):
    record, schema = OPERATORS[op], defs.get_schema(op)
    variadic = any(i.option == Option.Variadic for i in schema.inputs)
    assert record.min_inputs == required(schema)
    assert record.max_inputs == (None if variadic else len(schema.inputs))
    assert {*record.defaults, *record.required} == set(schema.attributes)
    assert record.required == {name for name, formal in schema.attributes.items() if formal.required}
    for name, formal in schema.attributes.items():
        if formal.required:
            continue
        given = formal.default_value
        wanted = helper.get_attribute_value(given) if given.name else None
        assert plain(record.defaults[name]) == plain(wanted), name


def test_every_record_has_inference():
    assert [op for op in STANDARD if OPERATORS[op].infer is None] == []
