"""If, Loop, Scan and SequenceMap: what they compute, and what can be known before they run."""

from __future__ import annotations

import time

import numpy as np
import pytest
from onnx import parser

from fuse.errors import FuseError, RunError, ShapeError
from fuse.ir.graph import Graph, Output, Value
from fuse.model.load import load
from fuse.ops import Info
from fuse.ops.infer import infer_graph, infer_model
from fuse.runtime.interpret import Interpreter
from tests.ops.cases import check_case, fact, holds, infer, kernel, known, node_cases, typed

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'


@pytest.mark.parametrize(
    "case", [c for c in node_cases("If", "Loop", "Scan", "SequenceMap") if c.id != "test_scan_sum"]
)
def test_onnx_cases(case):
    check_case(case)


def parse(text):
    return load(parser.parse_model(HEAD + text))


def answers(model, *feeds):
    """The outputs for these inputs; what inference says of them is checked on the way."""
    facts = infer_model(model)
    names = [v.name for v in model.graph.inputs]
    got = Interpreter(model).run(dict(zip(names, feeds, strict=True)))
    for slot in model.graph.outputs:
        holds(facts[slot.value], got[slot.name])
    return [got[slot.name] for slot in model.graph.outputs]


def inferred(model, *given):
    """The types of the outputs, as text, from what is given of the inputs."""
    return [str(i.type) for i in infer_graph(model.graph, {}, given or None)]


# ---- If


def branches(then, otherwise):
    return parse(f"""
    g (bool c, float[N, 4] x) => (float[A, B] y) {{
      y = If (c) <then_branch = t () => (float[A, B] u) {{ {then} }},
                  else_branch = e () => (float[A, B] v) {{ {otherwise} }}>
    }}""")


DOUBLE = "u = Add(x, x)"
TURN = "v = Transpose(x)"


def test_if_runs_one_branch_and_reads_from_around_it():
    model = branches(DOUBLE, TURN)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert answers(model, np.array(True), x)[0].tolist() == (x + x).tolist()
    assert answers(model, np.array(False), x)[0].tolist() == x.T.tolist()


def test_if_infers_what_both_branches_share():
    x = typed("n", 4)
    assert inferred(branches(DOUBLE, "v = Neg(x)"), typed(dtype=bool), x) == ["float[n, 4]"]
    assert inferred(branches(DOUBLE, TURN), typed(dtype=bool), x) == ["float[?, ?]"]
    assert inferred(branches(DOUBLE, TURN), fact(np.array(False)), x) == ["float[4, n]"]
    assert inferred(branches(DOUBLE, "v = ReduceSum <keepdims = 0> (x)"), typed(dtype=bool), x) == ["float[...]"]


def test_if_forgives_a_branch_that_cannot_fit():
    """As in exports of torch.squeeze: the branch is guarded by the very size that does not fit."""
    squeeze = "axes = Constant <value_ints = [1]> () u = Squeeze(x, axes)"
    model = branches(squeeze, "v = Identity(x)")
    assert inferred(model, typed(dtype=bool), typed(2, 4)) == ["float[2, 4]"]
    x = np.ones((2, 4), np.float32)
    assert answers(model, np.array(False), x)[0].shape == (2, 4)
    with pytest.raises(RunError, match="cannot squeeze axis 1"):
        answers(model, np.array(True), x)
    with pytest.raises(ShapeError, match="cannot squeeze axis 1"):
        inferred(branches(squeeze, squeeze.replace("u =", "v =")), typed(dtype=bool), typed(2, 4))


def test_if_takes_one_condition():
    graph = Graph()
    assert kernel("If", np.array([True]), then_branch=graph, else_branch=Graph(), run=lambda g, a: [g is graph]) == (
        True,
    )
    with pytest.raises(RunError, match="cond must be one element"):
        kernel("If", np.array([True, True]), then_branch=graph, else_branch=graph, run=lambda g, a: [])
    more = Graph()
    more.add_output("y", more.add_input(Value("x")))
    with pytest.raises(ShapeError, match="then_branch has 1 outputs and else_branch 0"):
        infer("If", [typed(dtype=bool)], then_branch=more, else_branch=graph)


# ---- Loop


def loop(body, m="m", cond="c", carried="float[2] v", scan="float[2] t", results="y, s"):
    return parse(f"""
    g (int64 m, bool c, float[2] x) => (float[2] y, float[K, 2] s) {{
      {results} = Loop ({m}, {cond}, x) <body = b (int64 i, bool go, {carried}) => (bool on, float[2] w, {scan}) {{
        {body}
      }}>
    }}""")


COUNT = """three = Constant <value_int = 3> () one = Constant <value_int = 1> ()
           next = Add(i, one) on = Less(next, three) w = Add(v, v) t = Identity(v)"""
