"""Results for machines: strict JSON in plain ASCII, the same bytes for the same data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def strict_json(data: Mapping[str, Any]) -> str:
    """``data`` as indented JSON that ends with a newline.

    JSON has no NaN and no infinities: they become the strings "NaN", "Infinity" and "-Infinity".
    NumPy's
    numbers become plain ones, its arrays nested lists.
    """
    return json.dumps(_plain(data), indent=2, ensure_ascii=True, allow_nan=False) + "\n"


def _plain(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, np.ndarray | np.generic):
        return _plain(data.tolist())
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return "NaN" if math.isnan(data) else "Infinity" if data > 0 else "-Infinity"
    if isinstance(data, complex):
        return [_plain(data.real), _plain(data.imag)]
    return data
