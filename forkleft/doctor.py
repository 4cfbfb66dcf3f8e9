"""`forkleft doctor`: does the maths hold on this device, in this precision, with this attention?

Each check computes something twice: the way ForkLeft does, and the plain way, which is slow and obviously right. What
remains between the two must be rounding. Run it once on a new machine; it takes about a minute.

Shapes: T tokens, S positions that are read, V words.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from transformers import Qwen3Config, Qwen3ForCausalLM

from forkleft.objective.head import TeacherRows, head_rows
from forkleft.objective.readouts import Reading, prefix_hidden
from forkleft.rollout import generate
from forkleft.students import Family, Student
from forkleft.students.attention import ATTENTION_NAME

# Nats by which two ways to compute a log-probability may differ. Each has its own order of sums, over a few layers.
BOUNDS = {torch.float64: 1e-9, torch.float32: 5e-3, torch.bfloat16: 0.5, torch.float16: 0.1}
_PROMPTS, _BUDGET, _PASSES = ([5, 9, 2], [7, 1, 3, 3, 8, 11, 2], [4]), 24, 4


@dataclass(frozen=True)
class Finding:
    """A check: what was compared, the largest difference in nats, what it may be, and what it means."""

    name: str
    difference: float
    bound: float
    meaning: str

    @property
    def holds(self) -> bool:
        """Whether the difference is rounding. NaN is not."""
        return self.difference <= self.bound


def examine(student: Student) -> list[Finding]:
    """All checks with a student, where and in which precision it is. Its weights stay as they are."""
    bound = BOUNDS[student.model.dtype]
    checks: dict[str, tuple[Callable[[Student], float], str]] = {
        "packed readouts = one forward a position": (
            _readouts,
            "the student is supervised under its left prefix, and sees nothing else",
        ),
        "gradients of packed readouts": (
            _gradients,
            "the student learns what the losses say (relative to the largest)",
        ),
        "cached rollouts = whole canvas every pass": (
            _rollouts,
            "the cache changes nothing in what the student writes",
        ),
        "a row does not depend on its neighbours": (
            _neighbours,
            "batches of any size write the same",
        ),
        "chunked losses = full logits": (_losses, "NLL, KL, entropy and confidence are exact at any number of words"),
    }
    findings = [Finding(name, check(student), bound, meaning) for name, (check, meaning) in checks.items()]
    # The norms of stock models compute in float32, whatever the weights are in; gradients show it.
    return [replace(one, bound=max(one.bound, 1e-5)) if "gradients" in one.name else one for one in findings]


def stand_in(dtype: torch.dtype, device: str) -> Student:
    """A small random student, for those who have no checkpoint at hand."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        initializer_range=0.1,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = Qwen3ForCausalLM(config).to(device, dtype).eval()
    return Student.from_model(model, Family("block", 8), 511, [510])


def table(findings: Sequence[Finding], student: Student) -> Table:
    """The findings for a person."""
    model = student.model
    shown = Table(
        title=f"{type(model).__name__}, {str(model.dtype).removeprefix('torch.')} on {student.device}",
        caption="Largest difference between our way and the plain way, in nats; below the bound it is rounding.",
        box=box.SIMPLE_HEAD,
    )
    shown.add_column("check")
    for column in ("difference", "bound", ""):
        shown.add_column(column, justify="right", no_wrap=True)
    for one in findings:
        mark = "[green]holds[/]" if one.holds else "[bold red]broken[/]"
        shown.add_row(f"{one.name}\n[dim]{one.meaning}[/]", f"{one.difference:.1e}", f"{one.bound:.0e}", mark)
    return shown


def doctor(student: Student) -> bool:
    """Print the table; whether everything holds."""
    findings = examine(student)
    console = Console()
    console.print(table(findings, student))
    if all(one.holds for one in findings):
        console.print("Everything holds here.", highlight=False)
        return True
    console.print(
        "[bold red]Something is broken here.[/] Try another precision (--dtype float32), then report the table "
        "with the versions of PyTorch and Transformers.",
        highlight=False,
    )
    return False


# ---- The checks ----


def _readouts(student: Student) -> float:
    readings, plain = _read_both(student)
    with torch.no_grad():
        ours_SV = student.logits(prefix_hidden(student, readings, budget=_BUDGET)).log_softmax(-1)
        theirs_SV = torch.stack([plain(reading, i) for reading in readings for i in reading.positions])
    return _apart(ours_SV, theirs_SV)


def _gradients(student: Student) -> float:
    """Of the input embeddings, through which everything flows; relative to the largest."""
    readings, plain = _read_both(student)
    weight = student.model.get_input_embeddings().weight
    frozen, was = weight.requires_grad, [parameter.requires_grad for parameter in student.model.parameters()]
    try:
        for parameter in student.model.parameters():
            parameter.requires_grad_(False)
        weight.requires_grad_(True)
        targets = [reading.response[i] for reading in readings for i in reading.positions]
        ours_SV = student.logits(prefix_hidden(student, readings, budget=_BUDGET)).log_softmax(-1)
        (ours,) = torch.autograd.grad(ours_SV[range(len(targets)), targets].mean(), weight)
        rows = [plain(reading, i) for reading in readings for i in reading.positions]
        theirs_SV = torch.stack(rows)
        (theirs,) = torch.autograd.grad(theirs_SV[range(len(targets)), targets].mean(), weight)
    finally:
        for parameter, one in zip(student.model.parameters(), was, strict=True):
            parameter.requires_grad_(one)
        weight.requires_grad_(frozen)
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def _rollouts(student: Student) -> float:
    """Watch a rollout pass by pass: its entropies at commit against those of the whole canvas encoded anew."""
    prompts, mask_id, shift = _prompts(student), student.vocabulary.mask_id, student.family.shift
    before = [[mask_id] * _BUDGET for _ in prompts]
    worst = 0.0

    def compare(number: int, ids: list[int], entropies: list[float]) -> None:
        nonlocal worst
        prompt, canvas = prompts[number], before[number]
        logp_TV = _plain_log_probs(student, [*prompt, *canvas], len(prompt))
        entropy_T = -(logp_TV.exp() * logp_TV.nan_to_num(neginf=0.0)).sum(-1)
        for i, (was, now) in enumerate(zip(canvas, ids, strict=False)):
            if was == mask_id and now != mask_id:
                worst = max(worst, abs(entropy_T[len(prompt) + i - shift].item() - entropies[i]))
        before[number] = [*ids, *[mask_id] * (_BUDGET - len(ids))]

    generate(student, prompts, order="high_entropy", passes=_PASSES, max_new_tokens=_BUDGET, watch=compare)
    return worst


