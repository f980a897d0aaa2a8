"""Imports point one way, passes do not know each other, one package knows onnx, and the first import is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]

#: Where each part stands: it imports what stands lower, never a neighbour of the same height.
HEIGHT = {
    "errors": 0,
    "limits": 0,
    "ir": 1,
    "ops": 2,
    "model": 3,
    "passes": 3,
    "planner": 3,
    "zoo": 3,
    "runtime": 4,
    "proof": 5,
    "report": 6,
    "api": 7,
    "backend": 7,
    "cli": 8,
    "__main__": 9,
}
#: What passes are made of; every other module in ``fuse.passes`` is a pass.
SHARED = frozenset({"pipeline", "match", "record", "rewrite", "build"})
HEAVY = frozenset({"onnx", "onnxruntime", "torch", "torchvision", "rich", "matplotlib"})


class Import(NamedTuple):
    target: str
    line: int
    early: bool
    """True where it happens as the module is imported: not in a function, not for the type checker alone."""


def sources() -> dict[str, str]:
    """The package's modules by their dotted names."""
    found = {}
    for file in sorted((ROOT / "fuse").rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file.read_text(encoding="utf-8")
    return found


def imports(module: str, modules: Mapping[str, str]) -> Iterator[Import]:
    """Every import that ``module`` makes anywhere, each name that is itself a module as that module."""
    package = any(name.startswith(f"{module}.") for name in modules)
    stack: list[tuple[ast.AST, bool]] = [(ast.parse(modules[module]), True)]
    while stack:
        node, early = stack.pop()
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, early) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                around = module.split(".")[: len(module.split(".")) - node.level + package]
                base = ".".join([*around, base] if base else around)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield Import(inner if inner in modules else base, node.lineno, early)
        late = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and child in node.body
            stack.append((child, early and not late and not typing))


def part(module: str) -> str:
    """The part of fuse that a module belongs to; empty for the package's own front."""
    return [*module.split("."), ""][1]


def faults(modules: Mapping[str, str]) -> list[str]:
    """What is wrong with the imports of ``modules``, a line each."""
    found = [f"{m}: {part(m)!r} has no place in the order" for m in modules if part(m) and part(m) not in HEIGHT]
    for module in modules:
        for target, line, early in imports(module, modules):
            fault = ""
            if target.split(".")[0] == "onnx" and part(module) not in ("model", "backend"):
                fault = "only fuse.model imports onnx"
            elif target.split(".")[0] == "fuse":
                fault = _direction(module, target, early)
            if fault:
                found.append(f"{module}:{line}: imports {target}: {fault}")
    return found


def _direction(module: str, target: str, early: bool) -> str:
    here, there = part(module), part(target)
    if not here:
        return "the front imports nothing before it is asked for" if early else ""
    if not there:
        return "" if here in ("cli", "__main__") else "only the command line imports the front"
    if here == there:
        return _between_passes(module, target) if here == "passes" else ""
    if here == "zoo":
        return "" if there == "errors" else "the zoo imports errors alone"
    return "" if HEIGHT.get(there, 99) < HEIGHT.get(here, 99) else f"{there} does not stand below {here}"


def _between_passes(module: str, target: str) -> str:
    here, there = (name.split(".")[2] if name.count(".") > 1 else "" for name in (module, target))
    allowed = here in ("", "pipeline", there) or there in ("", *SHARED)
    return "" if allowed else "one pass imports another"


def loaded(start: str, modules: Mapping[str, str]) -> set[str]:
    """The packages outside of fuse that come in with ``import start``."""
    outside: set[str] = set()
    seen: set[str] = set()
    queue = [start]
    while queue:
        name = queue.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in modules:
            outside.add(name.split(".")[0])
            continue
        queue.extend(found.target for found in imports(name, modules) if found.early)
        queue.extend(name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1))
    return outside