ALWAYS = "on = Identity(go) w = Add(v, v) t = Identity(v)"
X = np.array([1, -1], np.float32)


@pytest.mark.parametrize(
    ("m", "go", "wanted"), [(5, True, 3), (2, True, 2), (0, True, 0), (-1, True, 0), (5, False, 0), (2**62, True, 3)]
)
def test_loop_stops_at_the_count_and_at_the_condition(m, go, wanted):
    y, s = answers(loop(COUNT), np.array(m), np.array(go), X)
    assert y.tolist() == (X * 2**wanted).tolist()
    assert s.dtype == np.float32
    assert s.tolist() == [(X * 2**i).tolist() for i in range(wanted)]
    assert s.shape == (wanted, 2)


@pytest.mark.parametrize(("m", "cond", "trips"), [("m", "", 3), ("", "c", 3), ("", "", 3)])
def test_loop_without_count_or_condition_heeds_the_body(m, cond, trips):
    """The three modes with an absent input, as onnxruntime runs them."""
    s = answers(loop(COUNT, m, cond), np.array(7), np.array(True), X)[1]
    assert s.shape == (trips, 2)


def test_loop_agrees_with_onnxruntime():
    ort = pytest.importorskip("onnxruntime")
    text = (
        HEAD
        + """
    g (int64 m, bool c, float[2] x) => (float[2] y, int64 n, float[K, 2] s, int64[K] t) {
      k = Constant <value = int64 {7}> ()
      y, n, s, t = Loop (m, c, x, k) <body = b (int64 i, bool go, float[2] v, int64 a)
          => (bool on, float[2] w, int64 d, float[2] s1, int64 t1) {
        limit = Constant <value = int64 {30}> ()
        d = Add(a, i) on = Less(d, limit) w = Sub(v, x) s1 = Mul(w, v) t1 = Mul(i, a)
      }>
    }"""
    )
    proto = parser.parse_model(text)
    session = ort.InferenceSession(proto.SerializeToString())
    for m, go in ((0, True), (4, True), (99, True), (3, False)):
        feeds = {"m": np.array(m), "c": np.array(go), "x": X}
        wanted = session.run(None, feeds)
        for got, w in zip(answers(load(proto), *feeds.values()), wanted, strict=True):
            assert got.dtype == w.dtype
            assert got.shape == w.shape or m == 0 or not go  # without a trip onnxruntime knows no dims
            assert got.ravel().tolist() == w.ravel().tolist()


def test_loop_infers_only_what_no_iteration_changes():
    given = typed(dtype=np.int64), typed(dtype=bool), typed(2)
    with pytest.raises(ShapeError, match=r"changes its dtype: float\[2\] becomes double\[2\]"):
        inferred(loop(ALWAYS.replace("Add(v, v)", "Cast <to = 11> (v)")), *given)
    assert inferred(loop(COUNT), *given) == ["float[2]", "float[?, 2]"]
    grows = "on = Identity(go) w = Concat <axis = 0> (v, v) t = Identity(x)"
    assert inferred(loop(grows), *given) == ["float[?]", "float[?, 2]"]
    deeper = "zero = Constant <value_ints = [0]> () on = Identity(go) w = Unsqueeze(v, zero) t = Identity(x)"
    assert inferred(loop(deeper), *given) == ["float[...]", "float[?, 2]"]
    partly = parse("""
    g (int64 m, bool c, float[N, 4] x) => (float[A, B] y) {
      y = Loop (m, c, x) <body = b (int64 i, bool go, float[A, B] v) => (bool on, float[C, D] w) {
        on = Identity(go) w = Concat <axis = 0> (v, x)
      }>
    }""")
    assert inferred(partly, given[0], given[1], typed("n", 4)) == ["float[?, 4]"]


@pytest.mark.parametrize(
    ("m", "go", "trips"),
    [(5, True, "5"), (5, None, "?"), (None, True, "?"), (0, True, "0"), (-4, True, "0"), ("n", True, "n")],
)
def test_loop_knows_its_trips_where_it_cannot_stop_early(m, go, trips):
    count = typed(dtype=np.int64) if m is None else infer("Squeeze", [known(m)])[0]
    cond = typed(dtype=bool) if go is None else fact(np.array(go))
    assert inferred(loop(ALWAYS), count, cond, typed(2)) == ["float[2]", f"float[{trips}, 2]"]
    if go is True:
        assert inferred(loop(ALWAYS, cond=""), count, cond, typed(2)) == ["float[2]", f"float[{trips}, 2]"]
        assert inferred(loop(COUNT), count, cond, typed(2))[1] == "float[?, 2]"


def test_a_loop_that_stops_at_once_has_no_trips():
    given = fact(np.array(5)), fact(np.array(False)), typed(2)
    stop = ALWAYS.replace("Identity(go)", "Constant <value = bool {0}> ()")
    assert inferred(loop(stop), *given)[1] == "float[0, 2]"


