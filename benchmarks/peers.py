"""Public samplers, and a public loss, beside ours: the same tokens and numbers, and how much more time and memory.

    python -m benchmarks.peers --opdlm OPDLM --dllm dllm --sdar SDAR --trl trl

Each option names a copy of that project, fetched by the user; those that are missing are left out. Of a file only the
functions that are needed are taken, so that none of a project's other dependencies is. Peers get a stock Transformers
model with the same weights as ours. docs/performance.md has the figures and the versions.

A: Qwen3, 4 layers, width 128, 8,192 words, blocks of 8. B: width 256, 151,936 words, blocks of 4. Prompts of 64 tokens.
"""

import argparse
import ast
import copy
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console
from transformers import DynamicCache

from benchmarks.harness import Result, ratio
from benchmarks.loss import HELD_ROWS, same_numbers
from benchmarks.loss import Case as LossCase
from benchmarks.memory import LiveBytes
from benchmarks.models import plain, qwen3, random_ids
from forkleft.objective.head import TeacherRows, head_rows
from forkleft.rollout import generate
from forkleft.students import Family, Student

PROMPT = 64
# With so large a row for the stop id, responses end anywhere between 1 and 256 tokens.
_STOP_SCALE = 2.0


@dataclass(frozen=True)
class Shape:
    """A model, and how many tokens it writes."""

    width: int
    words: int
    block: int
    budget: int = 128


SHAPES = {"A": Shape(128, 8192, 8), "B": Shape(256, 151_936, 4)}


def student_of(shape: Shape, *, stop_scale: float = 0.0) -> Student:
    """A random model whose prompt is divided into blocks as the peers do. stop_scale: of the head's row of the stop id;
    with 0 it never stops."""
    model = qwen3(shape.words, width=shape.width)
    with torch.no_grad():
        model.lm_head.weight[-2] *= stop_scale
        # The peers may write the mask, which ours never does.
        model.lm_head.weight[-1] = 0
    family = Family("block", shape.block, "prompt_end_backward")
    return Student.from_model(model, family, shape.words - 1, [shape.words - 2])


