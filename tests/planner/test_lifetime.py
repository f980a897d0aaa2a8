"""Lives and shared buffers of small graphs, worked out by hand."""

import numpy as np
import pytest

import fuse.ops.elementwise
import fuse.ops.move  # noqa: F401
from fuse.ir.dims import Symbolic
from fuse.ir.dtypes import BY_NAME
from fuse.ir.graph import Attr, Graph, Node, Value
from fuse.ir.types import SequenceType, TensorType
from fuse.planner.lifetime import MOST_BYTES, analyse, intervals, size_of

F4 = TensorType(BY_NAME["float"], (4,))
N = Symbolic.of("n")


class Net:
    """A graph under construction whose values have types from the start."""

    def __init__(self, type=F4):
        self.graph, self.type = Graph("main"), type

    def input(self, name="x", type=None):
        return self.graph.add_input(Value(name, type or self.type))

    def node(self, op, *inputs, type=None, name=None, outputs=1, subs=()):
        name = name or f"v{len(self.graph)}"
        made = [Value(name if i == 0 else f"{name}.{i}", type or self.type) for i in range(outputs)]
        attrs = {f"sub{i}": Attr("GRAPH", sub) for i, sub in enumerate(subs)}
        self.graph.append(Node(op, inputs, made, attrs, name=name))
        return made[0] if outputs == 1 else made

    def output(self, *values):
        for value in values:
            self.graph.add_output(f"out{len(self.graph.outputs)}", value)

    def find(self, **options):
        values = list(self.graph.inputs) + [v for node in self.graph.nodes for v in node.outputs if v is not None]
        return analyse(self.graph, {v: v.type for v in values}, options.pop("sizes", {}), **options)


def shared(found):
    """The buffers as lists of names."""
    return [[v.name for v in b.values] for b in found.buffers]


# ---- sizes


@pytest.mark.parametrize(
    ("dtype", "shape", "sizes", "bytes"),
    [
        ("float", (2, 3), {}, 24),
        ("double", (), {}, 8),
        ("bool", (5,), {}, 5),
        ("float16", (1, 1), {}, 2),
        ("complex128", (2,), {}, 32),
        ("int4", (3,), {}, 3),  # a byte an element in memory, packed only in files
        ("float", (0, 7), {}, 0),
        ("float", (0, N), {}, 0),
        ("float", (0, None), {}, 0),
        ("float", (N, 3), {"n": 5}, 60),
        ("float", (N, 3), {"n": 0}, 0),
        ("int64", (N * N + 1,), {"n": 3}, 80),
    ],
)
def test_size(dtype, shape, sizes, bytes):
    assert size_of(TensorType(BY_NAME[dtype], shape), sizes) == bytes


@pytest.mark.parametrize(
    ("type", "sizes", "why"),
    [
        (None, {}, "type is unknown"),
        (TensorType(None, (3,)), {}, "dtype is unknown"),
        (TensorType(BY_NAME["float"]), {}, "rank is unknown"),
        (TensorType(BY_NAME["float"], (N, 3)), {"m": 1}, "'float[n, 3]' has a dim of unknown size"),
        (TensorType(BY_NAME["float"], (2, None)), {}, "'float[2, ?]' has a dim of unknown size"),
        (TensorType(BY_NAME["float"], (N - 9,)), {"n": 4}, "negative"),
        (TensorType(BY_NAME["float"], (0, N - 9)), {"n": 4}, "negative"),
        (TensorType(BY_NAME["string"], (3,)), {}, "strings"),
        (SequenceType(F4), {}, "seq(float[4])"),
        (TensorType(BY_NAME["float"], (N, N)), {"n": 10**9}, "more than any memory"),
    ],
)
def test_unknown_sizes_say_why(type, sizes, why):
    answer = size_of(type, sizes)
    assert isinstance(answer, str) and why in answer


def test_the_largest_size_is_a_number():
    assert size_of(TensorType(BY_NAME["uint8"], (MOST_BYTES,)), {}) == MOST_BYTES
    assert isinstance(size_of(TensorType(BY_NAME["uint8"], (MOST_BYTES + 1,)), {}), str)


# ---- lives


def test_lives_in_a_small_net():
    net = Net()
    x = net.input()
    a = net.node("Relu", x)  # 0
    b = net.node("Sigmoid", a)  # 1
    dead = net.node("Relu", a)  # 2
    c = net.node("Add", a, b)  # 3
    d = net.node("Add", c, c)  # 4
    net.output(b, d, d)
    lives = intervals(net.graph)
    assert lives == {x: (0, 0), a: (0, 3), b: (1, 5), dead: (2, 2), c: (3, 4), d: (4, 5)}


def test_an_unread_input_and_an_input_that_is_an_output():
    net = Net()
    x, y = net.input("x"), net.input("y")
    net.node("Relu", x)
    net.output(y)
    assert intervals(net.graph)[y] == (0, 1)
    assert intervals(Graph()) == {}


