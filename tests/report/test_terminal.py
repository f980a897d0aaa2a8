from __future__ import annotations

import io

import pytest
from rich.console import Console

from fuse.model.load import load
from fuse.passes.record import Change, Journal, NodeNote, Refusal, StageCount
from fuse.planner import plan_memory
from fuse.proof.compare import Difference
from fuse.proof.verdict import OutputRow, Verdict
from fuse.report import terminal
from fuse.report.terminal import Columns
from tests.models import model, node

EVIL = "[red]x[/red]\x1b[2J\n:smile:"


def shown(*parts: object, tty: bool = False, width: int = 100) -> str:
    """What a console prints, as the command line sets it up."""
    stream = io.StringIO()
    console = Console(
        file=stream,
        force_terminal=tty,
        width=width,
        markup=False,
        highlight=False,
        emoji=False,
        color_system=None,
        legacy_windows=False,
    )
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str) or not tty)
    return stream.getvalue()


def notes(*ops: str) -> tuple[NodeNote, ...]:
    return tuple(NodeNote(f"n{i}", op) for i, op in enumerate(ops))


def test_a_pipe_gets_bare_columns() -> None:
    table = Columns(("name", "count>", ""), [("a", "7", "short"), ("日本", "1234", "x" * 300)])
    assert shown(table).splitlines() == ["name  count", "a         7  short", "日本   1234  " + "x" * 300]


def test_a_terminal_gets_a_line_under_the_heads_and_folds() -> None:
    lines = shown(Columns(("name", "text"), [("a", "word " * 40)]), tty=True, width=40).splitlines()
    assert "─" in lines[1] and len(lines) > 5
    assert all(len(line) <= 40 for line in lines)
    assert " ".join(lines).count("word") == 40


@pytest.mark.parametrize("tty", [False, True])
def test_model_text_is_never_markup(tty: bool) -> None:
    text = shown(
        Columns(("a", "b"), [(terminal.plain(EVIL), "[bold]")]),
        terminal.operators_table({EVIL: 1}, {}),
        terminal.counts_table({EVIL: 2}),
        terminal.refusals_table([Refusal("fold", "fold", NodeNote(EVIL, EVIL), EVIL)]),
        terminal.times_table({EVIL: [1.0]}),
        terminal.operator_times_table({"raw": {EVIL: 1.0}}),
        terminal.values_table({EVIL: {"type": "string[1]", "shape": [1], "first": [EVIL]}}),
        *terminal.verdict_parts(Verdict("moved", (EVIL,), (EVIL,), (OutputRow(EVIL, EVIL, moved=EVIL),))),
        tty=tty,
        width=400,
    )
    assert "\x1b[2J" not in text and "\\x1b[2J" in text
    assert "[bold]" in text and "[red]x[/red]" in text and ":smile:" in text
    assert text.count("[red]x[/red]") >= 12


def test_passes_are_charged_run_by_run() -> None:
    journal = Journal()
    journal.changes = [
        Change("identity", "identity", "bits", notes("Identity"), ()),
        Change("identity", "identity", "bits", notes("Identity"), ()),
        Change("activation", "relu", "bits", notes("Conv", "Relu"), notes("fuse::ConvRelu")),
        Change("identity", "cast", "bits", notes("Cast"), ()),
    ]
    journal.stages = [
        StageCount("shapes", 9, 9, 0, 1.0),
        StageCount("identity", 9, 7, 2, 2.4),
        StageCount("activation", 7, 6, 1, 3.0),
        StageCount("identity", 6, 5, 1, 0.2),
    ]
    assert shown(terminal.passes_table(journal)).splitlines() == [
        "pass        nodes   ms  removed         made",
        "identity    9 -> 7   2  2 Identity",
        "activation  7 -> 6   3  1 Conv, 1 Relu  1 fuse::ConvRelu",
        "identity    6 -> 5   0  1 Cast",
    ]


def test_what_is_taken_and_made_again_counts_on_neither_side() -> None:
    removed, made = terminal.traded(
        [Change("batchnorm", "fold", "close", notes("Conv", "BatchNormalization"), notes("Conv"))]
    )
    assert (dict(removed), dict(made)) == ({"BatchNormalization": 1}, {})


def test_operators_before_and_after() -> None:
    assert shown(terminal.operators_table({"Relu": 3, "Add": 9}, {"Add": 9, "fuse::AddRelu": 2})).splitlines() == [
        "operator       before  after",
        "Add                 9      9",
        "Relu                3      0",
        "fuse::AddRelu       0      2",
    ]