def test_loop_without_a_trip_needs_the_type_of_its_scan_output():
    body = Graph()
    for name in ("i", "go"):
        body.add_input(Value(name))
    body.add_output("on", body.inputs[1])
    body.add_output("s", body.inputs[0])
    with pytest.raises(RunError, match="what type a scan output would have is not known"):
        kernel("Loop", np.array(0), None, body=body, run=None)
    body.outputs[1].type = typed("n", 3, dtype=np.int8).type
    (got,) = kernel("Loop", np.array(0), None, body=body, run=None)
    assert (got.dtype, got.shape) == (np.int8, (0, 0, 3))


def test_loop_faults():
    with pytest.raises(ShapeError, match="need a body of 2 inputs and at least 1 outputs; it has 0 and 0"):
        infer("Loop", [None, None], body=Graph())
    changing = loop("on = Identity(go) w = Concat <axis = 0> (v, x) t = Identity(w)")
    with pytest.raises(FuseError, match=r"a scan output changes its shape from \[4\] to \[6\]"):
        answers(changing, np.array(2), np.array(True), X)


def test_a_loop_that_cannot_run_may_be_one_that_never_does():
    wrong = loop(ALWAYS.replace("Add(v, v)", "Concat <axis = 1> (v, v)"))
    assert inferred(wrong, typed(dtype=np.int64), typed(dtype=bool), typed(2)) == ["None", "?[...]"]
    assert answers(wrong, np.array(0), np.array(True), X)[0].tolist() == X.tolist()
    with pytest.raises(RunError, match="axis 1 is out of range for rank 1"):
        answers(wrong, np.array(1), np.array(True), X)


def test_loop_carries_sequences_and_optionals():
    model = parse("""
    g (int64 m, float[2] x) => (float[K, 2] y, int64 n) {
      start = SequenceEmpty ()
      c = Constant <value = bool {1}> ()
      all = Loop (m, c, start) <body = b (int64 i, bool go, seq(float[2]) q) => (bool on, seq(float[2]) r) {
        on = Identity(go) f = Cast <to = 1> (i) e = Mul(x, f) r = SequenceInsert(q, e)
      }>
      y = ConcatFromSequence <axis = 0, new_axis = 1> (all)
      n = SequenceLength(all)
    }""")
    y, n = answers(model, np.array(3), X)
    assert y.tolist() == [[0, 0], [1, -1], [2, -2]]
    assert n.tolist() == 3


def nested(depth, change):
    text = f"w0 = {change}"
    for level in range(depth):
        text = f"""w{level + 1} = Loop (m, c, v{level + 1}) <body = b{level}
            (int64 i{level}, bool g{level}, float[Q] v{level}) => (bool o{level}, float[Q] w{level}) {{
            o{level} = Identity(g{level}) {text} }}>"""
    return parse(f"""g (int64 m, bool c, float[Q] v{depth}) => (float[Q] w{depth}) {{ {text} }}""")


@pytest.mark.parametrize("depth", [1, 3, 8, 30])
def test_inference_of_nested_loops_does_not_multiply(depth):
    """Each turn of a loop would infer the loops inside it anew: 2 to the 30th without a bound."""
    model = nested(depth, "Concat <axis = 0> (v0, v0)")
    before = time.process_time()
    (kind,) = inferred(model, typed(dtype=np.int64), typed(dtype=bool), typed(3))
    assert kind == ("float[?]" if depth < 4 else "float[...]")
    assert time.process_time() - before < 5
    if depth == 3:
        assert answers(model, np.array(1), np.array(True), np.ones(3, np.float32))[0].size == 6
    same = nested(depth, "Neg (v0)")
    (kind,) = inferred(same, typed(dtype=np.int64), typed(dtype=bool), typed(3))
    assert kind == ("float[3]" if depth < 4 else "float[...]")


# ---- Scan


def scan(attrs="", init="float[2] h0", x="float[T, 2] x"):
    return parse(f"""
    g ({init}, {x}) => (float[2] h, float[A, B] y) {{
      h, y = Scan <num_scan_inputs = 1, {attrs} body = b (float[2] a, float[2] e) => (float[2] d, float[2] z) {{
        d = Add(a, e) z = Mul(d, e)
      }}> (h0, x)
    }}""")


def by_hand(h, rows):
    outs = []
    for row in rows:
        h = h + row
        outs.append(h * row)
    return h, outs


