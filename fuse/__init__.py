"""fuse: an ONNX graph compiler that proves that the answers did not move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuse.api import InferenceSession, Report, Result, load, optimize, plan, save, verify
    from fuse.errors import FuseError

__version__ = "0.1.0"
__all__ = [
    "FuseError",
    "InferenceSession",
    "Report",
    "Result",
    "__version__",
    "load",
    "optimize",
    "plan",
    "save",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import fuse`` costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'fuse' has no attribute {name!r}")
    if name == "FuseError":
        from fuse import errors

        return errors.FuseError
    from fuse import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted(__all__)
