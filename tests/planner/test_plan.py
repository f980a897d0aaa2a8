"""Whole plans, judged by a replay that shares no code with the planner.

The judge runs the graph step by step on a memory of tags: each result writes its tag over its bytes, and each reader
must find the tag of the value that it reads.  Who is alive is known from reference counts alone.
"""

import dataclasses
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fuse.ops.elementwise
import fuse.ops.move  # noqa: F401
from fuse.errors import InputError, ShapeError
from fuse.ir.dims import Symbolic
from fuse.ir.dtypes import BY_NAME
from fuse.ir.graph import Attr, Graph, Node, Value
from fuse.ir.model import Function, Model
from fuse.ir.types import SequenceType, TensorType
from fuse.ops.record import OPERATORS
from fuse.planner import plan_memory

VIEWS = {"Identity", "Flatten", "Reshape", "Squeeze", "Unsqueeze"}
POINTWISE = {"Relu", "Sigmoid", "Neg", "Abs", "Add"}


# ---- the judge


def node_of(user, graph):
    """The node of ``graph`` itself on whose behalf ``user`` reads; None for an output slot of ``graph``."""
    while user is not graph:
        holder = user.graph if isinstance(user, Node) else user
        if holder is graph:
            return user
        user = holder.parent
    return None


def size(value):
    return int(np.prod(value.type.shape, dtype=object)) * value.type.dtype.itemsize


def judge(graph, plan):
    """Replay ``graph`` on a memory of ``plan.arena`` bytes; any fault of the plan is an AssertionError."""
    memory = np.zeros(plan.arena, dtype=np.int64)
    reading, left, tag = {node: [] for node in graph.nodes}, Counter(), {}
    for value in [v for node in graph.nodes for v in node.outputs if v is not None]:
        for user in value.readers:
            left[value] += 1
            if (node := node_of(user, graph)) is not None:
                reading[node].append(value)
    spot = {v: slice(s.offset, s.offset + s.bytes) for v, s in plan.slots.items()}
    born, freed = [], []
    for step, node in enumerate(graph.nodes):
        old = [v for v in born if left[v] > 0]
        for value in reading[node]:
            if value in spot:
                assert (memory[spot[value]] == tag[value]).all(), f"step {step} reads a value that is gone"
        new = [v for v in node.outputs if v in spot]
        left.subtract(reading[node])
        staying = [v for v in old if left[v] > 0]
        for value in new:
            slot = plan.slots[value]
            assert slot.birth == step and slot.bytes == size(value) and slot.offset % 64 == 0
            assert 0 <= slot.offset <= slot.offset + slot.bytes <= plan.arena
            if slot.how == "alias":
                source = node.inputs[0]
                assert node.op in VIEWS and value is node.outputs[0] and spot[source] == spot[value]
                tag[value] = tag[source]
                continue
            tag[value] = len(tag) + 1
            touched = [v for v in old if slot.bytes and overlap(spot[v], spot[value])]
            if slot.how == "in-place":
                assert touched and node.op in POINTWISE and not set(touched) & set(staying)
                inputs = [v for v in touched if v in node.inputs]
                assert inputs and all(spot[v] == spot[value] and v.dtype == value.dtype for v in touched)
                assert all(np.prod(v.shape) == np.prod(value.shape) for v in inputs)
            else:
                assert slot.how == "own" and not touched
            memory[spot[value]] = tag[value]
        for value in staying + new:
            assert (memory[spot[value]] == tag[value]).all(), f"step {step} destroys a value that is still needed"
        marks = np.zeros(plan.arena, dtype=bool)
        for value in old + new:
            marks[spot[value]] = True
        assert plan.live[step] == marks.sum()
        freed.append(sum({tag[v]: size(v) for v in old + new}.values()))
        for value in old + new:
            assert plan.slots[value].birth <= step <= plan.slots[value].death
        born += new
    assert plan.without_reuse == sum(size(v) for v in spot)
    assert plan.freed == max(freed, default=0)
    assert plan.bound == max(plan.live, default=0) <= min(plan.freed, plan.arena)
    for slot in graph.outputs:
        if slot.value in spot:
            assert (memory[spot[slot.value]] == tag[slot.value]).all() and plan.slots[slot.value].death == len(graph)