def _neighbours(student: Student) -> float:
    """Entropies of prompts written together and alone, as long as they wrote the same."""
    prompts = _prompts(student)
    settings = {"order": "high_entropy", "passes": _PASSES, "max_new_tokens": _BUDGET}
    together = generate(student, prompts, **settings)
    alone = [generate(student, [prompt], **settings)[0] for prompt in prompts]
    size, worst = student.family.block_size, 0.0
    for one, two in zip(together, alone, strict=True):
        # A tie that rounding breaks differently changes what follows, but not before the end of its block.
        same = next(
            (k for k, (a, b) in enumerate(zip(one.tokens, two.tokens, strict=False)) if a != b), len(one.tokens)
        )
        same = max(same - same % size, 1)
        worst = max(worst, *(abs(a - b) for a, b in zip(one.entropy[:same], two.entropy[:same], strict=False)), 0.0)
    return worst


def _losses(student: Student) -> float:
    weight_VD = student.head_weight.detach()
    generator = torch.Generator().manual_seed(0)
    shape = (12, weight_VD.shape[1])
    hidden_SD, teacher_SD = (
        torch.randn(shape, generator=generator).to(weight_VD.device, weight_VD.dtype) for _ in range(2)
    )
    words = len(student.excluded_V)
    valid = sorted(student.vocabulary.valid)
    targets_S = torch.tensor([valid[(7 * k) % len(valid)] for k in range(len(hidden_SD))])
    ours = head_rows(hidden_SD, weight_VD, targets_S, student.excluded_V, teacher=TeacherRows(teacher_SD, weight_VD))
    excluded = student.excluded_V.to(weight_VD.device)

    def full(rows_SD: torch.Tensor) -> torch.Tensor:
        logits_SV = (rows_SD @ weight_VD[:words].T).to(torch.promote_types(weight_VD.dtype, torch.float32))
        return logits_SV.masked_fill(excluded, float("-inf")).log_softmax(-1)

    s_SV, t_SV = full(hidden_SD), full(teacher_SD)
    rows = torch.arange(len(hidden_SD))
    finite_s, finite_t = s_SV.nan_to_num(neginf=0.0), t_SV.nan_to_num(neginf=0.0)
    pairs = [
        (ours.nll_S, -s_SV[rows, targets_S.to(s_SV.device)]),
        (ours.confidence_S, s_SV.max(-1).values),
        (ours.entropy_S, -(s_SV.exp() * finite_s).sum(-1)),
        (ours.kl_K, (t_SV.exp() * (finite_t - finite_s)).sum(-1)),
    ]
    return max(_apart(one, two) for one, two in pairs)


# ---- The plain way ----


def _read_both(student: Student) -> tuple[list[Reading], Callable[[Reading, int], torch.Tensor]]:
    """Readings of a few responses, and how one position of one is read in a forward of its own."""
    valid = sorted(student.vocabulary.valid - set(student.vocabulary.stop_ids))
    readings = [
        Reading(f"check {k}", prompt, [valid[(5 * i + 3 * k) % len(valid)] for i in range(20)], [0, 3, 8, 9, 17])
        for k, prompt in enumerate(_prompts(student))
    ]

    def plain(reading: Reading, i: int) -> torch.Tensor:
        ids = [*reading.prompt, *reading.response[:i]]
        if student.family.shift == 0:
            ids.append(student.vocabulary.mask_id)
        return _plain_log_probs(student, ids, len(reading.prompt))[-1]

    return readings, plain


def _plain_log_probs(student: Student, ids: Sequence[int], prompt_length: int) -> torch.Tensor:
    """`logp_TV` of one sequence through Transformers' own attention, with the family's mask written out."""
    blocks = torch.tensor([student.family.block_of(p, prompt_length) for p in range(len(ids))], device=student.device)
    mask_TT = blocks[None, :] <= blocks[:, None]
    with _stock_attention(student):
        hidden_TD = student.model.base_model(
            input_ids=torch.tensor([list(ids)], device=student.device),
            attention_mask=mask_TT[None, None],
            use_cache=False,
        ).last_hidden_state[0]
    return student.logits(hidden_TD).log_softmax(-1)


@contextmanager
def _stock_attention(student: Student) -> Iterator[None]:
    student.model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        student.model.set_attn_implementation(ATTENTION_NAME)


def _prompts(student: Student) -> list[list[int]]:
    valid = sorted(student.vocabulary.valid)
    return [[valid[i % len(valid)] for i in prompt] for prompt in _PROMPTS]


def _apart(one: torch.Tensor, two: torch.Tensor) -> float:
    """The largest difference; equal infinities are no difference."""
    return torch.where(one == two, 0.0, (one.detach() - two.detach()).abs()).max().item()
