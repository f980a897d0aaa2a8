"""Results for people: tables for the terminal.

Each function returns something that a rich console prints.  All text that comes from a model goes through ``plain``,
so that a value named ``[red]`` or one with an escape code in its name is shown and not obeyed; the console must have
markup off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from fuse.errors import quote
from fuse.passes.record import Change, Journal, NodeNote, Refusal
from fuse.report.sawtooth import EIGHTHS, sawtooth, show_bytes
from fuse.report.values import shown

if TYPE_CHECKING:
    from fuse.planner import MemoryPlan
    from fuse.proof.verdict import OutputRow, Verdict
    from fuse.report.outcome import Report

#: Values that the plan's table names as what makes the peak.
MOST_VALUES = 8

#: Rows that the table of a verdict has at most.
MOST_ROWS = 60

#: A chart on a wide terminal is drawn no wider than this.
WIDEST = 100

_ASCII = str.maketrans(f"{EIGHTHS}┤", " ..::||##|")


def plain(text: object, limit: int = 60) -> str:
    """Model text for the terminal: one line, printable, clipped."""
    return quote(text, limit)[1:-1]


class Columns:
    """A table with lines under its heads on a terminal, and bare columns in a pipe.

    ``heads`` that end in a greater-than sign stand over numbers and are set to the right.
    """

    def __init__(self, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        self.heads = tuple(heads)
        self.rows = [tuple(row) for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """What rich asks for."""
        if not console.is_terminal:
            yield Text(self.bare())
            return
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for head in self.heads:
            right = head.endswith(">")
            table.add_column(head.rstrip(">"), justify="right" if right else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        yield table

    def bare(self) -> str:
        """The table as lines of columns with two spaces between them, none of them folded."""
        right = [head.endswith(">") for head in self.heads]
        rows = [tuple(head.rstrip(">") for head in self.heads), *self.rows]
        widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            gaps = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
            cells = [gap + cell if r else cell + gap for cell, gap, r in zip(row, gaps, right, strict=True)]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)


def counted(counts: Mapping[str, int]) -> str:
    """``72 Identity, 8 Add``: most first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {plain(op)}" for op, count in ordered if count > 0)


# ---- optimize


def summary_line(report: Report, source: str) -> str:
    """What an optimisation came to, in one line."""
    weights = f"{show_bytes(report.weight_bytes_before)} -> {show_bytes(report.weight_bytes_after)}"
    nodes = f"{report.nodes_before} -> {report.nodes_after} nodes"
    return f"{plain(source)}: {nodes}, weights {weights}, target {report.target}"


def passes_table(journal: Journal) -> Columns:
    """What each pass changed; the runs that changed nothing are left out."""
    rows, start = [], 0
    for run in journal.stages:
        changes = journal.changes[start : start + run.changes]
        start += run.changes
        if not changes and run.nodes_before == run.nodes_after:
            continue
        removed, made = traded(changes)
        nodes = f"{run.nodes_before} -> {run.nodes_after}"
        rows.append((run.stage, nodes, f"{run.milliseconds:.0f}", counted(removed), counted(made)))
    return Columns(("pass", "nodes", "ms>", "removed", "made"), rows)


def traded(changes: Iterable[Change]) -> tuple[Counter[str], Counter[str]]:
    """The operators that ``changes`` took away and made; what was both taken and made counts on neither side."""
    removed: Counter[str] = Counter()
    made: Counter[str] = Counter()
    for change in changes:
        removed.update(node.op for node in change.removed)
        made.update(node.op for node in change.added)
    return removed - made, made - removed


def operators_table(before: Mapping[str, int], after: Mapping[str, int]) -> Columns:
    """How often each operator occurs before and after."""
    ops = sorted({*before, *after}, key=lambda op: (-before.get(op, 0), -after.get(op, 0), op))
    rows = [(plain(op), str(before.get(op, 0)), str(after.get(op, 0))) for op in ops]
    return Columns(("operator", "before>", "after>"), rows)


def refusals_table(refusals: Iterable[Refusal]) -> Columns:
    """Where a rule's pattern was found and left alone, and why."""
    rows = [(r.stage, r.rule, _noted(r.node), plain(r.reason, 200)) for r in refusals]
    return Columns(("pass", "rule", "node", "left alone because"), rows)


def _noted(node: NodeNote) -> str:
    return f"{plain(node.name)} ({plain(node.op)})"


# ---- verify


_VERDICT_HEADS = (
    "output", "inputs", "max abs>", "max rel>", "ULP>", "NaN/Inf", "argmax>", "float64>", "x raw>", "ort>", "",
)  # fmt: skip