def overlap(a, b):
    return a.start < b.stop and b.start < a.stop and a.start < a.stop and b.start < b.stop


# ---- random graphs


SHAPES = [(), (1,), (3,), (16,), (2, 8), (4, 16), (0, 3), (40,), (300,)]


@st.composite
def graphs(draw, plain=False):
    """A graph with branches, views, readers anywhere, dead values, repeated inputs and outputs, typed throughout.

    ``plain`` leaves out operators without a kernel and takes one dtype, so that the graph can be run.
    """
    graph = Graph("random")
    dtypes = ["int64"] if plain else ["float", "int64", "float16"]
    tensor = st.builds(TensorType, st.sampled_from([BY_NAME[d] for d in dtypes]), st.sampled_from(SHAPES))
    values = [graph.add_input(Value(f"x{i}", draw(tensor))) for i in range(draw(st.integers(1, 3)))]
    values.append(graph.add_const(np.arange(3, dtype=np.int64), "w"))
    kinds = ["unary", "unary", "add", "add", "view", "view"] + ([] if plain else ["opaque", "opaque", "if"])
    for index in range(draw(st.integers(0, 14))):
        # Recent values are read more often, as in a net; any may be read.
        pool = st.sampled_from(values[-4:] if draw(st.booleans()) else values)
        kind, x = draw(st.sampled_from(kinds)), draw(pool)
        attrs, inputs, types = {}, [x], [x.type]
        if kind == "unary":
            op = draw(st.sampled_from(["Neg", "Abs"] if plain else ["Relu", "Sigmoid"]))
        elif kind == "add":
            alike = [v for v in values if v.dtype == x.dtype and fits(x.shape, v.shape)]
            y = draw(st.sampled_from(alike))
            op, inputs = "Add", draw(st.permutations([x, y]))
            types = [TensorType(x.dtype, np.broadcast_shapes(x.shape, y.shape))]
        elif kind == "view":
            op = draw(st.sampled_from(["Identity", "Flatten"]))
            if op == "Flatten":
                attrs = {"axis": Attr("INT", 0)}
                types = [TensorType(x.dtype, (1, int(np.prod(x.shape, dtype=int))))]
        elif kind == "opaque":
            op, inputs = "test::Opaque", draw(st.lists(st.none() | pool, max_size=4))
            types = draw(st.lists(st.none() | tensor, min_size=1, max_size=3))
        else:
            op, types = "If", []
            branch = Graph("branch")
            seen, result = draw(pool), Value("r", draw(tensor))
            branch.append(Node("Relu", [seen], [result]))
            branch.add_output("r", draw(st.sampled_from([result, draw(pool)])))
            attrs = {"then_branch": Attr("GRAPH", branch)}
        outputs = [None if t is None else Value(f"v{index}.{i}", t) for i, t in enumerate(types)]
        graph.append(Node(op, inputs, outputs, attrs))
        values += [v for v in outputs if v is not None]
    for i, value in enumerate(draw(st.lists(st.sampled_from(values), max_size=4))):
        graph.add_output(f"y{i}", value)
    return graph


def fits(a, b):
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return True


@settings(derandomize=True, deadline=None, max_examples=400)
@given(graphs())
def test_any_graph(graph):
    plan = plan_memory(graph)
    judge(graph, plan)
    computed = {v for node in graph.nodes for v in node.outputs if v is not None}
    assert set(plan.slots) | set(plan.outside) == computed and not plan.unplanned
    assert all(root in graph.inputs or root.is_const for root in plan.outside.values())
    assert plan_memory(graph) == plan


