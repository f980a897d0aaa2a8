"""Every budget that fuse keeps, in one place."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets.  Bytes, element counts and operation counts are plain integers; ``replace`` one to change it."""

    fold_node_bytes: int = 4 * MIB
    """A folded result may be this large, or as large as the constants it frees, whichever is more."""
    fold_total_bytes: int = 64 * MIB
    """What folding may add to a model in all, freed constants counted against it."""
    fold_flops: int = 2_000_000_000
    """Arithmetic operations that folding may spend on one model."""
    duplicate_bytes: int = 16 * MIB
    """What a rewrite may add by writing a new weight while the old one stays in use, per model."""
    protobuf_bytes: int = (1 << 31) - MIB
    """A file beyond this is written with external data: protobuf itself ends at 2 GiB."""
    inlined_nodes: int = 1_000_000
    """Nodes that a model may have when all calls of local functions are expanded."""
    nesting: int = 32
    """How deep subgraphs may stand in each other: protobuf reads no deeper file."""
    mapped_files: int = 128
    """Data files that are mapped into memory; each mapping holds a file descriptor."""
    name_bytes: int = 64 * 1024
    """The longest name that is accepted, in bytes."""
    rank: int = 64
    """NumPy handles 64 dimensions."""
    dense_bytes: int = 1 << 30
    """The largest dense array made of a sparse constant."""
    stripped_bytes: int = 1 << 34
    """The largest array made of the recipe of a stripped tensor."""


DEFAULT = Limits()