def test_times_against_a_reference() -> None:
    text = shown(terminal.times_table({"fuse": [3.0, 1.0, 2.0], "onnxruntime": [4.0, 4.0, 4.0]}, "onnxruntime"))
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["fuse", "2.000", "1.000", "3.000", "0.50"],
        ["onnxruntime", "4.000", "4.000", "4.000", "1.00"],
    ]
    assert "x " not in shown(terminal.times_table({"fuse": [1.0]})).splitlines()[0]


def test_operator_times_side_by_side() -> None:
    columns = {"raw": {"Conv": 5.0, "Relu": 2.0}, "optimised": {"fuse::ConvRelu": 5.5}}
    assert [line.split() for line in shown(terminal.operator_times_table(columns)).splitlines()] == [
        ["operator", "raw", "ms", "optimised", "ms"],
        ["fuse::ConvRelu", "5.500"],
        ["Conv", "5.000"],
        ["Relu", "2.000"],
        ["all", "7.000", "5.500"],
    ]


def row(**changes: object) -> OutputRow:
    error = Difference(elements=4, finite=4, largest=1.0, max_abs=2e-7, max_rel=2e-7, max_ulp=2, argmax=1.0)
    figures = {"difference": error, "raw_error": error, "optimised_error": error, "onnxruntime": error}
    return OutputRow(**{"output": "y", "inputs": "normal", **figures, **changes})


def test_the_table_of_a_verdict() -> None:
    good, bad = (
        row(),
        row(inputs="edges", moved="has another dtype or shape", difference=Difference(same_nonfinite=False)),
    )
    text = shown(*terminal.verdict_parts(Verdict("moved", ("output 'y' moved",), ("a note",), (good, bad))))
    lines = text.splitlines()
    assert lines[1].split() == [
        "y",
        "normal",
        "2.0e-07",
        "2.0e-07",
        "2",
        "same",
        "100",
        "%",
        "2.0e-07",
        "1.00",
        "2.0e-07",
    ]
    assert lines[2].split()[2] == "moved" and lines[2].endswith("moved: has another dtype or shape")
    assert lines[-2:] == ["a note", "answers moved: output 'y' moved"]


def test_a_long_verdict_shows_what_moved_first() -> None:
    rows = [row(inputs=str(i), moved="yes" if i == 99 else "") for i in range(100)]
    text = shown(*terminal.verdict_parts(Verdict("moved", ("r",), (), tuple(rows))))
    assert text.splitlines()[1].split()[:2] == ["y", "99"]
    assert f"{100 - terminal.MOST_ROWS} more rows" in text


def test_the_figures_of_a_plan() -> None:
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Relu", ["a"], ["b"]), node("Flatten", ["b"], ["y"])]
    proto = model(nodes, {"x": ["n", 4]}, {"y": ["n", 250]}, {"w": [[1.0] * 250] * 4})
    for tensor in proto.graph.input, proto.graph.output:
        tensor[0].type.tensor_type.elem_type = 11
    plan = plan_memory(load(proto), {"n": 10})
    lines = shown(terminal.plan_table(plan, 123_456)).splitlines()
    # three values of 10 x 250 doubles: Relu writes over its input, Flatten is a view
    assert "60 kB" in lines[1]
    assert "40 kB" in lines[2] and "20 kB" in lines[3] and "20 kB" in lines[4] and "0.00 %" in lines[4]
    assert "123 kB" in lines[5] and "320 B" in lines[6]
    assert terminal.shares(plan) == {"own": 1, "alias": 1, "in-place": 1}
    assert "1 aliases, 1 written in place" in terminal.plan_notes(plan)
    assert "20 kB" in shown(terminal.peak_table(plan))


def test_what_is_not_planned_is_said_with_its_reason() -> None:
    proto = model([node("Relu", ["x"], ["y"])], {"x": ["n"]}, {"y": ["n"]})
    plan = plan_memory(load(proto))
    assert "1 values are not planned" in terminal.plan_notes(plan) and "unknown size" in terminal.plan_notes(plan)
    assert terminal.peak_table(plan) == "no value takes any memory"
    assert terminal.overhead(plan) == 0.0


def test_the_chart_in_plain_characters() -> None:
    plan = plan_memory(load(model([node("Relu", ["x"], ["y"])], {"x": [9]}, {"y": [9]})))
    drawn = terminal.chart(plan, 60, unicode=True)
    assert "█" in drawn and not drawn.isascii()
    plain = terminal.chart(plan, 60, unicode=False)
    assert plain.isascii() and len(plain) == len(drawn) and "#" in plain