@settings(derandomize=True, deadline=None, max_examples=150)
@given(graphs(plain=True), st.integers(0, 2**32))
def test_a_run_inside_the_arena_gives_the_answers_of_a_plain_run(graph, seed):
    plan = plan_memory(graph)
    rng = np.random.default_rng(seed)
    plain = {v: rng.integers(-9, 9, v.shape) for v in graph.inputs} | {v: v.array for v in graph.constants}
    inside, arena = dict(plain), np.full(plan.arena, 0xA5, dtype=np.uint8)
    ufuncs = {"Neg": np.negative, "Abs": np.abs, "Add": np.add}
    for node in graph.nodes:
        out, keywords = node.out, {name: attr.value for name, attr in node.attrs.items()}
        plain[out] = OPERATORS[node.op].kernel(*[plain[v] for v in node.inputs], **keywords)
        if out in plan.slots:
            slot = plan.slots[out]
            inside[out] = arena[slot.offset : slot.offset + slot.bytes].view(np.int64).reshape(out.shape)
            if node.op in ufuncs:
                ufuncs[node.op](*[inside[v] for v in node.inputs], out=inside[out])
        else:
            inside[out] = inside[plan.outside[out]].reshape(out.shape)
    for slot in graph.outputs:
        np.testing.assert_array_equal(inside[slot.value], plain[slot.value])


@settings(derandomize=True, deadline=None, max_examples=100)
@given(graphs())
def test_counted_inputs_are_in_the_arena_too(graph):
    plan = plan_memory(graph, count_inputs=True)
    assert set(graph.inputs) <= set(plan.slots) or not plan.steps
    assert all(root.is_const or not plan.steps for root in plan.outside.values())
    for value in graph.inputs if plan.steps else ():
        mine = plan.slots[value]
        assert mine.how == "own" and mine.birth == 0
        writers = [s for s in plan.slots.values() if s.how == "in-place" and s.buffer == mine.buffer]
        assert not writers
        for slot in plan.slots.values():
            if slot.buffer != mine.buffer and slot.birth <= mine.death and slot.bytes and mine.bytes:
                apart = slot.offset + slot.bytes <= mine.offset or mine.offset + mine.bytes <= slot.offset
                assert apart


# ---- the judge itself can say no


def residual():
    """Relu, Relu, Add: two buffers of 256 bytes are alive at once."""
    graph = Graph()
    kind = TensorType(BY_NAME["float"], (64,))
    x, a, b, c = (Value(n, kind) for n in "xabc")
    graph.add_input(x)
    for op, inputs, out in (("test::Opaque", [x], a), ("test::Opaque", [a], b), ("Add", [a, b], c)):
        graph.append(Node(op, inputs, [out], name=out.name))
    graph.add_output("c", c)
    return graph, a, b, c


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("b", {"offset": 0}),
        ("c", {"how": "own"}),
        ("c", {"offset": 128}),
        ("c", {"offset": 10**6}),
        ("b", {"how": "in-place", "offset": 0}),
        ("b", {"how": "alias", "offset": 0}),
        ("a", {"bytes": 128}),
    ],
)
def test_the_judge_finds_faults(name, change):
    graph, *_ = residual()
    plan = plan_memory(graph)
    judge(graph, plan)
    (value,) = [v for v in plan.slots if v.name == name]
    broken = plan.slots | {value: dataclasses.replace(plan.slots[value], **change)}
    with pytest.raises((AssertionError, KeyError)):
        judge(graph, dataclasses.replace(plan, slots=broken))


# ---- figures by hand


def test_figures_of_a_residual_block():
    graph, a, b, c = residual()
    plan = plan_memory(graph)
    assert (plan.without_reuse, plan.freed, plan.bound, plan.arena) == (768, 768, 512, 512)
    assert plan.live == (256, 512, 512)
    assert plan.peak.step == 1 and plan.peak.node == "node 'b' (test::Opaque)" and plan.peak.bytes == 512
    assert plan.peak.values == ((a, 256), (b, 256))
    assert plan.slots[c].how == "in-place" and plan.slots[c].buffer == plan.slots[a].buffer
    assert plan.slots[c].death == 3 and plan.slots[b].death == 2
    assert plan.inputs == {graph.inputs[0]: 256} and plan.outside == {} and plan.unplanned == ()


