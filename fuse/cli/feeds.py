"""Feeds: from files (.npy for one input, .npz for several, never a pickle), and made up for the inputs without one."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from fuse.errors import InputError, quote
from fuse.ir.copy import copy_model
from fuse.ir.dims import Dim, Symbolic, evaluate
from fuse.ir.dtypes import STRING, Array
from fuse.ir.model import Model
from fuse.ir.types import TensorType
from fuse.ops.maps import column
from fuse.planner.lifetime import MOST_BYTES
from fuse.proof.inputs import make_inputs

_FORMAT = "write it with numpy.save or numpy.savez, without pickled objects"


def read_feeds(model: Model, files: Sequence[str], archive: str | None = None) -> dict[str, Array]:
    """The arrays of ``archive`` (an .npz with one array an input) and of ``files`` (each ``name=file.npy``), by input.

    Raises ``InputError`` for a file that holds something else, an input named twice, or a name that is no input.
    """
    feeds = read_archive(archive) if archive is not None else {}
    for text in files:
        name, _, path = text.rpartition("=")
        if not name or not path:
            raise InputError(f"{quote(text)} is not NAME=FILE", where="--input", hint="as in --input x=x.npy")
        if name in feeds:
            raise InputError(f"input {quote(name)} is given twice", where="--input")
        feeds[name] = _one(path)
    names = {value.name: value for value in model.graph.inputs}
    for name in feeds:
        if name not in names:
            hint = f"inputs are {', '.join(quote(n) for n in list(names)[:20]) or 'none'}"
            raise InputError(f"there is no input {quote(name)}", where=model.source, hint=hint)
    return {name: _viewed(array, names[name].dtype) for name, array in feeds.items()}


def read_archive(path: str) -> dict[str, Array]:
    """The arrays of an .npz file by name."""
    loaded = _load(path)
    if isinstance(loaded, np.ndarray):
        raise InputError("holds one array without a name", where=path, hint="--input NAME=FILE takes an .npy file")
    return loaded


def _one(path: str) -> Array:
    loaded = _load(path)
    if not isinstance(loaded, np.ndarray):
        raise InputError("holds several arrays", where=path, hint="--inputs FILE takes an .npz file")
    return loaded


def _load(path: str) -> Array | dict[str, Array]:
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise InputError("is not a regular file", where=path, hint="give the path of an .npy or .npz file")
        with open(path, "rb") as file:
            head = file.read(6)
            if head[:2] != b"PK" and head != np.lib.format.MAGIC_PREFIX:
                raise InputError("is neither an .npy nor an .npz file", where=path, hint=_FORMAT)
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return {name: _member(loaded, name) for name in loaded.files}
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError("no such file", where=path, hint="check the path") from None
    except Exception as error:  # on broken bytes numpy, zipfile and zlib raise a dozen types without a common base
        reason = getattr(error, "strerror", None) or next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"cannot be read: {reason}", where=path, hint=_FORMAT) from None


def _member(archive: Any, name: str) -> Array:
    member = archive[name]
    if not isinstance(member, np.ndarray):
        raise ValueError(f"{quote(name)} is not an array")
    return member


def _viewed(array: Array, wanted: Any) -> Array:
    """``array`` in a dtype that .npy files have no name for: NumPy reads bfloat16 back as two nameless bytes."""
    nameless = array.dtype.kind == "V" and array.dtype.names is None
    if nameless and wanted is not None and wanted.kind == "V" and wanted.itemsize == array.dtype.itemsize:
        return array.view(wanted)
    return array


# ---- the rest made up


def complete_feeds(model: Model, given: Mapping[str, Array], sizes: Mapping[str, int], seed: int) -> dict[str, Any]:
    """``given`` with values made up for the other inputs that need one; ``sizes`` of symbolic dims hold for all.

    Raises ``InputError`` for a size of a dim that the model does not have, or that ``given`` contradicts.
    """
    check_sizes(model, sizes)
    if all(value.data is not None or value.name in given for value in model.graph.inputs):
        return dict(given)
    bound = _bound(model, given, sizes)
    shaped = copy_model(model)
    for value in shaped.graph.inputs:
        if isinstance(value.type, TensorType):
            value.type = _sized(value.type, given.get(value.name), bound)
            if value.nbytes > MOST_BYTES:
                raise InputError(f"input {quote(value.name)} would have {value.nbytes:,} bytes", where=model.source)
    (made,) = make_inputs(shaped, seed=seed, count=1)
    return {**made.feeds, **given}


def check_sizes(model: Model, sizes: Mapping[str, int]) -> None:
    """Raise ``InputError`` where ``sizes`` names a dim that no value of the main graph has."""
    if not sizes:
        return
    made = [value for node in model.graph.nodes for value in node.outputs if value is not None]
    known = dict.fromkeys(name for value in (*model.graph.inputs, *made) for name in symbols(value.shape or ()))
    for name in sizes:
        if name not in known:
            hint = (
                f"symbolic dims are {', '.join(quote(n) for n in list(known)[:20])}" if known else "all dims are fixed"
            )
            raise InputError(f"there is no symbolic dim {quote(name)}", where=model.source, hint=hint)


def symbols(dims: Iterable[Dim]) -> list[str]:
    """The symbols in ``dims``, each once, in order."""
    found: dict[str, None] = {}
    stack = list(dims)[::-1]
    while stack:
        dim = stack.pop()
        if isinstance(dim, Symbolic):
            for atom in (atom for monomial in dim.terms for atom in monomial):
                if isinstance(atom, str):
                    found[atom] = None
                else:
                    stack += [atom[2], atom[1]]
    return list(found)


def _bound(model: Model, given: Mapping[str, Array], sizes: Mapping[str, int]) -> dict[str, int]:
    """``sizes``, and those of the symbols that the arrays of ``given`` have."""
    bound = dict(sizes)
    for value in model.graph.inputs:
        array = given.get(value.name)
        if array is None or value.shape is None or len(value.shape) != array.ndim:
            continue  # a wrong rank is an error of the run, which says more about it
        for dim, size in zip(value.shape, array.shape, strict=True):
            name = dim.name if isinstance(dim, Symbolic) else None
            if name is not None and bound.setdefault(name, size) != size:
                what = f"dim {quote(name)} is {size} in input {quote(value.name)} and {bound[name]} elsewhere"
                raise InputError(what, where=model.source)
    return bound


def _sized(kind: TensorType, array: Array | None, bound: Mapping[str, int]) -> TensorType:
    """``kind`` with the shape of ``array`` where there is one, else with a number for each bound symbol."""
    if array is not None:
        return TensorType(kind.dtype, array.shape)
    if kind.shape is None:
        return kind
    numbers = [evaluate(dim, bound) for dim in kind.shape]
    return TensorType(kind.dtype, tuple(d if n is None else n for d, n in zip(kind.shape, numbers, strict=True)))


# ---- the other way


def write_archive(file: IO[bytes], values: Mapping[str, Any]) -> None:
    """Write ``values`` as an .npz, taken apart as ``flat`` does."""
    with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for key, array in flat(values).items():
            with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, _storable(array), allow_pickle=False)


def write_array(file: IO[bytes], array: Array) -> None:
    """Write one array as .npy."""
    np.lib.format.write_array(file, _storable(array), allow_pickle=False)


def flat(values: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays in ``values`` by the name of a file member: a name that could lead out of a directory is replaced.

    The elements of a sequence are numbered, a map is its keys and its values, an absent optional is left out.
    """
    arrays: dict[str, Array] = {}
    for number, (name, value) in enumerate(values.items()):
        stack = [(name if _harmless(name) else f"output_{number}", value)]
        while stack:
            key, part = stack.pop()
            if isinstance(part, list):
                stack += [(f"{key}[{i}]", element) for i, element in reversed(list(enumerate(part)))]
            elif isinstance(part, Mapping):
                stack += [(f"{key}.values", column(part.values())), (f"{key}.keys", column(part.keys()))]
            elif part is not None:
                arrays[key] = np.asarray(part)
    return arrays


def _harmless(name: str) -> bool:
    return name.isprintable() and "\\" not in name and ".." not in Path(name).parts


def _storable(array: Array) -> Array:
    return array.astype(np.str_) if array.dtype == STRING else array
