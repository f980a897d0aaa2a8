"""What every test shares: one BLAS thread a worker, since the workers already take all cores."""

from __future__ import annotations

import os

# Read when NumPy is first imported, which is after this. Two workers with two spinning threads each on two cores make
# matrix products ten times slower.
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

from hypothesis import settings  # noqa: E402  (after the environment is set: plugins may import NumPy)

# The same examples every time: a test that fails must fail again.
settings.register_profile("fuse", derandomize=True, deadline=None, database=None)
settings.load_profile("fuse")
