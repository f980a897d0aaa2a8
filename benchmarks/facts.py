"""The machine that figures hold for: its processor, and the libraries that do the work."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from fuse.report.measure import has_onnxruntime


def machine() -> dict[str, Any]:
    """What the figures hold for: the processor, and the libraries that do the work."""
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": blas(),
        "onnx": metadata.version("onnx"),
        "onnxruntime": metadata.version("onnxruntime") if has_onnxruntime() else None,
    }


def cpu_name() -> str:
    """The processor as the system calls it; where the system does not say, its architecture."""
    try:
        if sys.platform == "linux":
            for line in Path("/proc/cpuinfo").read_text().splitlines():
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
        elif sys.platform == "darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        pass
    return platform.processor() or platform.machine()


def blas() -> dict[str, Any] | None:
    """The BLAS that NumPy multiplies with: name, version, kernels, and the threads that it takes by default."""
    found = [entry for entry in threadpool_info() if entry["user_api"] == "blas"]
    found.sort(key=lambda entry: "numpy" not in entry["filepath"])
    if not found:
        return None
    first = found[0]
    return {
        "name": first["internal_api"],
        "version": first["version"],
        "architecture": first.get("architecture"),
        "threads": first["num_threads"],
    }
