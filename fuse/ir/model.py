"""A model: a graph with what surrounds it in a file, and the functions that its nodes may call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from fuse.ir.graph import Attr, Graph


@dataclass(eq=False)
class Function:
    """A model-local function: a graph with named attributes, called by nodes of the same domain, name and overload."""

    domain: str
    name: str
    overload: str
    graph: Graph
    attributes: tuple[str, ...] = ()
    defaults: dict[str, Attr] = field(default_factory=dict)
    opsets: dict[str, int] = field(default_factory=dict)
    extra: bytes = b""

    @property
    def key(self) -> tuple[str, str]:
        """What a calling node carries: the qualified name and the overload."""
        return (f"{self.domain}::{self.name}" if self.domain else self.name), self.overload


@dataclass(eq=False)
class Model:
    """A graph with what surrounds it in a file: versions, functions, and the fields that fuse only carries."""

    graph: Graph
    ir_version: int
    opsets: dict[str, int]
    functions: dict[tuple[str, str], Function] = field(default_factory=dict)
    extra: bytes = b""
    source: str = "model"

    def graphs(self) -> Iterable[Graph]:
        """The main graph and every function's body, subgraphs excluded."""
        yield self.graph
        for function in self.functions.values():
            yield function.graph

    def operator_counts(self) -> dict[str, int]:
        """How many nodes of each operator there are, most frequent first."""
        counts = Counter(node.op for node in self.graph.walk())
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def weight_bytes(self) -> int:
        """Bytes of all constants in memory, those of subgraphs and functions included."""
        return sum(v.nbytes for top in self.graphs() for g in top.walk_graphs() for v in g.constants)

    def node_count(self) -> int:
        """Nodes of the main graph and its subgraphs; constants are not nodes, functions count where they are called."""
        return sum(1 for _ in self.graph.walk())
