"""Honest statistics for accuracies."""

import math
from statistics import NormalDist


def wilson_interval(correct: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for the proportion `correct / total`: two fractions in [0, 1]."""
    if not 0 <= correct <= total or total < 1:
        raise ValueError(f"expected 0 <= correct <= total and total >= 1, found {correct} of {total}")
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = correct / total
    centre = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
