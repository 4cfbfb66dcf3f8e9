"""Is the maths right on this device, in this precision, with this attention? `forkleft doctor` runs these checks.

Each check computes something twice: in ForkLeft's way, and in the plain way, which is slow and obviously right. The
difference must be rounding. Rounding errors depend on width, depth, vocabulary and precision, so they are measured on
the same model: the plain way is run again with the rounding errors that a layer may make. Run the checks once on a new
machine.

Shapes: T tokens, S positions that are read, V words.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from forkleft.objective.head import TeacherRows, head_rows
from forkleft.objective.readouts import prefix_hidden
from forkleft.prompts import Reading
from forkleft.rollout import generate
from forkleft.students import Family, Student

# A difference is rounding if it is at most this many times what rounding does to the plain way.
MULTIPLE = 4.0
_PASSES = 2
_FLEX_ON_CUDA = "FlexAttention is compiled for CUDA only; elsewhere there is only dense attention"
# So many words of the output head are converted to float64 at a time.
_CHUNK = 8192


@dataclass(frozen=True)
class Finding:
    """The result of a check: what was compared, the largest difference, what rounding explains, and what it means.

    skipped: why the check was not run, if it was not; then there are no numbers.
    """

    name: str
    difference: float
    bound: float
    meaning: str
    skipped: str | None = None

    @property
    def holds(self) -> bool:
        """Whether the difference is rounding. NaN is not."""
        return self.difference <= self.bound


@dataclass(frozen=True)
class Check:
    """Something that is computed in our way and in the plain way. It returns the largest difference and its bound.

    cuda_only: why it runs on CUDA only, if it does.
    """

    name: str
    meaning: str
    run: Callable[[Student], tuple[float, float]]
    cuda_only: str | None = None


def examine(student: Student, begin: Callable[[str], None] = lambda name: None) -> list[Finding]:
    """Run all checks with a student, on its device and in its precision. Its weights stay as they are.

    begin: called with the name of each check before it runs.
    """
    findings = []
    for check in CHECKS:
        begin(check.name)
        if check.cuda_only is not None and student.device.type != "cuda":
            nothing = float("nan")
            findings.append(Finding(check.name, nothing, nothing, check.meaning, skipped=check.cuda_only))
            continue
        try:
            difference, bound = check.run(student)
            findings.append(Finding(check.name, difference, bound, check.meaning))
        except Exception as error:  # a kernel of this device may raise anything; this is what the check is for
            message = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            findings.append(Finding(check.name, float("nan"), float("nan"), message))
    return findings


def stand_in(dtype: torch.dtype, device: str) -> Student:
    """A small random student, if there is no checkpoint at hand."""
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
    # Transformers declares `to` as if it also took the model.
    model = Qwen3ForCausalLM(config).to(device, dtype).eval()  # type: ignore[arg-type]
    return Student.from_model(model, Family("block", 8), 511, [510])


# ---- The checks ----


def _readouts(student: Student) -> tuple[float, float]:
    readings = _readings(student)
    with torch.no_grad():
        ours_SV = _packed_rows(student, readings)
        theirs_SV, rounded_SV = (_plain_rows(student, readings, rounded=rounded) for rounded in (False, True))
    return _apart(ours_SV, theirs_SV), MULTIPLE * _apart(theirs_SV, rounded_SV)


def _other_readouts(student: Student) -> tuple[float, float]:
    """As `_readouts`, through the other way to attend than the one that the student uses."""
    with _other_attention(student):
        return _readouts(student)


def _other_gradients(student: Student) -> tuple[float, float]:
    with _other_attention(student):
        return _gradients(student)


def _gradients(student: Student) -> tuple[float, float]:
    """Compare gradients of the input embeddings, through which everything flows; relative to the largest."""
    readings = _readings(student)
    targets = [reading.response[i] for reading in readings for i in reading.positions]
    weight: Any = student.model.get_input_embeddings().weight
    learned = {parameter: parameter.requires_grad for parameter in student.model.parameters()}

    def gradient(logp_SV: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(logp_SV[range(len(targets)), targets].mean(), weight)[0]

    try:
        student.model.requires_grad_(False)
        weight.requires_grad_(True)
        ours = gradient(_packed_rows(student, readings))
        theirs, rounded = (gradient(_plain_rows(student, readings, rounded=rounded)) for rounded in (False, True))
    finally:
        for parameter, learns in learned.items():
            parameter.requires_grad_(learns)
    largest = theirs.abs().max()
    return _apart(ours / largest, theirs / largest), MULTIPLE * _apart(theirs / largest, rounded / largest)


def _rollouts(student: Student) -> tuple[float, float]:
    """Compare, in every pass of a rollout, the entropies at commit with those of the whole canvas, computed anew."""
    prompts, mask_id, budget = _prompts(student), student.vocabulary.mask_id, _budget(student)
    canvases = [[mask_id] * budget for _ in prompts]
    sequences: list[_Sequence] = []
    entropies: list[float] = []

    def watch(number: int, ids: list[int], entropy: list[float]) -> None:
        before = canvases[number]
        written = [i for i, (was, now) in enumerate(zip(before, ids, strict=False)) if was == mask_id != now]
        sequences.append(_canvas(student, prompts[number], before, written))
        entropies.extend(entropy[i] for i in written)
        canvases[number] = [*ids, *[mask_id] * (budget - len(ids))]

    generate(student, prompts, order="high_entropy", passes=_PASSES, max_new_tokens=budget, watch=watch)
    with torch.no_grad():
        plain_S, rounded_S = (_entropy(_plain_log_probs(student, sequences, rounded=r)) for r in (False, True))
    ours_S = torch.tensor(entropies, dtype=plain_S.dtype, device=plain_S.device)
    return _apart(ours_S, plain_S), MULTIPLE * _apart(plain_S, rounded_S)


def _neighbours(student: Student) -> tuple[float, float]:
    """Compare the entropies of prompts written together and alone, as long as they write the same tokens."""
    prompts, mask_id, budget = _prompts(student), student.vocabulary.mask_id, _budget(student)
    settings: dict[str, Any] = {"order": "high_entropy", "passes": _PASSES, "max_new_tokens": budget}
    together = generate(student, prompts, **settings)
    differences = []
    for prompt, beside in zip(prompts, together, strict=True):
        (alone,) = generate(student, [prompt], **settings)
        pairs = zip(beside.tokens, alone.tokens, strict=False)
        same = next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(beside.tokens), len(alone.tokens)))
        if same < len(beside.tokens):
            # Rounding may break a tie differently. This changes what follows, but nothing before the block of the tie.
            same = max(0, student.family.window(len(prompt) + same, len(prompt))[0] - len(prompt))
        differences += [a - b for a, b in zip(beside.entropy[:same], alone.entropy[:same], strict=True)]
    # What rounding does in the first pass over each prompt.
    sequences = [_canvas(student, prompt, [mask_id] * budget, range(budget)) for prompt in prompts]
    with torch.no_grad():
        plain_S, rounded_S = (_entropy(_plain_log_probs(student, sequences, rounded=r)) for r in (False, True))
    return _largest(differences), MULTIPLE * _apart(plain_S, rounded_S)


def _losses(student: Student) -> tuple[float, float]:
    """Compare our way and full logits with float64. Our error may be a small multiple of that of full logits."""
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
    excluded_V = student.excluded_V.to(weight_VD.device)

    def plain(rows_SD: torch.Tensor) -> torch.Tensor:
        logits_SV = (rows_SD @ weight_VD[:words].T).to(torch.promote_types(weight_VD.dtype, torch.float32))
        return logits_SV.masked_fill(excluded_V, float("-inf")).log_softmax(-1)

    def exact(rows_SD: torch.Tensor) -> torch.Tensor:
        # In parts: the whole head in float64 may be too large. On the CPU: some devices have no float64.
        parts = [rows_SD.cpu().double() @ part.cpu().double().T for part in weight_VD[:words].split(_CHUNK)]
        return torch.cat(parts, dim=1).masked_fill(excluded_V.cpu(), float("-inf")).log_softmax(-1)

    expected = _head_numbers(exact(hidden_SD), exact(teacher_SD), targets_S)
    found = [column.cpu().double() for column in (ours.nll_S, ours.confidence_S, ours.entropy_S, ours.kl_K)]
    full = [column.cpu().double() for column in _head_numbers(plain(hidden_SD), plain(teacher_SD), targets_S)]
    # The numbers themselves are rounded to float32 at best.
    last = torch.finfo(ours.nll_S.dtype).eps * max(column.abs().max().item() for column in expected)
    errors = (
        [_apart(column, right) for column, right in zip(columns, expected, strict=True)] for columns in (found, full)
    )
    difference, rounding = map(_largest, errors)
    return difference, MULTIPLE * (rounding + last)


def _head_numbers(s_SV: torch.Tensor, t_SV: torch.Tensor, targets_S: torch.Tensor) -> list[torch.Tensor]:
    """NLL, confidence, entropy and KL(t ‖ s) of each row, from whole distributions."""
    rows = torch.arange(len(targets_S))
    apart_SV = t_SV.nan_to_num(neginf=0.0) - s_SV.nan_to_num(neginf=0.0)
    nll_S = -s_SV[rows, targets_S.to(s_SV.device)]
    return [nll_S, s_SV.max(-1).values, _entropy(s_SV), (t_SV.exp() * apart_SV).sum(-1)]


CHECKS = (
    Check(
        "packed readouts = one forward a position",
        "the student is supervised under its left prefix, and sees nothing else",
        _readouts,
    ),
    Check("gradients of packed readouts", "the student learns what the losses say (relative)", _gradients),
    Check(
        "packed readouts through the other attention",
        "FlexAttention and dense attention agree: where one of them is broken, the other can be used",
        _other_readouts,
        cuda_only=_FLEX_ON_CUDA,
    ),
    Check(
        "gradients through the other attention",
        "the same for gradients (relative)",
        _other_gradients,
        cuda_only=_FLEX_ON_CUDA,
    ),
    Check(
        "cached rollouts = whole canvas every pass", "the cache changes nothing in what the student writes", _rollouts
    ),
    Check("a row does not depend on its neighbours", "batches of any size write the same", _neighbours),
    Check("losses in tiles = full logits", "NLL, KL, entropy, confidence are exact at any number of words", _losses),
)


# ---- The plain way ----


def _readings(student: Student) -> list[Reading]:
    """Responses that cover two blocks, read at the borders of these and inside."""
    valid = sorted(student.vocabulary.valid - set(student.vocabulary.stop_ids))
    size, length = student.family.block_size, _budget(student)
    positions = sorted({0, size - 1, size, length - 2})
    return [
        Reading(f"check {k}", prompt, [valid[(5 * i + 3 * k) % len(valid)] for i in range(length)], positions)
        for k, prompt in enumerate(_prompts(student))
    ]


@dataclass(frozen=True)
class _Sequence:
    """Tokens of prompt and response, and the places where they are read."""

    ids: list[int]
    prompt_length: int
    places: list[int]


def _canvas(student: Student, prompt: Sequence[int], canvas: Sequence[int], written: Sequence[int]) -> _Sequence:
    """A whole canvas, read where the tokens at `written` are predicted."""
    places = [len(prompt) + i - student.family.shift for i in written]
    return _Sequence([*prompt, *canvas], len(prompt), places)


def _packed_rows(student: Student, readings: Sequence[Reading]) -> torch.Tensor:
    """`logp_SV`: our way."""
    return student.logits(prefix_hidden(student, readings, budget=_budget(student))).log_softmax(-1)


def _plain_rows(student: Student, readings: Sequence[Reading], *, rounded: bool) -> torch.Tensor:
    """`logp_SV`: each position of each reading with a sequence of its own."""
    query = [student.vocabulary.mask_id] * (1 - student.family.shift)
    rows = [
        ([*reading.prompt, *reading.response[:i], *query], len(reading.prompt))
        for reading in readings
        for i in reading.positions
    ]
    return _plain_log_probs(student, [_Sequence(ids, n, [len(ids) - 1]) for ids, n in rows], rounded=rounded)


def _plain_log_probs(student: Student, sequences: Sequence[_Sequence], *, rounded: bool) -> torch.Tensor:
    """`logp_SV` at the places of whole sequences, through Transformers' own attention, with the masks written out.

    rounded: add the rounding errors of a layer once more in every layer, which shows how large their effect is.
    """
    length = max(len(sequence.ids) for sequence in sequences)
    ids_BT = torch.full((len(sequences), length), student.vocabulary.mask_id)
    # Padding sees only itself, and no other token sees it.
    mask_BTT = torch.eye(length, dtype=torch.bool).repeat(len(sequences), 1, 1)
    for row, sequence in enumerate(sequences):
        end = len(sequence.ids)
        ids_BT[row, :end] = torch.tensor(sequence.ids)
        blocks = torch.tensor([student.family.block_of(p, sequence.prompt_length) for p in range(end)])
        mask_BTT[row, :end, :end] = blocks[None, :] <= blocks[:, None]
    with _stock_attention(student), rounding(student.model) if rounded else nullcontext():
        hidden_BTD = student.model.base_model(
            input_ids=ids_BT.to(student.device), attention_mask=mask_BTT[:, None].to(student.device), use_cache=False
        ).last_hidden_state
    read = [(row, place) for row, sequence in enumerate(sequences) for place in sequence.places]
    rows, places = zip(*read, strict=True)
    return student.logits(hidden_BTD[list(rows), list(places)]).log_softmax(-1)


@contextmanager
def _stock_attention(student: Student) -> Iterator[None]:
    dense = student.dense_attention
    student.model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        student.use_dense_attention(dense)


@contextmanager
def _other_attention(student: Student) -> Iterator[None]:
    """Dense attention for a student with FlexAttention, and the other way round."""
    dense = student.dense_attention
    student.use_dense_attention(not dense)
    try:
        yield
    finally:
        student.use_dense_attention(dense)


@contextmanager
def rounding(model: PreTrainedModel) -> Iterator[None]:
    """Change the embeddings, the output of every layer and their gradients at random, by as much as rounding could.

    A number is rounded to the precision of the weights when it is written. Before that it went through the seven matrix
    products of a layer, each a sum over `width`, in float32 at best: these errors add up like a random walk. Their size
    follows the summands, not the sum, so they are relative to the mean size of the row.
    """
    generator = torch.Generator().manual_seed(0)
    written = torch.finfo(model.dtype).eps
    # Norms of stock models compute in float32, even if the weights are more precise.
    summed = math.sqrt(7 * model.config.hidden_size) * torch.finfo(torch.float32).eps

    def rounded(values: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(values.shape, generator=generator, dtype=torch.float32).sub(0.5).to(values.device)
        size = values.detach().float().abs()
        return values + (noise * (written * size + summed * size.mean(-1, keepdim=True))).to(values.dtype)

    def change(module: torch.nn.Module, inputs: tuple, hidden: torch.Tensor) -> torch.Tensor:
        hidden = rounded(hidden)
        if hidden.requires_grad:
            hidden.register_hook(rounded)
        return hidden

    layers: Any = model.base_model.layers
    modules = [model.get_input_embeddings(), *layers]
    handles = [module.register_forward_hook(change) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _budget(student: Student) -> int:
    """The length of the responses: a block, and half of the next."""
    return student.family.block_size + max(3, student.family.block_size // 2)


def _prompts(student: Student) -> list[list[int]]:
    valid = sorted(student.vocabulary.valid)
    return [[valid[i % len(valid)] for i in prompt] for prompt in ([5, 9, 2], [7, 1, 3, 3, 8, 11, 2])]


def _entropy(logp_SV: torch.Tensor) -> torch.Tensor:
    return -(logp_SV.exp() * logp_SV.nan_to_num(neginf=0.0)).sum(-1)


def _apart(left: torch.Tensor, right: torch.Tensor) -> float:
    """The largest difference. Equal infinities do not differ."""
    return torch.where(left == right, 0.0, (left.detach() - right.detach()).abs()).max().item()


def _largest(differences: Sequence[float]) -> float:
    """The largest absolute value; NaN if any of them is NaN."""
    return torch.tensor(differences, dtype=torch.float64).abs().max().item()
