"""Dropout: the identity in inference, a random mask in training.

The operator bears the trait RANDOM, since ``training_mode`` may arrive at run time.  ``dropout_is_identity`` tells the
nodes that cannot be random, which is nearly all there are; a pass asks it before it asks for the trait.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fuse.errors import RunError
from fuse.ir.dtypes import BOOL, Array
from fuse.ir.graph import Node
from fuse.ops.elementwise import narrow, wide
from fuse.ops.record import Info, Trait, attr, operator, tensor


def dropout_is_identity(node: Node) -> bool:
    """True where ``node`` is a Dropout whose first output is its input, whatever is fed: no training, or a ratio of 0.

    The mask, where it has one, is then all ones.
    """
    if node.op == "Dropout-1":
        return bool(attr(node, "is_test"))
    if node.op != "Dropout":
        return False
    ratio, training = node.input(1), node.input(2)
    if training is None or (training.is_const and not training.array.any()):
        return True
    return ratio is not None and ratio.is_const and not ratio.array.any()


def _info(
    x: Info,
    ratio: Info | None = None,
    training_mode: Info | None = None,
    *,
    seed: int | None = None,
    n_outputs: int = 1,
) -> tuple[Info, Info]:
    return Info(x.type), tensor(BOOL, x.shape)


@operator("Dropout", infer=_info, traits=Trait.RANDOM)
def dropout(
    x: Array,
    ratio: Array | None = None,
    training_mode: Array | None = None,
    *,
    seed: int | None = None,
    n_outputs: int = 1,
) -> Array | tuple[Array, Array]:
    """``x`` itself and a mask of True; in training, ``x`` with about ``ratio`` of it zeroed and the rest scaled up."""
    share = 0.5 if ratio is None else float(ratio.reshape(-1)[0])
    if training_mode is None or not training_mode.any() or share == 0.0:
        return x if n_outputs == 1 else (x, np.ones(x.shape, bool))
    y, mask = _dropped(x, share, seed)
    return y if n_outputs == 1 else (y, mask)


def _dropped(x: Array, share: float, seed: int | None) -> tuple[Array, Array]:
    """The generator is the one that ONNX's test cases draw from, so that a seed gives their masks."""
    if not 0.0 <= share < 1.0:
        raise RunError(f"ratio {share:g} is outside [0, 1)")
    source = np.random.RandomState(None if seed is None else seed % (1 << 32))
    mask: Array = np.asarray(source.uniform(0.0, 1.0, x.shape)) >= share
    w = wide(x)
    return narrow(np.where(mask, w * w.dtype.type(1 / (1 - share)), w.dtype.type(0)), x), mask


def _info_1(x: Info, *, n_outputs: int = 1, **_: Any) -> tuple[Info, Info]:
    return Info(x.type), Info(x.type)


@operator("Dropout-1", infer=_info_1, traits=Trait.RANDOM)
def dropout_1(
    x: Array, *, consumed_inputs: Any = None, is_test: int = 0, ratio: float = 0.5, n_outputs: int = 1
) -> Array | tuple[Array, Array]:
    """Dropout of operator sets 1 to 9, whose mask has the dtype of ``x``; up to set 6, ``is_test`` 0 is training."""
    if is_test or ratio == 0.0:
        return x if n_outputs == 1 else (x, np.ones(x.shape, x.dtype))
    y, mask = _dropped(x, ratio, None)
    return y if n_outputs == 1 else (y, mask.astype(x.dtype))