def test_imports_point_one_way() -> None:
    modules = sources()
    assert {"fuse", "fuse.errors", "fuse.ir.graph", "fuse.ops.record"} <= modules.keys()
    assert faults(modules) == []


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("fuse.ir.graph", "from fuse.ops.record import lookup", "ops does not stand below ir"),
        ("fuse.ir.graph", "def f():\n    import fuse.ops.record", "ops does not stand below ir"),
        ("fuse.ir.graph", "from ..ops import record", "ops does not stand below ir"),
        ("fuse.ir.graph", "from .. import ops", "ops does not stand below ir"),
        ("fuse.ir.graph", "from fuse import ops", "ops does not stand below ir"),
        ("fuse.ir.graph", "from fuse import load", "only the command line imports the front"),
        ("fuse.ir.graph", "if TYPE_CHECKING:\n    from fuse.ops import record", "ops does not stand below ir"),
        ("fuse.errors", "import fuse.limits", "limits does not stand below errors"),
        ("fuse.planner.arena", "from fuse.passes import match", "passes does not stand below planner"),
        ("fuse.model.load", "from fuse.zoo import path", "zoo does not stand below model"),
        ("fuse.zoo.export", "from fuse.ir import graph", "the zoo imports errors alone"),
        ("fuse.proof.judge", "import fuse.report", "report does not stand below proof"),
        ("fuse.runtime.session", "import onnx", "only fuse.model imports onnx"),
        ("fuse.runtime.session", "def f():\n    from onnx.defs import get_schema", "only fuse.model imports onnx"),
        ("fuse.passes.dead", "from fuse.passes.fold import fold", "one pass imports another"),
        ("fuse.passes.dead", "from fuse.passes import fold", "one pass imports another"),
        ("fuse.passes.dead", "from . import fold", "one pass imports another"),
        ("fuse.passes.match", "from fuse.passes.fold import fold", "one pass imports another"),
        ("fuse", "from fuse.api import load", "the front imports nothing before it is asked for"),
        ("fuse.extra", "import os", "'extra' has no place in the order"),
    ],
)
def test_what_points_the_other_way_is_found(module: str, source: str, fault: str) -> None:
    around = dict.fromkeys(("fuse", "fuse.ops", "fuse.ops.record", "fuse.passes", "fuse.passes.fold"), "")
    (found,) = faults({**around, module: source})
    assert found.startswith(module) and found.endswith(fault)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("fuse.ops.move", "from fuse.ir.graph import Node\nfrom . import record\nimport numpy"),
        ("fuse.passes.dead", "from fuse.passes.record import note\nfrom fuse.ops import record\nimport fuse.limits"),
        ("fuse.passes.pipeline", "from fuse.passes.fold import fold"),
        ("fuse.passes", "from fuse.passes.fold import fold\nfrom .match import rewrite"),
        ("fuse.model.load", "import onnx\nfrom fuse.ops import record"),
        ("fuse.zoo", "from fuse.errors import InputError"),
        ("fuse.cli.run", "import fuse\nfrom fuse import load, report\nimport onnxruntime"),
        ("fuse", "def __getattr__(name):\n    from fuse import api\nif TYPE_CHECKING:\n    from fuse.api import load"),
    ],
)
def test_what_points_the_right_way_is_left_alone(module: str, source: str) -> None:
    around = dict.fromkeys(("fuse", "fuse.ops", "fuse.ops.record", "fuse.passes.fold", "fuse.report", "fuse.api"), "")
    assert faults({**around, module: source}) == []


@pytest.mark.parametrize("start", ["fuse", "fuse.cli.main"])
def test_the_first_import_is_light(start: str) -> None:
    modules = sources()
    if start not in modules:
        pytest.skip(f"{start} is not there")
    assert loaded(start, modules) & HEAVY == set()
    code = f"import sys, {start}; print(*(sys.modules.keys() & set({sorted(HEAVY)})))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_what_comes_in_with_a_module_is_followed() -> None:
    modules = {
        "fuse": "if TYPE_CHECKING:\n    import torch",
        "fuse.cli": "import rich.table",
        "fuse.cli.main": "from fuse.a import b\nclass C:\n    import click\ndef f():\n    import matplotlib",
        "fuse.a": "try:\n    import onnx.defs\nexcept ImportError:\n    pass\nelse:\n    from fuse import cli",
    }
    assert loaded("fuse.cli.main", modules) == {"rich", "click", "onnx"}
    assert loaded("fuse", modules) == set()
