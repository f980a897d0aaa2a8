"""The second opinion: onnxruntime itself where it is installed, and a stand-in that errs on purpose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto

from fuse.errors import InputError, UnsupportedError
from fuse.model.load import load
from fuse.proof import peer
from fuse.proof.judge import verify_models
from fuse.runtime.interpret import run
from tests.models import model, node, rand

W = rand(16)


def scaled(w=W):
    return load(model([node("Mul", ["x", "w"], ["t"]), node("Relu", ["t"], ["y"])], {"x": ["n", 16]}, ["y"], {"w": w}))


class StandIn:
    """fuse's own answers times a factor for each file, by the order in which the files are opened."""

    version = "0.0"
    factors: tuple[float, float] = (1.0, 1.0)
    opened = 0

    def __init__(self, m):
        self.model, self.factor = m, StandIn.factors[StandIn.opened]
        StandIn.opened += 1

    def run(self, feeds):
        return {n: v * np.float32(self.factor) for n, v in run(self.model, feeds).items()}


@pytest.fixture
def stand_in(monkeypatch):
    def use(*factors):
        monkeypatch.setattr(StandIn, "factors", factors)
        monkeypatch.setattr(StandIn, "opened", 0)
        monkeypatch.setattr(peer, "Peer", StandIn)
        monkeypatch.setattr(peer, "installed", lambda: True)

    return use


def test_runtimes_that_disagree_are_reported_and_never_blamed_on_the_optimizer(stand_in):
    stand_in(1.01, 1.01)
    found = verify_models(scaled(), scaled())
    assert found.ok and found.onnxruntime == "0.0"
    assert found.disagreements["y"].startswith("differs by ")
    assert "the runtimes disagree on the raw graph already: output 'y' differs by" in found.line()
    assert "agrees" not in found.line()
    assert all(r.runtimes.max_rel == pytest.approx(0.01, rel=0.01) and r.onnxruntime.same_bits for r in found.rows)


def test_runtimes_draw_different_numbers_from_one_seed(stand_in):
    nodes = [node("RandomNormalLike", ["x"], ["r"], seed=1.0), node("Neg", ["x"], ["z"])]
    raw = load(model(nodes, {"x": ["n", 16]}, {"r": ["n", 16], "z": ["n", 16]}))
    stand_in(1.01, 1.01)
    found = verify_models(raw, raw)
    assert found.ok and set(found.disagreements) == {"z"}
    assert [r.runtimes is None for r in found.rows] == [r.output == "r" for r in found.rows]


def test_answers_that_move_on_onnxruntime_alone_are_moved(stand_in):
    stand_in(1.0, 1.01)
    found = verify_models(scaled(), scaled())
    assert found.status == "moved" and "on onnxruntime (it does not on fuse)" in found.reasons[0]
    assert all(r.difference.same_bits for r in found.rows)


def test_rounding_between_runtimes_is_no_disagreement(stand_in):
    stand_in(1 + 2e-7, 1 - 2e-7)
    found = verify_models(scaled(), scaled(), exact="bits")
    assert found.ok and not found.notes and not found.disagreements
    assert "onnxruntime 0.0 agrees on both files" in found.line()


def test_what_onnxruntime_cannot_do_is_a_note_for_the_raw_file_and_a_move_for_the_other(stand_in, monkeypatch):
    def refuse(which):
        def init(self, m):
            self.model, self.factor, number = m, 1.0, StandIn.opened
            StandIn.opened += 1
            if number == which:
                raise UnsupportedError("onnxruntime cannot load the model: no kernel")

        monkeypatch.setattr(StandIn, "__init__", init)

    stand_in(1.0, 1.0)
    refuse(0)
    found = verify_models(scaled(), scaled())
    assert found.ok and found.onnxruntime == "" and StandIn.opened == 1
    assert found.notes == ("no second opinion: onnxruntime cannot load the model: no kernel",)
    stand_in(1.0, 1.0)
    refuse(1)
    found = verify_models(scaled(), scaled())
    assert found.status == "moved" and len(found.reasons) == 1
    assert found.reasons[0].startswith("onnxruntime cannot load the model: no kernel (the optimised one")


def test_feeds_that_onnxruntime_alone_refuses_leave_the_other_sets(stand_in, monkeypatch):
    def answer(self, feeds):
        if len(feeds["x"]) > 1:
            raise UnsupportedError("onnxruntime cannot run the model: one row only")
        return run(self.model, feeds)

    monkeypatch.setattr(StandIn, "run", answer)
    stand_in(1.0, 1.0)
    found = verify_models(scaled(), scaled())
    assert found.ok and found.onnxruntime == "0.0"
    assert [r.onnxruntime is not None for r in found.rows] == [True, False, False, True]
    assert found.notes == ("some input sets have no second opinion: onnxruntime cannot run the model: one row only",)


