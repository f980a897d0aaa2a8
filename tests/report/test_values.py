from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fuse.report.machine import strict_json
from fuse.report.values import shown, value_facts

NAN, INF = float("nan"), float("inf")


def test_floats() -> None:
    facts = value_facts(np.array([[1.5, -2.0, NAN], [INF, -INF, 0.5]], np.float32))
    assert (facts["type"], facts["dtype"], facts["shape"]) == ("float[2, 3]", "float", [2, 3])
    assert (facts["min"], facts["max"], facts["mean"], facts["nan"], facts["inf"]) == (-2.0, 1.5, 0.0, 1, 2)
    assert str(facts["first"]) == "[1.5, -2.0, nan, inf, -inf]"
    assert shown(facts) == ("float[2, 3]", "-2", "1.5", "0", "1.5, -2, nan, inf, -inf, ...; 1 NaN; 2 infinite")


@pytest.mark.parametrize(
    ("array", "low", "high", "mean"),
    [
        (np.array([-128, 127], np.int8), -128, 127, -0.5),
        (np.array([0, 2**64 - 1], np.uint64), 0, 2**64 - 1, (2**64 - 1) / 2),
        (np.array([-(2**63), 2**63 - 1]), -(2**63), 2**63 - 1, -0.5),
        (np.array([True, False, True, True]), 0, 1, 0.75),
        (np.array([-8, 7], ml_dtypes.int4), -8, 7, -0.5),
        (np.array([1.0, 3.0], ml_dtypes.bfloat16), 1.0, 3.0, 2.0),
        (np.array([60000, 60000], np.float16), 60000.0, 60000.0, 60000.0),
    ],
    ids=lambda x: str(x.dtype) if isinstance(x, np.ndarray) else "",
)
def test_ranges_do_not_overflow(array, low, high, mean) -> None:
    facts = value_facts(array)
    assert (facts["min"], facts["max"]) == (low, high)
    assert facts["mean"] == pytest.approx(mean, rel=1e-3, abs=0.6 if abs(mean) < 1 and high > 2**60 else 1e-12)
    strict_json(facts)


def test_empty_scalar_and_absent() -> None:
    assert value_facts(np.empty((0, 3), np.float32))["mean"] is None
    assert value_facts(np.empty(0, np.int64))["min"] is None
    assert value_facts(np.float32(2.5))["type"] == "float[]"
    assert shown(value_facts(np.array(7))) == ("int64[]", "7", "7", "7", "7")
    assert value_facts(None) == {"type": "optional, absent"}
    assert shown(value_facts(None))[0] == "optional, absent"
    assert value_facts(np.array([NAN]))["mean"] is None


def test_strings_complex_and_sequences() -> None:
    facts = value_facts(np.array(["a\x1b", "b"], object))
    assert facts == {"type": "string[2]", "dtype": "string", "shape": [2], "first": ["a\x1b", "b"]}
    assert shown(facts)[-1] == "'a\\x1b', 'b'"
    assert value_facts(np.array([1 + 2j], np.complex64))["first"] == ["(1+2j)"]
    sequence = value_facts([np.ones(2, np.float32), np.ones(3, np.float32)])
    assert sequence["type"] == "sequence of 2"
    assert [element["type"] for element in sequence["elements"]] == ["float[2]", "float[3]"]


def test_json_is_strict() -> None:
    data = {
        "nan": NAN,
        "inf": [INF, -INF],
        "array": np.array([[1, 2]], np.int8),
        "number": np.float32(0.5),
        "truth": np.bool_(True),
        "tuple": (1, None),
        "complex": 1 + 2j,
        "name": "é\x1b\ud800</script>",
    }
    text = strict_json(data)
    assert text.isascii() and text.endswith("}\n")
    import json

    back = json.loads(text)
    assert back["nan"] == "NaN" and back["inf"] == ["Infinity", "-Infinity"]
    assert back["array"] == [[1, 2]] and back["number"] == 0.5 and back["truth"] is True
    assert back["tuple"] == [1, None] and back["complex"] == [1.0, 2.0]
    assert back["name"] == data["name"]
    assert strict_json(data) == text
