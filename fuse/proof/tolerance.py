"""Tolerance: when two answers are the same answer, rounded in another order.

Folding a BatchNormalization or merging two factors rounds elsewhere, so answers move by a few units in the last place
and no fixed threshold fits both a small network and a deep one.  The yardstick is the raw graph in float64.  An
optimised answer stands if one of these holds:

1. it is within ``ULPS`` = 4 epsilons of the largest output of the raw one: one rounding is half an epsilon of the value
   at hand, and a handful of them is below what any reader of the output can rely on;
2. it is as close to the float64 answer as the raw one was: its largest error and its root-mean-square error are each at
   most ``FACTOR`` = 1.5 times the raw graph's.  The second figure stops a fault that moves every element a little from
   hiding behind the one element where the raw graph was far off (a rounding that fell to the other side);
3. the same, measured with the noise that the raw graph shows when each weight moves by one unit in the last place.  The
   largest error of few elements is a matter of luck: of two equally good answers with one element each, the second is
   more than 1.5 times as far off as the first in over a third of all cases.  Weights that are folded together move by
   as much, so an answer within that noise is as good as the weights themselves.

Half precision needs no numbers of its own, because every bound is in epsilons of the output's dtype.  In float16
(2^-10) 4 epsilons are 0.4 % of the largest output and in bfloat16 (2^-7) 3 %: a network that answers in 8 bits cannot
be pinned down further by its answers.  What lies beyond is rounding that the inside makes, which rules 2 and 3 measure
in place of a guess; so a float32 output behind a float16 inside is judged by its own epsilon first, and then by that.

Not a matter of tolerance are dtypes, shapes, the places of NaN and Inf, and all that is no float.  Integers and bools
that come of floats (ArgMax, comparisons, Cast) are held to be equal even where a tie is decided by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from fuse.proof.compare import Difference

#: Epsilons of the largest output that are never called a difference.
ULPS = 4
#: How much larger than the raw graph's an error against float64 may be.
FACTOR = 1.5


def why_moved(
    difference: Difference,
    raw_error: Difference | None,
    other_error: Difference | None,
    epsilon: float,
    *,
    exact: str = "close",
    noise: Callable[[], Iterable[Difference]] = tuple,
    factor: float = FACTOR,
) -> str:
    """Why ``difference`` is more than rounding, as the end of a sentence; empty where the answers are the same.

    The errors are those of the two answers against float64 (None: there is no yardstick, and the raw answer is one);
    ``noise()`` gives the errors of the raw graph with its weights nudged, and is called only where it decides.
    """
    if not (difference.same_dtype and difference.same_shape):
        return "has another dtype or shape"
    if not difference.same_nonfinite:
        return "has NaN or Inf at other places"
    if difference.max_ulp is None or exact == "values":
        what = "" if difference.max_ulp is None else ", and only exact rewrites were made"
        return "" if difference.same_values else f"differs in {_share(difference)}{what}"
    if exact == "bits":
        zeros = "" if difference.differing else " (the sign of zero)"
        what = f"differs in its bits{zeros}, at most by {difference.max_ulp} ULP, and only exact rewrites were made"
        return "" if difference.same_bits else what
    return _why_not_close(difference, raw_error, other_error or difference, epsilon, noise, factor)


def _share(difference: Difference) -> str:
    return f"{difference.differing:,} of {difference.elements:,} elements"


def _why_not_close(
    difference: Difference,
    raw_error: Difference | None,
    other_error: Difference,
    epsilon: float,
    noise: Callable[[], Iterable[Difference]],
    factor: float,
) -> str:
    floor = ULPS * epsilon * (difference.largest or 0.0)
    if (difference.max_abs or 0.0) <= floor:
        return ""
    most, mean = _figures(raw_error)
    own_most, own_mean = _figures(other_error)

    def stands() -> bool:
        return own_most <= max(factor * most, floor) and own_mean <= max(factor * mean, floor)

    if stands():
        return ""
    for nudged in noise():
        most, mean = (max(pair) for pair in zip((most, mean), _figures(nudged), strict=True))
    if stands():
        return ""
    text = f"differs by {difference.max_abs:.2g}, {difference.max_rel:.2g} of its largest value"
    if raw_error is None:
        return text
    ratio = error_ratio(raw_error, other_error)
    return f"{text}; its error against float64 is {own_most:.2g}, the raw graph's {most:.2g}" + (
        f" ({ratio:.3g} x)" if ratio is not None and math.isfinite(ratio) else ""
    )


def _figures(error: Difference | None) -> tuple[float, float]:
    return (0.0, 0.0) if error is None else (error.max_abs or 0.0, error.rms or 0.0)


def error_ratio(raw_error: Difference | None, other_error: Difference | None) -> float | None:
    """The other answer's largest error over the raw one's; 1.0 where both are 0, None where there is no yardstick."""
    if raw_error is None or other_error is None or raw_error.max_abs is None or other_error.max_abs is None:
        return None
    if raw_error.max_abs == other_error.max_abs:
        return 1.0
    return other_error.max_abs / raw_error.max_abs if raw_error.max_abs else math.inf