def verdict_parts(verdict: Verdict) -> list[Any]:
    """A table with a row for each output on each input set, what else there is to say, and the verdict itself.

    The columns: how far the optimised answer is from the raw one (absolute, as a part of the largest output, in ULP),
    whether NaN and Inf are at the same places, in how many rows the largest element is; the optimised answer's error
    against float64, and that as a multiple of the raw answer's; optimised against raw on onnxruntime.
    """
    rows = verdict.rows
    if len(rows) > MOST_ROWS:
        rows = tuple(sorted(rows, key=lambda row: not row.moved)[:MOST_ROWS])
    parts: list[Any] = [Columns(_VERDICT_HEADS, [_verdict_row(row) for row in rows])] if rows else []
    if len(rows) < len(verdict.rows):
        parts.append(f"{len(verdict.rows) - len(rows)} more rows are in the report (--json)")
    more = [*verdict.reasons[1:], *verdict.notes[3 if verdict.ok else 0 :]]  # the others are in the line
    if more:
        parts.append("\n".join(plain(text, 400) for text in more))
    return [*parts, verdict_line(verdict)]


def verdict_line(verdict: Verdict) -> str:
    """The verdict in one sentence."""
    return plain(verdict.line(), 1000)


def _verdict_row(row: OutputRow) -> tuple[str, ...]:
    found = row.difference
    said = "random" if row.random else f"moved: {plain(row.moved, 200)}" if row.moved else ""
    figures = ("", "", "", "", "")
    if found is not None:
        ulp = "" if found.max_ulp is None else str(found.max_ulp)
        argmax = "" if found.argmax is None else f"{100 * found.argmax:.4g} %"
        pattern = "same" if found.same_nonfinite else "moved"
        figures = (_small(found.max_abs), _small(found.max_rel), ulp, pattern, argmax)
    error = "" if row.optimised_error is None else _small(row.optimised_error.max_rel)
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    other = "" if row.onnxruntime is None else _small(row.onnxruntime.max_rel)
    return (plain(row.output), plain(row.inputs), *figures, error, ratio, other, said)


def _small(figure: float | None) -> str:
    return "" if figure is None else "0" if figure == 0 else f"{figure:.1e}"


# ---- plan


def plan_table(plan: MemoryPlan, measured: int | None = None) -> Columns:
    """The figures of a memory plan, each beside what it says."""
    rows = [
        ("without reuse", show_bytes(plan.without_reuse), "every value in memory of its own"),
        ("freed after last use", show_bytes(plan.freed), "the peak where views share memory"),
        ("lower bound", show_bytes(plan.bound), "the peak where elementwise nodes write in place too"),
        ("arena", show_bytes(plan.arena), f"an offset for each value: {overhead(plan):.2f} % over the lower bound"),
    ]
    if measured is not None:
        rows.append(("measured", show_bytes(measured), "the peak of one run on fuse's runtime, by tracemalloc"))
    rows.append(("inputs", _input_bytes(plan), "the caller's own, in none of these figures"))
    return Columns(("memory", "bytes>", ""), rows)


def overhead(plan: MemoryPlan) -> float:
    """By how much per cent alignment and gaps make the arena larger than the lower bound."""
    return 100.0 * (plan.arena - plan.bound) / plan.bound if plan.bound else 0.0


def shares(plan: MemoryPlan) -> dict[str, int]:
    """How many values have a buffer of their own, are an alias of another, or are written in place over one."""
    counts = Counter(slot.how for slot in plan.slots.values())
    return {how: counts.get(how, 0) for how in ("own", "alias", "in-place")}


def _input_bytes(plan: MemoryPlan) -> str:
    known = [size for size in plan.inputs.values() if size is not None]
    return show_bytes(sum(known)) if len(known) == len(plan.inputs) else "unknown"


def plan_notes(plan: MemoryPlan) -> str:
    """How the values share memory, and which of them have no place in the arena."""
    counts = shares(plan)
    lines = [
        f"{len(plan.slots)} values: {counts['own']} with a buffer of their own, {counts['alias']} aliases, "
        f"{counts['in-place']} written in place"
    ]
    if plan.unplanned:
        reasons = Counter(entry.why for entry in plan.unplanned)
        lines.append(f"{len(plan.unplanned)} values are not planned:")
        lines += [f"  {count} because {plain(why, 200)}" for why, count in reasons.most_common(MOST_VALUES)]
    return "\n".join(lines)


