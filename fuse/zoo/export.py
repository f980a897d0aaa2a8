"""Export: a model of torchvision, as PyTorch's TorchScript exporter writes it with its own clean-up off.

This is what a compiler meets in the wild: parameters shared through chains of Identity, BatchNormalization beside each
convolution, nothing folded.  The weights are torch's own initial ones, from a fixed seed.  Torch is an extra, and is
imported when a model is asked for.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuse.errors import InputError, quote

#: The seed of the initial weights.
SEED = 0

#: What the TorchScript exporter writes: it was frozen at 20, and below 7 it writes operators of later sets.
OPSETS = range(7, 21)


@dataclass(frozen=True, slots=True)
class Source:
    """A torch module in inference mode, the shape of its input, and the name of the batch dim where that is free."""

    module: Any
    shape: tuple[int, ...]
    batch: str | None = None


def export(name: str, out: str | os.PathLike[str], *, opset: int | None = None) -> Path:
    """Write the ONNX file of model ``name`` to ``out``: ``mlp``, or any classifier of ``torchvision.models``.

    The input is called ``input``, the output ``output``, both float32.  ``opset`` is the exporter's default where None.
    Raises ``InputError`` where torch is missing, the name or the operator set unknown, or the file cannot be written.
    """
    if opset is not None and opset not in OPSETS:
        hint = f"the exporter writes operator sets {OPSETS[0]} to {OPSETS[-1]}"
        raise InputError(f"operator set {opset} cannot be exported", hint=hint)
    torch, torchvision = _extra("torch"), _extra("torchvision")
    target = Path(out)
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter calls itself deprecated, at length
        torch.manual_seed(SEED)
        source = _source(name, torch, torchvision)
        try:
            handle, scratch = tempfile.mkstemp(prefix=".fuse-", suffix=".onnx", dir=target.parent)
            os.close(handle)
        except OSError as error:
            raise InputError(error.strerror or str(error), where=quote(target)[1:-1]) from None
        try:
            _write(torch, source, scratch, opset)
            os.chmod(scratch, 0o644)
            os.replace(scratch, target)
        except OSError as error:
            raise InputError(error.strerror or str(error), where=quote(target)[1:-1]) from None
        except (RuntimeError, ValueError) as error:  # what the exporter's own errors are derived from
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise InputError(f"torch cannot export {quote(name)}: {quote(reason, 200)[1:-1]}") from None
        finally:
            Path(scratch).unlink(missing_ok=True)
    return target


def _write(torch: Any, source: Source, scratch: str, opset: int | None) -> None:
    axes = None if source.batch is None else {"input": {0: source.batch}, "output": {0: source.batch}}
    torch.onnx.export(
        source.module,
        (torch.zeros(source.shape),),
        scratch,
        dynamo=False,
        do_constant_folding=False,
        training=torch.onnx.TrainingMode.PRESERVE,
        input_names=["input"],
        output_names=["output"],
        dynamic_axes=axes,
        opset_version=opset,
    )


def _extra(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        hint = 'pip install "fuse-onnx[export]"'
        raise InputError(f"exporting needs {package}, which is not installed", hint=hint) from None


def _source(name: str, torch: Any, torchvision: Any) -> Source:
    if name in _OWN:
        return _OWN[name](torch.nn)
    models = torchvision.models
    known = models.list_models(module=models)
    if name not in known:
        hint = f"choose {', '.join(sorted(_OWN))} or one of torchvision's {len(known)} classifiers, such as resnet18"
        raise InputError(f"no model is named {quote(name)}", hint=hint)
    side = 224
    for weights in models.get_model_weights(name):  # published weights say what size they take; none is downloaded
        side = weights.transforms().crop_size[0]
        break
    return Source(models.get_model(name, weights=None).eval(), (1, 3, side, side))


def _mlp(nn: Any) -> Source:
    """A classifier of four measurements into three kinds, with one of each layer that a multilayer perceptron has."""
    layers = [nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3), nn.Softmax(dim=-1)]
    return Source(nn.Sequential(*layers).eval(), (1, 4), batch="batch")


_OWN: dict[str, Callable[[Any], Source]] = {"mlp": _mlp}
