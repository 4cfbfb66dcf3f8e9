"""Losses at the output head in tiles against the table of all logits: time and peak memory, weight gradient included.

Width 256, 151,936 words; KL with entropy and max log-prob. Times are those of 256 rows; memory is what 1,024 rows need
in a process of their own beyond the inputs, which both sides have in common.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.harness import Result, ratio
from forkleft.objective.head import TeacherRows, head_rows

WIDTH, WORDS = 256, 151_936
TIMED_ROWS, HELD_ROWS = 256, 1024
# As many as a Qwen head has behind its last token, and the mask.
EXCLUDED = 267
THREADS = 1


class Case:
    """The inputs, and the two ways to the same numbers. Each returns them after a backward."""

    def __init__(self, rows: int) -> None:
        generator = torch.Generator().manual_seed(0)
        shapes = {"hidden": (rows, WIDTH), "weight": (WORDS, WIDTH)}

        def draw() -> dict[str, torch.Tensor]:
            return {name: torch.randn(shape, generator=generator).mul_(0.2) for name, shape in shapes.items()}

        self.student, self.teacher = draw(), draw()
        for tensor in self.student.values():
            tensor.requires_grad_()
        self.excluded_V = torch.arange(WORDS) >= WORDS - EXCLUDED
        self.targets_S = torch.randint(0, WORDS - EXCLUDED, (rows,), generator=generator)

    def ours(self) -> dict[str, torch.Tensor]:
        """In tiles."""
        teacher = TeacherRows(self.teacher["hidden"], self.teacher["weight"])
        rows = head_rows(
            self.student["hidden"], self.student["weight"], self.targets_S, self.excluded_V, teacher=teacher
        )
        return self._backward(rows.kl_K, rows.entropy_S, rows.confidence_S)

    def full(self) -> dict[str, torch.Tensor]:
        """The plain way, with all logits in memory."""
        excluded = self.excluded_V.nonzero().flatten()
        logits_SV = self.student["hidden"] @ self.student["weight"].T
        logp_SV = logits_SV.index_fill(-1, excluded, float("-inf")).log_softmax(-1)
        with torch.no_grad():
            logits_SV = self.teacher["hidden"] @ self.teacher["weight"].T
            log_t_SV = logits_SV.index_fill_(-1, excluded, float("-inf")).log_softmax(-1)
            t_SV = log_t_SV.exp()
            entropy_S = -(logp_SV.exp() * logp_SV).index_fill_(-1, excluded, 0.0).sum(-1)
        kl_S = (t_SV * (log_t_SV - logp_SV)).index_fill(-1, excluded, 0.0).sum(-1)
        return self._backward(kl_S, entropy_S, logp_SV.amax(-1))

    def _backward(
        self, kl_S: torch.Tensor, entropy_S: torch.Tensor, confidence_S: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        for tensor in self.student.values():
            tensor.grad = None
        (kl_S.mean() + 0.1 * confidence_S.mean()).backward()
        return {
            "kl": kl_S.detach(),
            "entropy": entropy_S,
            "max log-prob": confidence_S.detach(),
            "hidden gradient": self.student["hidden"].grad,
            "weight gradient": self.student["weight"].grad,
        }

    def bare_products(self) -> None:
        """The matrix products that cannot be avoided: logits of both models, and two in the backward."""
        for start in range(0, len(self.targets_S), 64):
            part = slice(start, start + 64)
            with torch.no_grad():
                logits_CV = self.student["hidden"][part] @ self.student["weight"].T
                _ = self.teacher["hidden"][part] @ self.teacher["weight"].T
                _ = logits_CV @ self.student["weight"]
                _ = logits_CV.T @ self.student["hidden"][part]


def run() -> list[Result]:
    """The loss row of the table."""
    case = Case(TIMED_ROWS)
    memory = {side: _peak(side) for side in ("ours", "full")}
    share = memory["ours"] / memory["full"]
    return [
        Result("loss: peak memory, ours / full logits", share, "<= 0.125", (share, share)),
        ratio("loss: time, ours / full logits", case.ours, case.full, "<= 1.3", check=same_numbers),
        ratio("loss: time, ours / bare products", case.ours, case.bare_products, None),
    ]


def same_numbers(found: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Assert that two sides agree in every tensor, relative to its largest number."""
    for name, tensor in found.items():
        error = (tensor - other[name]).abs().max() / other[name].abs().max()
        assert error < 1e-4, f"{name} differs by {error:.1e}"


def _peak(side: str) -> float:
    out = subprocess.run([sys.executable, "-m", "benchmarks.loss", side], check=True, stdout=subprocess.PIPE, text=True)
    return float(out.stdout)


def main(side: str) -> None:
    """Print the mebibytes that one side needs beyond its inputs."""
    torch.set_num_threads(THREADS)
    case = Case(HELD_ROWS)
    ways: dict[str, Callable[[], object]] = {"ours": case.ours, "full": case.full}
    before = _high_water()
    ways[side]()
    print(_high_water() - before)


def _high_water() -> float:
    """The most memory this process has had, in mebibytes. Not `ru_maxrss`, which starts at that of the parent."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


if __name__ == "__main__":
    main(sys.argv[1])