def peak_table(plan: MemoryPlan) -> Columns | str:
    """The values alive where most bytes are."""
    from fuse.planner import label

    if plan.peak is None:
        return "no value takes any memory"
    shown = plan.peak.values[:MOST_VALUES]
    rows = [(plain(label(value)), show_bytes(size)) for value, size in shown]
    rest = plan.peak.values[MOST_VALUES:]
    if rest:
        rows.append((f"and {len(rest)} more", show_bytes(sum(size for _, size in rest))))
    return Columns((f"alive at the peak (step {plan.peak.step}, {plain(plan.peak.node, 100)})", "bytes>"), rows)


def chart(plan: MemoryPlan, width: int, unicode: bool) -> str:
    """The live-memory sawtooth, in characters that the terminal has."""
    drawn = sawtooth(plan, min(width, WIDEST))
    return drawn if unicode else drawn.translate(_ASCII)


# ---- bench


def times_table(times: Mapping[str, Sequence[float]], reference: str | None = None) -> Columns:
    """The median, fastest and slowest run of each runner, and its median as a multiple of ``reference``'s."""
    base = median(times[reference]) if reference is not None and reference in times else None
    heads = ["runner", "median ms>", "min>", "max>"] + ([f"x {reference}>"] if base else [])
    rows = []
    for name, runs in times.items():
        row = [plain(name), f"{median(runs):.3f}", f"{min(runs):.3f}", f"{max(runs):.3f}"]
        rows.append([*row, f"{median(runs) / base:.2f}"] if base else row)
    return Columns(heads, rows)


def operator_times_table(columns: Mapping[str, Mapping[str, float]]) -> Columns:
    """Milliseconds by operator, one column for each graph that was run, and their sums."""
    most: dict[str, float] = {}
    for times in columns.values():
        for op, spent in times.items():
            most[op] = max(most.get(op, 0.0), spent)
    rows = [
        [plain(op), *(f"{times[op]:.3f}" if op in times else "" for times in columns.values())]
        for op in sorted(most, key=lambda op: (-most[op], op))
    ]
    rows.append(["all", *(f"{sum(times.values()):.3f}" for times in columns.values())])
    return Columns(("operator", *(f"{name} ms>" for name in columns)), rows)


# ---- run


def values_table(facts: Mapping[str, dict[str, Any]]) -> Columns:
    """Type, range and first elements of each output, of which ``facts`` has what ``value_facts`` says."""
    rows: list[tuple[str, ...]] = []
    for name, fact in facts.items():
        rows.append((plain(name), *shown(fact)))
        for number, element in enumerate(fact.get("elements", ())):
            rows.append((f"  {number}", *shown(element)))
    return Columns(("output", "type", "min>", "max>", "mean>", "first elements"), rows)


# ---- show


def heading_table(facts: Mapping[str, Any]) -> Columns:
    """The facts of a model that are one line each."""
    opsets = ", ".join(f"{plain(domain)} {version}" for domain, version in facts["opsets"].items())
    rows = [
        ("graph", plain(facts["graph"])),
        ("IR version", str(facts["ir_version"])),
        ("operator sets", opsets),
        ("producer", plain(facts["producer"]) or "unknown"),
        ("nodes", str(facts["nodes"])),
        ("weights", f"{show_bytes(facts['weight_bytes'])} in {facts['constants']} constants"),
    ]
    if facts["functions"]:
        rows.append(("functions", ", ".join(plain(name) for name in facts["functions"])))
    return Columns(("model", plain(facts["source"])), rows)


def interface_table(facts: Mapping[str, Any]) -> Columns:
    """Inputs and outputs with their types."""
    rows = [
        ("input", plain(entry["name"]), plain(entry["type"], 200), "has a default" if entry["default"] else "")
        for entry in facts["inputs"]
    ]
    rows += [("output", plain(entry["name"]), plain(entry["type"], 200), "") for entry in facts["outputs"]]
    return Columns(("", "name", "type", ""), rows)


def counts_table(counts: Mapping[str, int]) -> Columns:
    """How often each operator occurs."""
    return Columns(("operator", "nodes>"), [(plain(op), str(count)) for op, count in counts.items()])


def zoo_table(models: Mapping[str, Mapping[str, Any]]) -> Columns:
    """The embedded models."""
    rows = [
        (
            name,
            str(facts["nodes"]),
            show_bytes(facts["weight_bytes"]),
            ", ".join(f"{plain(entry['name'])}: {plain(entry['type'])}" for entry in facts["inputs"]),
        )
        for name, facts in models.items()
    ]
    return Columns(("model", "nodes>", "weights>", "inputs"), rows)