@pytest.mark.parametrize("backward", [0, 1])
@pytest.mark.parametrize("prepend", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("out", [0, 1, -2])
def test_scan_axes_and_directions(backward, prepend, axis, out):
    model = scan(
        f"scan_input_axes = [{axis}], scan_input_directions = [{backward}], "
        f"scan_output_axes = [{out}], scan_output_directions = [{prepend}],",
        x="float[R, S] x",
    )
    rows = np.arange(6, dtype=np.float32).reshape(3, 2) - 2
    h, outs = by_hand(X, rows[::-1] if backward else rows)
    y = np.stack(outs[::-1] if prepend else outs, axis=out)
    got = answers(model, X, rows if axis == 0 else rows.T)
    assert got[0].tolist() == h.tolist()
    assert got[1].tolist() == y.tolist()
    x = typed("n", 2) if axis == 0 else typed(2, "n")
    assert inferred(model, typed(2), x) == ["float[2]", "float[2, n]" if out == 1 else "float[n, 2]"]


def test_scan_over_nothing():
    h, y = answers(scan(), X, np.zeros((0, 2), np.float32))
    assert h.tolist() == X.tolist()
    assert (y.dtype, y.shape) == (np.float32, (0, 2))
    turned = answers(scan("scan_output_axes = [1],"), X, np.zeros((0, 2), np.float32))[1]
    assert turned.shape == (2, 0)


def test_scan_faults():
    with pytest.raises(FuseError, match="scan input axis 2 is out of range for rank 2"):
        inferred(scan("scan_input_axes = [2],"), typed(2), typed(3, 2))
    with pytest.raises(FuseError, match="scan_output_axes has 2 entries, needed are 1"):
        inferred(scan("scan_output_axes = [0, 0],"), typed(2), typed(3, 2))
    two = parse("""
    g (float[A] x, float[B] z) => (float[C] y) {
      y = Scan <num_scan_inputs = 2, body = b (float p, float q) => (float r) { r = Add(p, q) }> (x, z)
    }""")
    assert answers(two, X, X)[0].tolist() == [2, -2]
    assert inferred(two, typed("n"), typed(5)) == ["float[5]"]
    with pytest.raises(FuseError, match=r"different lengths: \[2, 3\]"):
        Interpreter(two).run({"x": X, "z": np.ones(3, np.float32)})
    with pytest.raises(FuseError, match=r"different lengths: \[2, 3\]"):
        inferred(two, typed(2), typed(3))
    with pytest.raises(ShapeError, match="num_scan_inputs is 2 and there are 1 inputs"):
        infer("Scan", [typed(2)], num_scan_inputs=2, body=Graph())


@pytest.mark.parametrize("backward", [0, 1])
@pytest.mark.parametrize("lengths", [None, (3, 1), (0, 2)])
def test_scan_of_opset_8_has_a_batch(backward, lengths):
    name = "lens" if lengths else ""
    text = f"""<ir_version: 3, opset_import: ["" : 8]>
    g (int64[2] lens, float[2, 2] h0, float[2, 3, 2] x) => (float[2, 2] h, float[2, 3, 2] y) {{
      h, y = Scan <num_scan_inputs = 1, directions = [{backward}],
                   body = b (float[2] a, float[2] e) => (float[2] d, float[2] z) {{
        d = Add(a, e) z = Mul(d, e)
      }}> ({name}, h0, x)
    }}"""
    model = load(parser.parse_model(text))
    x = np.arange(12, dtype=np.float32).reshape(2, 3, 2) - 3
    start = np.stack([X, X * 3])
    sizes = lengths or (3, 3)
    wanted = [
        by_hand(h, x[b, :n][::-1] if backward else x[b, :n]) for b, (h, n) in enumerate(zip(start, sizes, strict=True))
    ]
    h, y = answers(model, np.array(sizes), start, x)
    assert h.tolist() == [w[0].tolist() for w in wanted]
    for b, n in enumerate(sizes):
        assert y[b, :n].tolist() == [o.tolist() for o in wanted[b][1]]
        assert not y[b, n:].any()
    if lengths:
        with pytest.raises(FuseError, match=r"sequence_lens \[4, 1\] do not fit 2 sequences of 3"):
            answers(model, np.array([4, 1]), start, x)


# ---- SequenceMap


def test_sequence_map():
    body = Graph()
    a, b = body.add_input(Value("a")), body.add_input(Value("b"))
    body.outputs += [Output("p", a), Output("q", b)]

    def run(graph, arguments):
        return [arguments[0] + arguments[1], arguments[1]]

    total, second = kernel("SequenceMap", [X, X * 2], X, body=body, run=run)
    assert [t.tolist() for t in total] == [[2, -2], [3, -3]]
    assert len(second) == 2
    assert kernel("SequenceMap", [], X, body=body, run=run) == ([], [])
    with pytest.raises(RunError, match="different lengths"):
        kernel("SequenceMap", [X], [X, X], body=body, run=run)
    given = infer("SequenceConstruct", [typed("n")])[0]
    types = infer("SequenceMap", [given, typed(2)], 2, lambda g, infos: [Info(i.type) for i in infos], body=body)
    assert [str(i.type) for i in types] == ["seq(float[n])", "seq(float[2])"]