def test_the_peak_names_what_a_shared_buffer_holds_at_that_step():
    graph = Graph()
    x = graph.add_input(Value("x", TensorType(BY_NAME["float"], (16,))))
    a, b, c, d, e = (Value(n, x.type) for n in "abcde")
    steps = [("test::Opaque", x, a), ("Relu", a, b), ("test::Opaque", b, c), ("Sigmoid", b, d), ("Abs", d, e)]
    for op, source, out in steps:
        graph.append(Node(op, [source], [out]))
    graph.add_output("c", c)
    plan = plan_memory(graph)
    judge(graph, plan)
    assert [[v.name for v in buffer.values] for buffer in plan.buffers] == [["a", "b", "d", "e"], ["c"]]
    assert plan.peak.step == 2 and plan.peak.values == ((b, 64), (c, 64))


def resnet18():
    """The optimised ResNet-18: 20 convolutions with what follows them inside, two pools and a product."""
    graph = Graph("resnet18")
    state = {"value": graph.add_input(Value("input", TensorType(BY_NAME["float"], (1, 3, 224, 224))))}

    def step(op, shape, *inputs):
        out = Value(f"v{len(graph)}", TensorType(BY_NAME["float"], shape))
        graph.append(Node(op, inputs, [out], name=f"n{len(graph)}"))
        return out

    x = step("fuse::ConvRelu", (1, 64, 112, 112), state["value"])
    x = step("MaxPool", (1, 64, 56, 56), x)
    for stage, (channels, side) in enumerate([(64, 56), (128, 28), (256, 14), (512, 7)]):
        for block in range(2):
            shape = (1, channels, side, side)
            y = step("fuse::ConvRelu", shape, x)
            skip = step("Conv", shape, x) if stage and not block else x
            x = step("fuse::ConvAddRelu", shape, y, skip)
    x = step("GlobalAveragePool", (1, 512, 1, 1), x)
    x = step("Flatten", (1, 512), x)
    graph.add_output("output", step("Gemm", (1, 1000), x))
    return graph


def test_resnet18():
    graph = resnet18()
    plan = plan_memory(graph)
    judge(graph, plan)
    assert len(plan.steps) == 24
    assert plan.bound == plan.freed == 4_014_080  # the stem's 64x112x112 and the pool's 64x56x56, in float32
    assert plan.arena <= 1.02 * plan.bound
    assert (plan.peak.step, plan.peak.node) == (1, "node 'n1' (MaxPool)")
    assert [size for _, size in plan.peak.values] == [3_211_264, 802_816]
    assert sum(plan.inputs.values()) == 602_112
    stages = 4 * 802_816 + 5 * (401_408 + 200_704 + 100_352)
    assert plan.without_reuse == 3_211_264 + 802_816 + stages + 2048 + 2048 + 4000 == 10_745_760


# ---- types, sizes, and what has no place


def test_types_are_inferred_and_written_where_they_are_missing():
    graph = Graph()
    x = graph.add_input(Value("x", TensorType(BY_NAME["float"], (Symbolic.of("n"), 4))))
    a, b = Value("a"), Value("b")
    graph.append(Node("Relu", [x], [a]))
    graph.append(Node("Sigmoid", [a], [b]))
    graph.add_output("b", b)
    vague = plan_memory(Model(graph, 10, {"": 18}))
    assert a.type == x.type
    assert [u.value for u in vague.unplanned] == [a, b] and "'float[n, 4]'" in vague.unplanned[0].why
    assert vague.inputs == {x: None} and vague.arena == 0 and vague.peak is None and vague.live == (0, 0)
    assert plan_memory(graph, {"n": 3}).bound == 48
    assert plan_memory(graph, {"n": 0}).bound == 0
    assert a.type.shape[0] == Symbolic.of("n")


def test_given_sizes_settle_what_symbols_leave_in_doubt():
    graph = Graph()
    x, y = (graph.add_input(Value(s, TensorType(BY_NAME["float"], (Symbolic.of(s),)))) for s in "nm")
    total = Value("total")
    graph.append(Node("Add", [x, y], [total]))
    graph.add_output("total", total)
    assert plan_memory(graph).slots == {}
    assert plan_memory(graph, {"n": 1, "m": 5}).slots[total].bytes == 20
    assert total.type == TensorType(BY_NAME["float"], (None,))
    with pytest.raises(ShapeError, match="do not broadcast"):
        plan_memory(graph, {"n": 2, "m": 5})


