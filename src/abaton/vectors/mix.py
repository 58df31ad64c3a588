"""One fused pass that exchanges a learner's share of the mix: the cost of a commit, whatever the number of learners."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abaton.kernels.jit import kernel

Total = NDArray[np.int64]


@kernel
def exchange(total: Any, fresh: Any, kept: Any, up: float, down: float, inverse: float, mixed: Any) -> None:
    """Take `down * kept` out of the total, add `up * fresh`, keep `fresh`, and write the mix.

    The total is in whole numbers: taking out a share removes exactly what was added, so the mix does not depend on the
    order of commits and never drifts.
    """
    for i in range(total.size):
        value = total[i] - np.int64(np.rint(down * kept[i])) + np.int64(np.rint(up * fresh[i]))
        total[i] = value
        kept[i] = fresh[i]
        mixed[i] = np.float32(value * inverse)
