"""What fuse does not understand is carried: fields of versions to come, documentation, metadata, bytes in strings."""

from __future__ import annotations

from typing import Any

from onnx import ModelProto

from fuse.model.load import load
from fuse.model.save import to_proto
from tests.model.protos import RELU, model, node, raw, rich


def unknown(message: Any, number: int = 1000) -> None:
    """Add a field that this version of the format does not have."""
    tag = [number << 3 | 2 & 0x7F]
    encoded = b""
    for part in tag:
        while part > 127:
            encoded += bytes([part & 127 | 128])
            part >>= 7
        encoded += bytes([part])
    message.MergeFromString(encoded + b"\x03new")


def everything_unknown() -> ModelProto:
    proto = rich()
    body, f = proto.graph, proto.functions[0]
    branch = body.node[1].attribute[0].g
    for message in (
        proto, body, body.node[0], body.node[1], body.node[3], body.node[0].attribute[0], body.node[0].attribute[0].t,
        body.input[0], body.output[0], body.initializer[0], body.value_info[0], branch, branch.node[0],
        branch.output[0], f, f.node[0], f.node[0].attribute[0], proto.metadata_props[0],
    ):  # fmt: skip
        unknown(message)
    return proto


def test_unknown_fields_survive() -> None:
    """Fields of a version to come, in every message, with every type of encoding."""
    proto = everything_unknown()
    count = proto.SerializeToString().count(b"\x03new")
    assert count == 18
    assert to_proto(load(proto.SerializeToString())).SerializeToString().count(b"\x03new") == count
    encodings = {
        "varint": b"\xc0\x3e\x96\x01", "fixed64": b"\xc1\x3e" + b"12345678", "fixed32": b"\xc5\x3e" + b"1234",
        "negative varint": b"\xc0\x3e" + b"\xff" * 9 + b"\x01", "group": b"\xc3\x3e\x08\x01\xc4\x3e",
    }  # fmt: skip
    for encoded in encodings.values():
        other = ModelProto.FromString(RELU.SerializeToString())
        other.graph.node[0].MergeFromString(encoded)
        assert encoded in to_proto(load(other)).SerializeToString()


def test_documentation_and_metadata_survive_everywhere() -> None:
    proto = rich()
    body, f = proto.graph, proto.functions[0]
    places = [
        proto, body, body.node[0], body.node[1], body.node[0].attribute[0].t, body.input[0], body.output[0],
        body.initializer[0], body.value_info[0], f, f.node[0], body.node[1].attribute[0].g,
    ]  # fmt: skip
    for index, message in enumerate(places):
        message.doc_string = f"doc {index}"
        message.metadata_props.add(key=f"key {index}", value="v")
    body.node[2].attribute[0].doc_string = "doc of an attribute"
    body.node[0].attribute[0].doc_string = "doc of a constant's"
    body.quantization_annotation.add(tensor_name="w").quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="m")
    proto.training_info.add().initialization.name = "init"
    proto.configuration.add(name="two devices", num_devices=2)
    body.node[1].device_configurations.add(configuration_id="two devices", pipeline_stage=1)
    before, after = proto.SerializeToString(), to_proto(load(proto)).SerializeToString()
    for text in [f"doc {i}" for i in range(len(places))] + [f"key {i}" for i in range(len(places))]:
        assert after.count(text.encode()) == before.count(text.encode()) > 0, text
    for text in (b"doc of an attribute", b"doc of a constant's", b"SCALE_TENSOR", b"init", b"two devices"):
        assert after.count(text) == before.count(text), text


def test_a_field_given_twice_is_merged_as_protobuf_does() -> None:
    data = RELU.SerializeToString() + ModelProto(producer_name="second").SerializeToString()
    assert to_proto(load(data)).producer_name == "second"


def test_strings_that_are_no_text_are_kept() -> None:
    proto = model([node("op", ["x"], ["y"], domain="own", s=b"\xff\xfe", many=[b"\xfd", b"ok"])], domains=["own"])
    proto.doc_string = "ddd"
    data = raw(proto, "ddd", b"\xff\xfe\xfd")
    again = to_proto(load(data))
    assert {a.name: a.s or list(a.strings) for a in again.graph.node[0].attribute} == {
        "s": b"\xff\xfe", "many": [b"\xfd", b"ok"],
    }  # fmt: skip
    assert b"\xff\xfe\xfd" in again.SerializeToString()