@pytest.mark.parametrize("wrong", [-1, 2.0, "8", True, None])
def test_a_size_must_be_a_natural_number(wrong):
    with pytest.raises(InputError, match="the size of dim 'n'"):
        plan_memory(Graph(), {"n": wrong})


def test_what_has_no_place_is_listed_with_the_reason():
    graph = Graph()
    f4 = TensorType(BY_NAME["float"], (4,))
    x = graph.add_input(Value("x", f4))
    branch = Graph("branch")
    branch.add_output("r", x)
    kinds = [SequenceType(f4), TensorType(BY_NAME["string"], (2,)), TensorType(BY_NAME["int64"], (None, 1))]
    for i, kind in enumerate(kinds):
        graph.append(Node("test::Opaque", [x], [Value(f"v{i}", kind)]))
    graph.append(Node("If", [x], [Value("c", f4)], {"then_branch": Attr("GRAPH", branch)}))
    plan = plan_memory(graph)
    assert [(u.value.name, u.bytes) for u in plan.unplanned] == [(f"v{i}", None) for i in range(3)] + [("c", 16)]
    reasons = [u.why for u in plan.unplanned]
    for text, why in zip(["seq(float[4])", "strings", "int64[?, 1]", "control"], reasons, strict=True):
        assert text in why
    assert plan.slots == {} and plan.arena == 0 and len(plan.steps) == 4


def test_an_operator_that_nobody_knows_has_no_place():
    graph = Graph()
    x = graph.add_input(Value("x", TensorType(BY_NAME["float"], (4,))))
    known, unknown = Value("known"), Value("unknown")
    graph.append(Node("Relu", [x], [known]))
    graph.append(Node("test::Opaque", [x], [unknown]))
    plan = plan_memory(graph)
    assert list(plan.slots) == [known]
    assert [(u.value, u.bytes, u.why) for u in plan.unplanned] == [(unknown, None, "its type is unknown")]


def test_local_functions_are_opaque():
    graph, *_ = residual()
    body = Graph("body")
    call = Node("mine::Relu", [graph.outputs[0].value], [Value("d", graph.inputs[0].type)])
    graph.append(call)
    model = Model(graph, 10, {}, {("mine::Relu", ""): Function("mine", "Relu", "", body)})
    assert plan_memory(model).slots[call.out].how == "own"


@pytest.mark.parametrize("passed_on", [False, True])
def test_graphs_without_nodes(passed_on):
    graph = Graph()
    x = graph.add_input(Value("x", TensorType(BY_NAME["float"], (4,))))
    if passed_on:
        graph.add_output("y", x)
    for plan in (plan_memory(graph), plan_memory(graph, count_inputs=True)):
        assert (plan.without_reuse, plan.freed, plan.bound, plan.arena) == (0, 0, 0, 0)
        assert plan.slots == {} and plan.live == () and plan.peak is None and plan.inputs == {x: 16}


def test_json():
    graph, *_ = residual()
    graph.append(Node("Identity", [graph.inputs[0]], [Value("", graph.inputs[0].type)], name="copy"))
    told = json.loads(json.dumps(plan_memory(graph).to_dict()))
    assert told["arena"] == told["bound"] == 512 and told["align"] == 64
    assert told["peak"]["values"] == [{"name": "a", "bytes": 256}, {"name": "b", "bytes": 256}]
    assert told["steps"][0] == {"node": "node 'a' (test::Opaque)", "live": 256}
    assert [slot["name"] for slot in told["slots"]] == ["a", "b", "c"]
    assert told["slots"][2] | {"offset": 0} == {
        "name": "c", "offset": 0, "bytes": 256, "buffer": 0, "birth": 2, "death": 4, "how": "in-place"
    }  # fmt: skip
    assert told["outside"] == [{"name": "result of node 'copy' (Identity)", "of": "x"}]
    assert told["inputs"] == [{"name": "x", "bytes": 256}] and told["unplanned"] == []
    assert json.loads(json.dumps(plan_memory(Graph()).to_dict()))["peak"] is None
