"""Keys by identity, and what they keep."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from fuse.ops.kept import Same, doubles


def test_equal_objects_are_other_keys():
    a, b = tuple(np.arange(2).tolist()), tuple(np.arange(2).tolist())
    assert a == b
    assert Same(a) == Same(a)
    assert hash(Same(a)) == hash(Same(a))
    assert Same(a) != Same(b)
    assert Same(a) != (a,)
    assert Same(a, a) != Same(a)


def test_arrays_are_keys_too():
    array = np.zeros(3)
    assert {Same(array, None): 1}[Same(array, None)] == 1


def test_a_key_keeps_its_objects_alive():
    class Thing:
        pass

    thing = Thing()
    seen, key = weakref.ref(thing), Same(thing)
    del thing
    gc.collect()
    assert seen() is key.parts[0]


def test_doubles_are_made_once_and_read_only():
    values = (0.5, -1.25, float("inf"))
    array = doubles(values)
    assert array.dtype == np.float64
    assert array.tolist() == list(values)
    assert doubles(values) is array
    assert doubles((*values,)) is not array
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