def foreign(w=W, op="Mystery"):
    """A model with an operator that fuse has no kernel for."""
    nodes = [node(op, ["x"], ["t"], domain="far"), node("Mul", ["t", "w"], ["y"])]
    return load(model(nodes, {"x": [4, 16]}, {"y": [4, 16]}, {"w": w}, domains=["far"]))


def test_onnxruntime_alone_leaves_a_verdict_unproven_or_moved(stand_in, monkeypatch):
    def answer(self, feeds):
        return {"y": feeds["x"] * next(iter(self.model.graph.constants)).array * np.float32(self.factor)}

    monkeypatch.setattr(StandIn, "run", answer)
    stand_in(1.0, 1.0)
    found = verify_models(foreign(), foreign())
    assert found.status == "unproven" and not found.ok
    assert "this runtime has no kernel" in found.line() and "onnxruntime runs both files" in found.line()
    assert all(r.difference is None and r.onnxruntime.same_bits for r in found.rows) and found.rows
    stand_in(1.0, 1.01)
    found = verify_models(foreign(), foreign())
    assert found.status == "moved" and "differs on onnxruntime" in found.line()
    stand_in(1.0, 1 + 1e-5)  # may be rounding: there is no float64 to tell
    assert verify_models(foreign(), foreign()).status == "unproven"


def test_asking_for_what_is_not_installed(monkeypatch):
    monkeypatch.setattr(peer, "installed", lambda: False)
    with pytest.raises(InputError, match="onnxruntime is not installed"):
        verify_models(scaled(), scaled(), onnxruntime=True)
    found = verify_models(scaled(), scaled())
    assert found.ok and found.onnxruntime == "" and all(r.onnxruntime is None for r in found.rows)


# ---- onnxruntime itself


def test_onnxruntime_agrees():
    onnxruntime = pytest.importorskip("onnxruntime")
    found = verify_models(scaled(), scaled(), onnxruntime=True)
    assert found.ok and found.onnxruntime == onnxruntime.__version__
    assert all(r.onnxruntime.same_bits and r.runtimes.max_rel < 1e-6 for r in found.rows)
    wrong = verify_models(scaled(), scaled(W * np.float32(1.001)), onnxruntime=True)
    assert wrong.status == "moved" and all(r.onnxruntime.max_rel > 1e-4 for r in wrong.rows)


def test_onnxruntime_refuses_in_one_line():
    pytest.importorskip("onnxruntime")
    with pytest.raises(UnsupportedError, match="onnxruntime cannot load the model: ") as caught:
        peer.Peer(foreign())
    assert "\n" not in str(caught.value) and "Mystery" in str(caught.value)
    found = verify_models(foreign(), foreign())
    assert found.status == "unproven" and "Mystery" in found.line() and not found.rows
    assert any(n.startswith("no second opinion: onnxruntime cannot load") for n in found.notes)
    session = peer.Peer(scaled())
    with pytest.raises(UnsupportedError, match="onnxruntime cannot run the model: "):
        session.run({"x": np.zeros((2, 3), np.float32)})


def test_floats_that_numpy_lacks():
    pytest.importorskip("onnxruntime")
    kind = TensorProto.FLOAT8E4M3FN
    raw = model(
        [node("Identity", ["x"], ["y"])], {"x": (kind, ["n", 7])}, {"y": (kind, ["n", 7])}, opset=21, ir_version=10
    )
    found = verify_models(load(raw), load(raw), onnxruntime=True)
    assert found.ok and found.onnxruntime and not found.disagreements
    assert all(r.runtimes.same_bits and r.runtimes.max_ulp == 0 for r in found.rows)


def test_models_too_large_for_protobuf_go_through_a_file(monkeypatch):
    pytest.importorskip("onnxruntime")
    w = rand(4096)  # larger than what stays inside a file with external data
    m = load(model([node("Mul", ["x", "w"], ["y"])], {"x": [2, 4096]}, ["y"], {"w": w}))
    monkeypatch.setattr(peer, "DEFAULT", replace(peer.DEFAULT, protobuf_bytes=64))
    monkeypatch.setattr(peer, "to_proto", lambda m: pytest.fail("serialised in memory"))
    x = rand(2, 4096, seed=1)
    assert peer.Peer(m).run({"x": x})["y"].tobytes() == (x * w).tobytes()
