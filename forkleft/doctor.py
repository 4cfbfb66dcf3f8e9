"""`forkleft doctor`: does the maths hold on this device, in this precision, with this attention?

Each check computes something twice: the way ForkLeft does, and the plain way, which is slow and obviously right. What
remains between the two must be rounding; how far rounding reaches is measured, too. Run it once on a new machine.

Shapes: T tokens, S positions that are read, V words.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers import __version__ as transformers_version

from forkleft.objective.head import TeacherRows, head_rows
from forkleft.objective.readouts import Reading, prefix_hidden
from forkleft.rollout import generate
from forkleft.students import Family, Student
from forkleft.students.attention import ATTENTION_NAME

# A difference is rounding if it is at most so many times what one rounding in every layer does to the plain way.
_MULTIPLE = 4.0
_PASSES = 4


@dataclass(frozen=True)
class Finding:
    """A check: what was compared, the largest difference, what rounding explains, and what it means."""

    name: str
    difference: float
    bound: float
    meaning: str

    @property
    def holds(self) -> bool:
        """Whether the difference is rounding. NaN is not."""
        return self.difference <= self.bound


@dataclass(frozen=True)
class Check:
    """Something that is computed in our way and in the plain way; returns the largest difference and its bound."""

    name: str
    meaning: str
    run: Callable[[Student], tuple[float, float]]


def examine(student: Student) -> list[Finding]:
    """All checks with a student, where and in which precision it is. Its weights stay as they are."""
    findings = []
    for check in CHECKS:
        try:
            difference, bound = check.run(student)
            findings.append(Finding(check.name, difference, bound, check.meaning))
        except Exception as error:  # whatever a kernel of this device raises is what is to be found out
            told = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            findings.append(Finding(check.name, float("nan"), float("nan"), told))
    return findings


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
    model, device = student.model, student.device
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    readouts = "FlexAttention" if device.type == "cuda" else "SDPA"
    shown = Table(
        title=f"{type(model).__name__}, {str(model.dtype).removeprefix('torch.')} on {place}",
        caption=f"Largest difference between our way and the plain way; up to the bound it is rounding. Readouts "
        f"through {readouts}, rollouts through SDPA; PyTorch {torch.__version__}, Transformers {transformers_version}.",
        box=box.SIMPLE_HEAD,
    )
    shown.add_column("check")
    for column in ("difference", "bound", ""):
        shown.add_column(column, justify="right", no_wrap=True)
    for one in findings:
        mark = "[green]holds[/]" if one.holds else "[bold red]broken[/]"
        row = (f"{one.name}\n[dim]{escape(one.meaning)}[/]", f"{one.difference:.1e}", f"{one.bound:.0e}", mark)
        shown.add_row(*row)
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
        "[bold red]Something is broken here.[/] Try another precision (--dtype float32), then report the table.",
        highlight=False,
    )
    return False


# ---- The checks ----


def _readouts(student: Student) -> tuple[float, float]:
    readings = _readings(student)
    with torch.no_grad():
        ours_SV = student.logits(prefix_hidden(student, readings, budget=_budget(student))).log_softmax(-1)
        theirs_SV, rounded_SV = (_plain_rows(student, readings, rounded=rounded) for rounded in (False, True))
    return _apart(ours_SV, theirs_SV), _MULTIPLE * _apart(theirs_SV, rounded_SV)


def _gradients(student: Student) -> tuple[float, float]:
    """Of the input embeddings, through which everything flows; relative to the largest."""
    readings = _readings(student)
    targets = [reading.response[i] for reading in readings for i in reading.positions]
    weight = student.model.get_input_embeddings().weight
    learned = {parameter: parameter.requires_grad for parameter in student.model.parameters()}

    def gradient(logp_SV: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(logp_SV[range(len(targets)), targets].mean(), weight)[0]

    try:
        student.model.requires_grad_(False)
        weight.requires_grad_(True)
        ours = gradient(student.logits(prefix_hidden(student, readings, budget=_budget(student))).log_softmax(-1))
        theirs, rounded = (gradient(_plain_rows(student, readings, rounded=rounded)) for rounded in (False, True))
    finally:
        for parameter, learns in learned.items():
            parameter.requires_grad_(learns)
    largest = theirs.abs().max()
    return _apart(ours / largest, theirs / largest), _MULTIPLE * _apart(theirs / largest, rounded / largest)


def _rollouts(student: Student) -> tuple[float, float]:
    """Watch a rollout pass by pass: its entropies at commit against those of the whole canvas encoded anew."""
    prompts, mask_id, shift = _prompts(student), student.vocabulary.mask_id, student.family.shift
    budget = _budget(student)
    before = [[mask_id] * budget for _ in prompts]
    differences, roundings = [], []

    def compare(number: int, ids: list[int], entropies: list[float]) -> None:
        prompt, canvas = prompts[number], before[number]
        plain_T, rounded_T = (
            _entropy(_plain_log_probs(student, [*prompt, *canvas], len(prompt), rounded=rounded))
            for rounded in (False, True)
        )
        for i, (was, now) in enumerate(zip(canvas, ids, strict=False)):
            if was == mask_id and now != mask_id:
                place = len(prompt) + i - shift
                differences.append(plain_T[place].item() - entropies[i])
                roundings.append((plain_T[place] - rounded_T[place]).item())
        before[number] = [*ids, *[mask_id] * (budget - len(ids))]

    generate(student, prompts, order="high_entropy", passes=_PASSES, max_new_tokens=budget, watch=compare)
    return _largest(differences), _MULTIPLE * _largest(roundings)


def _neighbours(student: Student) -> tuple[float, float]:
    """Entropies of prompts written together and alone, as long as they wrote the same."""
    prompts = _prompts(student)
    settings = {"order": "high_entropy", "passes": _PASSES, "max_new_tokens": _budget(student)}
    together = generate(student, prompts, **settings)
    differences = []
    for prompt, one in zip(prompts, together, strict=True):
        (two,) = generate(student, [prompt], **settings)
        pairs = zip(one.tokens, two.tokens, strict=False)
        same = next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(one.tokens), len(two.tokens)))
        if same < len(one.tokens):
            # A tie that rounding breaks differently changes what follows, but nothing before its own block.
            same = max(0, student.family.window(len(prompt) + same, len(prompt))[0] - len(prompt))
        differences += [a - b for a, b in zip(one.entropy[:same], two.entropy[:same], strict=True)]
    # As far as rounding reaches in the first pass over each prompt.
    canvases = [[*prompt, *[student.vocabulary.mask_id] * _budget(student)] for prompt in prompts]
    with torch.no_grad():
        roundings = [
            _apart(*(_entropy(_plain_log_probs(student, ids, len(prompt), rounded=r)) for r in (False, True)))
            for prompt, ids in zip(prompts, canvases, strict=True)
        ]
    return _largest(differences), _MULTIPLE * _largest(roundings)


def _losses(student: Student) -> tuple[float, float]:
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
        (ours.entropy_S, _entropy(s_SV)),
        (ours.kl_K, (t_SV.exp() * (finite_t - finite_s)).sum(-1)),
    ]
    # A product of the head is rounded once, to the precision of the weights or of float32 on either side.
    bound = _MULTIPLE * _eps(student) * finite_s.abs().max().item()
    return _largest([_apart(one, two) for one, two in pairs]), bound


CHECKS = (
    Check(
        "packed readouts = one forward a position",
        "the student is supervised under its left prefix, and sees nothing else",
        _readouts,
    ),
    Check("gradients of packed readouts", "the student learns what the losses say (relative)", _gradients),
    Check(
        "cached rollouts = whole canvas every pass", "the cache changes nothing in what the student writes", _rollouts
    ),
    Check("a row does not depend on its neighbours", "batches of any size write the same", _neighbours),
    Check("chunked losses = full logits", "NLL, KL, entropy, confidence are exact at any number of words", _losses),
)


# ---- The plain way ----


def _readings(student: Student) -> list[Reading]:
    """Responses that reach over three blocks, read at their borders and within."""
    valid = sorted(student.vocabulary.valid - set(student.vocabulary.stop_ids))
    size, length = student.family.block_size, _budget(student)
    positions = sorted({0, size // 2, size - 1, size, size + 1, 2 * size, length - 2})
    return [
        Reading(f"check {k}", prompt, [valid[(5 * i + 3 * k) % len(valid)] for i in range(length)], positions)
        for k, prompt in enumerate(_prompts(student))
    ]


def _plain_rows(student: Student, readings: Sequence[Reading], *, rounded: bool) -> torch.Tensor:
    """`logp_SV`: each position of each reading in a forward of its own."""
    rows = []
    for reading in readings:
        for i in reading.positions:
            ids = [*reading.prompt, *reading.response[:i]]
            if student.family.shift == 0:
                ids.append(student.vocabulary.mask_id)
            rows.append(_plain_log_probs(student, ids, len(reading.prompt), rounded=rounded)[-1])
    return torch.stack(rows)


def _plain_log_probs(student: Student, ids: Sequence[int], prompt_length: int, *, rounded: bool) -> torch.Tensor:
    """`logp_TV` of one sequence through Transformers' own attention, with the family's mask written out.

    rounded: with one more rounding of the hidden states in every layer, which shows how far rounding reaches.
    """
    blocks = torch.tensor([student.family.block_of(p, prompt_length) for p in range(len(ids))], device=student.device)
    mask_TT = blocks[None, :] <= blocks[:, None]
    with _stock_attention(student), _rounding(student) if rounded else nullcontext():
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


@contextmanager
def _rounding(student: Student) -> Iterator[None]:
    """Change the embeddings and the output of every layer by up to half a unit in the last place, at random."""
    generator, eps = torch.Generator().manual_seed(0), _eps(student)

    def change(module: torch.nn.Module, inputs: tuple, hidden: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(hidden.shape, generator=generator, dtype=torch.float64).sub(0.5).mul(eps)
        return hidden + (hidden.detach().double() * noise.to(hidden.device)).to(hidden.dtype)

    modules = [student.model.get_input_embeddings(), *student.model.base_model.layers]
    handles = [module.register_forward_hook(change) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _eps(student: Student) -> float:
    """A unit in the last place. The norms of stock models compute in float32, also where weights are more precise."""
    return max(torch.finfo(student.model.dtype).eps, torch.finfo(torch.float32).eps)


def _budget(student: Student) -> int:
    return 2 * student.family.block_size + 5


def _prompts(student: Student) -> list[list[int]]:
    valid = sorted(student.vocabulary.valid)
    return [[valid[i % len(valid)] for i in prompt] for prompt in ([5, 9, 2], [7, 1, 3, 3, 8, 11, 2], [4])]


def _entropy(logp_SV: torch.Tensor) -> torch.Tensor:
    return -(logp_SV.exp() * logp_SV.nan_to_num(neginf=0.0)).sum(-1)


def _apart(one: torch.Tensor, two: torch.Tensor) -> float:
    """The largest difference; equal infinities are no difference."""
    return torch.where(one == two, 0.0, (one.detach() - two.detach()).abs()).max().item()


def _largest(differences: Sequence[float]) -> float:
    """In size; NaN if there is one."""
    return torch.tensor(differences, dtype=torch.float64).abs().max().item()
