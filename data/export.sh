#!/usr/bin/env bash
# Makes the embedded models again, with the real torch and torchvision, into the directory given (default: here).
#
#   pip install ".[export]"
#   data/export.sh [directory]
#
# For each model NAME: NAME_torch.onnx has torch's own initial weights, NAME.onnx is the embedded file.
# What may differ from the one in fuse/zoo with another version of torch: its version number, and labels.
set -euo pipefail

out="${1:-$(dirname "$0")}"
mkdir -p "$out"

if ! command -v fuse > /dev/null || ! python -c 'import torch, torchvision' 2> /dev/null; then
  echo 'data/export.sh: fuse, torch or torchvision is missing: pip install ".[export]"' >&2
  exit 2
fi

for name in resnet18 mlp; do
  fuse export "$name" -o "$out/${name}_torch.onnx"
  fuse strip --trained "$out/${name}_torch.onnx" -o "$out/$name.onnx"
done
