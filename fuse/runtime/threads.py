"""How many threads the matrix products take: NumPy's BLAS, set for the time of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any


@cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController  # looks through the loaded libraries: done once, and only if asked

    return ThreadpoolController()


@contextlib.contextmanager
def blas_threads(count: int | None) -> Iterator[None]:
    """Limit BLAS to ``count`` threads inside the block; None leaves it as it is."""
    if count is None:
        yield
        return
    with _controller().limit(limits=count, user_api="blas"):
        yield


def blas_thread_count() -> int:
    """The threads that BLAS takes at present; 1 where no BLAS library is known."""
    return max((int(info["num_threads"]) for info in _controller().info() if info["user_api"] == "blas"), default=1)