def test_what_subgraphs_read_lives_until_the_node_that_holds_them():
    net = Net()
    x = net.input()
    direct, deep, shown = net.node("Relu", x), net.node("Relu", x), net.node("Relu", x)
    inner, outer = Graph("inner"), Graph("outer")
    r = Value("r", F4)
    inner.append(Node("Relu", [deep], [r]))
    inner.add_output("r", r)
    s = Value("s", F4)
    outer.append(Node("If", [direct], [s], {"then_branch": Attr("GRAPH", inner)}))
    outer.add_output("s", s)
    outer.add_output("t", shown)
    net.node("Relu", x)  # 3
    result = net.node("If", x, subs=[outer])  # 4
    net.node("Relu", x)  # 5
    net.output(result)
    found = net.find()
    assert [tuple(found.lives[v]) for v in (direct, deep, shown)] == [(0, 4), (1, 4), (2, 4)]
    assert found.unplanned == {result: "it is a result of control flow, made while a subgraph runs"}
    assert s not in found.lives and r not in found.lives


# ---- views


def test_a_view_and_its_source_are_one_buffer():
    net = Net()
    a = net.node("Relu", net.input())  # 0
    b = net.node("Identity", a)  # 1
    c = net.node("Flatten", b, type=TensorType(BY_NAME["float"], (1, 4)))  # 2
    net.node("Sigmoid", c, name="d")  # 3
    net.output(a)
    found = net.find()
    assert shared(found) == [["v0", "v1", "v2"], ["d"]]  # a is an output, so that d cannot be written over it
    assert (found.buffers[0].birth, found.buffers[0].death, found.buffers[0].bytes) == (0, 4, 16)
    assert found.how == {a: "own", b: "alias", c: "alias", net.graph._last.out: "own"}


def test_a_view_of_what_the_caller_owns_has_no_buffer_and_is_never_written():
    net = Net()
    x, w = net.input(), net.graph.add_const(np.zeros(4, np.float32), "w")
    a, b = net.node("Identity", x), net.node("Identity", w)
    c = net.node("Identity", a)
    d, e = net.node("Relu", c), net.node("Relu", b)
    net.output(c)
    found = net.find()
    assert found.outside == {a: x, b: w, c: x}
    assert found.how == {d: "own", e: "own"}


def test_a_view_of_an_unplanned_value_is_unplanned():
    net = Net()
    a = net.node("Mystery", net.input(), type=TensorType(BY_NAME["float"]))
    b = net.node("Identity", a)
    found = net.find()
    assert found.unplanned == {a: "its rank is unknown", b: "it is a view of 'v0', which has no place either"}
    assert found.buffers == ()


def test_a_view_of_unknown_shape_has_the_bytes_of_its_source():
    net = Net()
    a = net.node("Relu", net.input())
    b = net.node("Reshape", a, type=TensorType(BY_NAME["float"]))
    found = net.find()
    assert found.bytes == {a: 16, b: 16} and shared(found) == [["v0", "v1"]]


@pytest.mark.parametrize("type", [TensorType(BY_NAME["float"], (5,)), TensorType(BY_NAME["int32"], (4,))])
def test_a_view_that_contradicts_its_source_gets_its_own_buffer(type):
    net = Net()
    a = net.node("Mystery", net.input())
    net.node("Identity", a, type=type)
    assert shared(net.find()) == [["v0"], ["v1"]]


# ---- in place


def test_a_chain_of_activations_stays_in_one_buffer():
    net = Net()
    a = net.node("Mystery", net.input())
    b = net.node("Relu", a)
    c = net.node("Flatten", b, type=TensorType(BY_NAME["float"], (1, 4)))
    d = net.node("Sigmoid", c, type=c.type)
    net.output(d)
    found = net.find()
    assert shared(found) == [["v0", "v1", "v2", "v3"]]
    assert [found.how[v] for v in (a, b, c, d)] == ["own", "in-place", "alias", "in-place"]
    assert [len(b.values) for b in found.views] == [1, 2, 1]


def test_the_same_value_twice_may_be_written_over():
    net = Net()
    a = net.node("Mystery", net.input())
    net.output(net.node("Add", a, a))
    assert shared(net.find()) == [["v0", "v1"]]


def test_the_first_input_that_dies_is_taken():
    net = Net()
    a, b = net.node("Mystery", net.input()), net.node("Mystery", net.graph.inputs[0])
    c = net.node("Add", a, b)
    net.output(c, a)
    assert shared(net.find()) == [["v0"], ["v1", "v2"]]


def _refused(build):
    """The buffers of a graph in which the last node may not write over its input 'a'."""
    net = Net()
    x = net.input()
    build(net, x)
    found = net.find()
    assert found.how[net.graph._last.out] == "own", shared(found)


def test_no_writing_over_an_input_of_the_graph():
    _refused(lambda net, x: net.node("Relu", x))


def test_no_writing_over_a_constant():
    _refused(lambda net, x: net.node("Relu", net.graph.add_const(np.zeros(4, np.float32))))