def parts_of(path: Path, names: Sequence[str], **given: Any) -> dict[str, Any]:
    """The functions and classes of these names in a file, which see each other, its constants and what is given."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    wanted = [node for node in tree.body if getattr(node, "name", None) in names]
    found = dict.fromkeys(names) | given
    exec(compile(ast.Module(wanted, []), str(path), "exec"), found)
    return found


class Tokens:
    """What the samplers ask of a tokenizer."""

    def __init__(self, student: Student) -> None:
        words = student.vocabulary
        self.mask_token_id, self.eos_token_id = words.mask_id, words.stop_ids[0]
        # Prompts are as long as whole blocks, so nothing is padded.
        self.pad_token_id, self.bos_token_id = -1, None


Sampler = Callable[[Sequence[Sequence[int]]], list[list[int]]]


def ours(student: Student, shape: Shape, order: str, rows: int) -> Sampler:
    """Our rollout, one token a pass."""

    def write(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        found = generate(student, prompts, order=order, max_new_tokens=shape.budget, batch_size=rows)
        return [trajectory.tokens for trajectory in found]

    return write


def opdlm(folder: Path, student: Student, shape: Shape) -> Sampler:
    """OPDLM's `bd3lm_sample`."""
    names = ("_add_gumbel_noise", "_get_num_transfer_tokens", "_prepare_for_sampling", "_diffusion_step_block")
    given = {"torch": torch, "copy": copy, "math": math, "F": torch.nn.functional}
    file = folder / "sample" / "bd3lm_rl_rollout.py"
    sample = parts_of(file, (*names, "_truncate_kv_cache", "bd3lm_sample"), **given)["bd3lm_sample"]
    model, tokens = plain(student), Tokens(student)

    def write(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        ids, start = sample(
            model,
            tokens,
            [list(row) for row in prompts],
            shape.budget,
            shape.block,
            shape.budget,
            0.0,
            "low_confidence",
        )
        return ids[:, start:].tolist()

    return write


@dataclass
class _Settings:
    return_dict: bool = False


def dllm(folder: Path, student: Student, shape: Shape) -> Sampler:
    """dLLM's `BD3LMSampler`."""
    core = folder / "dllm" / "core" / "samplers"
    utilities = parts_of(
        core / "utils.py", ("add_gumbel_noise", "get_num_transfer_tokens"), torch=torch, BaseAlphaScheduler=object
    )
    # A linear schedule: so many are left at s of those at t.
    scheduler = SimpleNamespace(reverse_mask_prob=lambda s, t: s / t)
    given = utilities | {"copy": copy, "math": math, "F": torch.nn.functional, "dataclass": dataclass}
    given |= {"BaseSampler": object, "BaseSamplerConfig": _Settings, "BaseSamplerOutput": SimpleNamespace}
    names = ("_prepare_for_sampling", "_diffusion_step_block", "BD3LMSamplerConfig", "BD3LMSampler")
    parts = parts_of(core / "bd3lm.py", names, **given)
    sampler = parts["BD3LMSampler"]()
    sampler.model, sampler.tokenizer, sampler.scheduler = plain(student), Tokens(student), scheduler
    settings = {"block_size": shape.block, "steps": shape.budget, "max_new_tokens": shape.budget, "return_dict": False}

    def write(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        ids = sampler.sample([list(row) for row in prompts], parts["BD3LMSamplerConfig"](), **settings)
        return ids[:, PROMPT:].tolist()

    return write


class _Storing:
    """A stock model as SDAR's generation calls its own: `store_kv` decides whether the cache keeps the new tokens."""

    def __init__(self, model: Any) -> None:
        self._model, self.device = model, model.device

    def eval(self) -> None:
        """Nothing to do."""

    def __call__(self, ids: torch.Tensor, *, attention_mask: torch.Tensor, store_kv: bool, **settings: Any) -> Any:
        out = self._model(ids, attention_mask=attention_mask[:, None].bool(), **settings)
        if not store_kv:
            settings["past_key_values"].crop(-ids.shape[1])
        return out


def sdar(folder: Path, student: Student, shape: Shape) -> Sampler:
    """SDAR's `block_diffusion_generate`, row by row, which is how it works, from left to right."""
    names = ("top_k_logits", "top_p_logits", "sample_with_temperature_topk_topp", "get_num_transfer_tokens")
    given = {"torch": torch, "F": torch.nn.functional, "DynamicCache": DynamicCache}
    sample = parts_of(folder / "generate.py", (*names, "block_diffusion_generate"), **given)["block_diffusion_generate"]
    model = _Storing(plain(student))

    def write(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        found = []
        for prompt in prompts:
            ids = sample(
                model,
                {"input_ids": torch.tensor([prompt])},
                student.vocabulary.mask_id,
                gen_length=shape.budget,
                block_length=shape.block,
                denoising_steps=shape.block,
                top_k=1,
                remasking_strategy="sequential",
            )
            found.append(ids[0, PROMPT:].tolist())
        return found

    return write


# By peer and number of rows.
GOALS = {("opdlm", 8): ">= 1.6", ("sdar", 1): ">= 1.3", ("opdlm", 64): ">= 2.5"}
PEERS: dict[str, tuple[Callable[..., Sampler], str]] = {
    "opdlm": (opdlm, "confidence"),
    "dllm": (dllm, "confidence"),
    "sdar": (sdar, "left_to_right"),
}


def _same_tokens(theirs: list[list[int]], ours: list[list[int]]) -> None:
    assert theirs == ours, "the peer writes other tokens"


def samplers(folders: dict[str, Path], repeats: int) -> list[Result]:
    """Eight rows, and one, of each shape."""
    results = []
    for name, shape in SHAPES.items():
        student = student_of(shape)
        for rows in (8, 1):
            prompts = random_ids(rows, PROMPT, shape.words)
            for peer, folder in folders.items():
                make, order = PEERS[peer]
                theirs, mine = make(folder, student, shape), ours(student, shape, order, rows)
                row = f"{peer} / ours, {name}, {rows} row{'s' * (rows > 1)}"
                goal = GOALS.get((peer, rows))
                sides = partial(theirs, prompts), partial(mine, prompts)
                results.append(ratio(row, *sides, goal, repeats, check=_same_tokens))
    return results


def of_many_lengths(folders: dict[str, Path], repeats: int) -> list[Result]:
    """64 prompts, 8 rows at a time, with responses that end anywhere up to the budget."""
    shape = Shape(128, 8192, 8, 256)
    student = student_of(shape, stop_scale=_STOP_SCALE)
    prompts = random_ids(64, PROMPT, shape.words)
    mine = ours(student, shape, "confidence", 8)
    written = mine(prompts)
    lengths = sorted(map(len, written))
    print(f"lengths: {lengths[0]} to {lengths[-1]}, median {lengths[32]}, mean {sum(lengths) / 64:.0f}", flush=True)
    stop = student.vocabulary.stop_ids[0]
    results = []
    for peer, folder in folders.items():
        if peer == "sdar":
            continue
        theirs = PEERS[peer][0](folder, student, shape)

        def batches(theirs: Sampler = theirs) -> list[list[int]]:
            rows = [row for first in range(0, 64, 8) for row in theirs(prompts[first : first + 8])]
            return [row[: row.index(stop) + 1] if stop in row else row for row in rows]

        row = f"{peer} / ours, A, 64 prompts of many lengths"
        goal = GOALS.get((peer, 64))
        results.append(ratio(row, batches, partial(mine, prompts), goal, repeats, check=_same_tokens))
    return results


def losses(folder: Path, repeats: int) -> list[Result]:
    """TRL's chunked divergence, with forward KL, against ours without ranking."""
    sys.path.insert(0, str(folder))
    from trl.kernels.chunked_divergence import ChunkedDivergenceFunction

    case = LossCase(HELD_ROWS)
    case.excluded_V = torch.zeros_like(case.excluded_V)
    hidden, weight = case.student["hidden"], case.student["weight"]

    def backward(kl_S: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden.grad = weight.grad = None
        kl_S.mean().backward()
        return {"kl": kl_S.detach(), "hidden": hidden.grad, "weight": weight.grad}

    def mine() -> dict[str, torch.Tensor]:
        teacher = TeacherRows(case.teacher["hidden"], case.teacher["weight"])
        return backward(head_rows(hidden, weight, case.targets_S, case.excluded_V, teacher=teacher).kl_K)

    def theirs() -> dict[str, torch.Tensor]:
        kl_S, _ = ChunkedDivergenceFunction.apply(
            hidden, weight, None, case.teacher["hidden"], case.teacher["weight"], None, 0.0
        )
        return backward(kl_S)

    time = ratio("trl / ours, loss, time", theirs, mine, None, repeats, check=same_numbers)
    held = []
    for side in (theirs, mine):
        with LiveBytes(hidden, weight, *case.teacher.values()) as live:
            side()
        held.append(live.peak)
    share = held[0] / held[1]
    return [
        time,
        Result("trl / ours, loss, peak memory", share, None, (share, share)),
    ]


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.splitlines()[0])
    for name in (*PEERS, "trl"):
        parser.add_argument(f"--{name}", type=Path, metavar="FOLDER", help=f"a copy of {name}")
    parser.add_argument("--repeats", type=int, default=3, help="(default 3)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folders = {name: folder for name in PEERS if (folder := getattr(options, name)) is not None}
    results = samplers(folders, options.repeats) + of_many_lengths(folders, options.repeats)
    if options.trl is not None:
        results += losses(options.trl, options.repeats)
    console = Console(width=120)
    for result in results:
        low, high = result.spread
        met = {True: "yes", False: "no", None: ""}[result.met]
        figures = f"{result.value:.2f} | {low:.2f} to {high:.2f} | {result.goal or ''} | {met}"
        console.print(f"| {result.name} | {figures} |", highlight=False)


if __name__ == "__main__":
    main()
