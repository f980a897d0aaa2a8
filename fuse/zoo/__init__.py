"""The zoo: small models that come with fuse, so that every command has something real to work on.

Each is the graph that PyTorch's exporter wrote, its weights replaced by seeded recipes with a trained network's
statistics (``fuse.model.strip``), in a file of a few kB.  ``data/export.sh`` makes them again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fuse.errors import InputError, quote

_HOME = Path(__file__).parent


def names() -> tuple[str, ...]:
    """The names of the embedded models, in alphabetical order."""
    return tuple(sorted(file.stem for file in _HOME.glob("*.onnx")))


def path(name: str) -> Path:
    """Where the model ``name`` lies; ``InputError`` where there is none of that name."""
    if name not in names():
        raise InputError(f"no embedded model is named {quote(name)}", hint=f"there are {', '.join(names())}")
    return _HOME / f"{name}.onnx"


def resolve(source: Any) -> Any:
    """The path of the embedded model that ``source`` names, else ``source`` itself; a file of that name wins."""
    return path(source) if isinstance(source, str) and source in names() and not Path(source).exists() else source