def test_no_writing_over_an_output():
    def build(net, x):
        a = net.node("Mystery", x)
        net.output(a)
        net.node("Relu", a)

    _refused(build)


def test_no_writing_over_a_value_whose_view_is_an_output():
    def build(net, x):
        a = net.node("Mystery", x)
        net.output(net.node("Identity", a))
        net.node("Relu", a)

    _refused(build)


def test_no_writing_over_a_value_whose_view_is_made_later():
    net = Net()
    a = net.node("Mystery", net.input())
    relu = net.node("Relu", a)
    late = net.node("Identity", a)
    net.output(relu, late)
    found = net.find()
    assert found.how[relu] == "own" and found.how[late] == "alias"


def test_no_writing_over_another_dtype_or_size():
    def build_dtype(net, x):
        net.node("Cast", net.node("Mystery", x), type=TensorType(BY_NAME["int32"], (4,)))

    def build_size(net, x):
        net.node("Cast", net.node("Mystery", x), type=TensorType(BY_NAME["float16"], (4,)))

    _refused(build_dtype)
    _refused(build_size)


def test_no_writing_over_a_broadcast_input():
    def build(net, x):
        net.node("Add", net.node("Mystery", x), x, type=TensorType(BY_NAME["float"], (4, 4)))

    _refused(build)


def test_no_writing_over_an_input_that_the_node_also_reads_broadcast():
    # The fused node reads 'a' once element by element and once as a whole; only the first may be written over.
    net = Net()
    x = net.input()
    a, b = net.node("Mystery", x), net.node("Mystery", x)
    both = net.node("test::MatMulAdd", a, b, a)
    assert net.find(in_place=lambda node, index: index == 2).how[both] == "own"
    only = net.node("test::MatMulAdd", b, b, both)
    found = net.find(in_place=lambda node, index: node.op == "test::MatMulAdd" and index == 2)
    assert found.how[only] == "in-place" and shared(found)[-1] == ["v2", "v3"]


def test_no_writing_by_a_node_with_two_outputs_or_with_subgraphs():
    net = Net()
    x = net.input()
    two = net.node("test::Pair", net.node("Mystery", x), outputs=2)
    sub = Graph("sub")
    branch = net.node("test::Each", net.node("Mystery", x), subs=[sub])
    found = net.find(in_place=lambda node, index: True)
    assert [found.how[v] for v in two] == ["own", "own"]
    assert branch in found.unplanned


def test_a_second_output_is_no_view_and_an_absent_one_is_nothing():
    net = Net()
    a = net.node("Mystery", net.input())
    b, c = Value("b", F4), Value("c", F4)
    net.graph.append(Node("Identity", [a], [b, c]))
    net.graph.append(Node("Relu", [a, None], [None, Value("d", F4)]))
    net.output(b)
    assert shared(net.find()) == [["v0", "b"], ["c"], ["d"]]


def test_a_call_of_a_local_function_is_opaque():
    net = Net()
    a = net.node("Mystery", net.input())
    b = net.node("Identity", a)
    net.node("Relu", b)
    found = net.find(calls={("Identity", ""), ("Relu", "")})
    assert set(found.how.values()) == {"own"}


def test_an_elementwise_node_with_many_dying_inputs():
    net = Net()
    x = net.input()
    parts = [net.node("Mystery", x, type=TensorType(BY_NAME["float"], (1,))) for _ in range(3000)]
    last = net.node("Sum", *parts, *parts)
    found = net.find()
    assert found.how[last] == "own" and len(found.buffers) == 3001


# ---- graph inputs


def test_counted_inputs_have_buffers_that_are_never_written_over():
    net = Net()
    x, y = net.input("x"), net.input("y")
    a = net.node("Identity", x)  # 0
    b = net.node("Relu", a)  # 1
    net.output(b)
    found = net.find(count_inputs=True)
    assert shared(found) == [["x", "v0"], ["y"], ["v1"]]
    assert [(buffer.birth, buffer.death) for buffer in found.buffers] == [(0, 1), (0, 0), (1, 2)]
    assert found.how == {x: "own", y: "own", a: "alias", b: "own"}


def test_a_view_of_a_counted_input_of_unknown_size_still_belongs_to_the_caller():
    net = Net()
    x = net.input(type=TensorType(BY_NAME["float"], (N,)))
    a = net.node("Identity", x, type=x.type)
    found = net.find(count_inputs=True)
    assert found.outside == {a: x} and list(found.unplanned) == [x]
    assert net.find(count_inputs=True, sizes={"n": 2}).bytes == {x: 8, a: 8}


def test_no_steps_no_buffers():
    net = Net()
    net.output(net.input())
    found = net.find(count_inputs=True)
    assert found.buffers == () and found.nodes == () and found.bytes == {}


# ---- size


def test_long_chains_are_near_linear():
    net = Net()
    value = net.input()
    for i in range(20_000):
        value = net.node(("Relu", "Identity", "Neg")[i % 3], value, name="")
    net.output(value)
    found = net.find()
    assert len(found.buffers) == 1 and len(found.buffers[0].values) == 20_000
