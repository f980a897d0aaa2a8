"""The chart of live bytes: exact pictures of small plans, and what holds for every plan."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuse.ir.dtypes import BY_NAME
from fuse.ir.graph import Graph, Node, Value
from fuse.ir.types import TensorType
from fuse.planner import plan_memory
from fuse.report.sawtooth import EIGHTHS, resample, sawtooth, show_bytes


def chain(sizes, name="n"):
    """A plan whose live bytes are those of each neighbouring pair of ``sizes``."""
    graph = Graph()
    value = graph.add_input(Value("x", TensorType(BY_NAME["uint8"], (1,))))
    for i, size in enumerate(sizes):
        out = Value(f"v{i}", TensorType(BY_NAME["uint8"], (size,)))
        graph.append(Node("test::Opaque", [value], [out], name=f"{name}{i}"))
        value = out
    return plan_memory(graph)


def test_picture():
    plan = chain([1000, 3000, 1000, 0, 500, 1500])
    assert plan.live == (1000, 4000, 4000, 1000, 500, 2000)
    assert sawtooth(plan, width=32, height=7).split("\n") == [
        "4 kB ┤    ████████",
        "     ┤    ████████",
        "2 kB ┤    ████████        ▄▄▄▄",
        "     ┤▂▂▂▂████████▂▂▂▂    ████",
        " 0 B ┤████████████████▅▅▅▅████",
        "      step 0                 5",
        "peak 4 kB at step 1, node 'n1...",
    ]


def test_one_step_fills_the_width():
    assert sawtooth(chain([8]), width=24, height=4).split("\n") == [
        "8 B ┤" + "█" * 19,
        "0 B ┤" + "█" * 19,
        "     step 0            0",
        "peak 8 B at step 0, n...",
    ]


def test_more_steps_than_columns_keep_the_peak():
    sizes = [10] * 1000
    sizes[333] = 1000
    lines = sawtooth(chain(sizes), width=60, height=8).split("\n")
    assert lines[0].count("█") == 1 and lines[5].count("█") == 1
    assert lines[5].count("▁") == len(lines[5]) - len("1.01 kB ┤") - 1
    assert lines[-1] == "peak 1.01 kB at step 333, node 'n333' (test::Opaque)"


def test_any_byte_leaves_a_mark():
    lines = sawtooth(chain([10**9, 0, 1, 0, 0]), width=40, height=6).split("\n")
    bottom = lines[3].split("┤")[1]
    assert bottom == "██████" * 2 + "▁▁▁▁▁▁" * 2  # the last step has no bytes and is cut off as blank


def test_nothing_planned():
    assert sawtooth(plan_memory(Graph())) == "no bytes are planned: no node computes a value of known size"
    assert "\n" not in sawtooth(chain([0, 0]))


def test_names_from_the_model_cannot_forge_output():
    text = sawtooth(chain([5], name="\x1b[31m\n"), width=120)
    assert "\x1b" not in text and len(text.split("\n")) == 12


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    st.lists(st.integers(0, 10**7), min_size=1, max_size=150).filter(any),
    st.integers(0, 130),
    st.integers(0, 30),
)
def test_any_plan_fits_the_frame(sizes, width, height):
    plan = chain(sizes)
    lines = sawtooth(plan, width, height).split("\n")
    assert len(lines) == max(height, 4)
    assert max(map(len, lines)) <= max(width, 24)
    assert set("".join(line.split("┤")[1] for line in lines[:-2])) <= set(EIGHTHS)
    assert "█" in lines[0] and plan.bound == max(plan.live)


def test_resample():
    assert resample((1, 2, 3), 7) == [1, 1, 2, 2, 3, 3]
    assert resample((1, 9, 3, 4, 5), 2) == [9, 5]
    assert resample((5, 4), 2) == [5, 4]
    columns = resample(tuple(range(1000)), 77)
    assert len(columns) == 77 and columns == sorted(columns) and columns[-1] == 999


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1536, "1.54 kB"),
        (4_014_080, "4.01 MB"),
        (99_949, "99.9 kB"),
        (99_960, "100 kB"),
        (999_400, "999 kB"),
        (999_600, "1 MB"),
        (2.5e9, "2.5 GB"),
        (7e13, "70 TB"),
    ],
)
def test_show_bytes(size, text):
    assert show_bytes(size) == text
