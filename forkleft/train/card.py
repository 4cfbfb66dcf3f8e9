"""The model card that a training run writes beside its weights."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData
from transformers import PreTrainedModel, TrainerState
from transformers.trainer_utils import SchedulerType

from forkleft import __version__
from forkleft.students.bundled import bundled_name
from forkleft.students.student import Student
from forkleft.teacher import Teacher
from forkleft.train.adapt_config import AdaptConfig
from forkleft.train.config import ForkLeftConfig
from forkleft.train.data import fill
from forkleft.train.run_config import RunConfig

_TAGS = ("forkleft", "diffusion-language-model")
# Questions to try a model with, by its verifier. Its training questions may not be ours to publish.
_CHAIN = "a=7;b=a+5;c=b-a;c?"
_QUESTIONS = {
    # The lab trains with `exact`, and is measured with `lab`.
    "lab": _CHAIN,
    "exact": _CHAIN,
    "choice": "Which of these numbers is prime?\nA. 4\nB. 6\nC. 7\nD. 9",
    "math": "A train has 7 carriages of 48 seats each. How many seats is that?",
}


def model_card(
    student: Student,
    teacher: Teacher,
    config: ForkLeftConfig,
    questions: int,
    state: TrainerState,
    *,
    hub_id: str | None = None,
    adapters: bool = False,
    lengthened: Sequence[str] = (),
    tags: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
) -> str:
    """The page, in Markdown with the metadata that the hub reads: `tags` in addition to ours, and entries of `metadata`
    that are not None.

    hub_id: where the model is uploaded to, if it is. adapters: the weights beside the card are adapters. lengthened:
    when the run was made longer, and from which length, under a schedule that depends on the length.
    """
    master = _model_name(teacher.model.config.name_or_path or "", teacher.model)
    batch = config.train_batch_size * config.gradient_accumulation_steps * config.world_size
    values = {
        "updates": f"{state.global_step} of {batch} questions, {questions} in all",
        "learning rate": _rate(config, lengthened),
        "writing order": f"{config.rollout_order}, {config.passes} passes a block, {config.max_new_tokens} tokens",
        "verifier": config.verifier,
        "supervision": f"{config.supervision}, {config.view} view, {config.geometry} readout",
        "ρ, μ, δ, λ": f"{config.rho:g}, {config.mu:g}, {config.delta:g}, {config.rank_weight:g}",
        "seed": str(config.seed),
    }
    evaluated = [row for row in state.log_history if "eval_accuracy" in row]
    if evaluated:
        values["accuracy in evaluation"] = _accuracy(_shown_row(evaluated, state, config), config)
    base = _base(student)
    story = (
        f"`{base}` taught by `{master}` with ForkLeft {__version__}. The student wrote its own answers, most uncertain "
        "positions first; where only the teacher was right, it learned the teacher's distributions under its own left "
        "prefixes. It decodes as before: confident positions first, in parallel."
    )
    question = fill(config.prompt_template, {"question": _QUESTIONS.get(config.verifier, _QUESTIONS["math"])})
    title = "A diffusion language model trained with ForkLeft"
    rest = [*_use(config, hub_id, question), *(_merge(base, config, hub_id) if adapters else [])]
    return _page(student, title, story, values, state, rest, tags=[*_TAGS, "distillation", *tags], metadata=metadata)


def adapt_card(
    student: Student,
    config: AdaptConfig,
    data: str,
    state: TrainerState,
    *,
    hub_id: str | None = None,
    adapters: bool = False,
    lengthened: Sequence[str] = (),
    tags: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
) -> str:
    """The page of a student that learned to denoise. data: how much it learned from; the rest as for `model_card`."""
    batch = f"{config.train_batch_size * config.gradient_accumulation_steps * config.world_size} rows"
    if config.tokens_per_batch is not None:
        parts = config.gradient_accumulation_steps * config.world_size
        batch = f"up to {config.tokens_per_batch * parts} tokens"
    low, high = config.mask_shares
    learned = {
        "hidden": f"{low:g} to {high:g} of a block, weighted {config.weighting}",
        "next tokens": f"in the first {config.causal_steps} updates, then with weight {config.causal_weight:g}",
    }
    values = {
        "updates": f"{state.global_step} of {batch}, from {data}",
        "learning rate": _rate(config, lengthened),
        **({"next tokens": "in all updates"} if config.causal_only else learned),
        "seed": str(config.seed),
    }
    evaluated = [row for row in state.log_history if "eval_loss" in row]
    if evaluated:
        row = _shown_row(evaluated, state, config)
        values["loss on held-out rows"] = f"{row['eval_loss']:.3f} on {row['eval_rows']}, at update {row['step']}"
        if "eval_accuracy" in row:
            values["accuracy in evaluation"] = _accuracy(row, config)
    base = _base(student)
    story = (
        f"`{base}`, which learned to denoise with ForkLeft {__version__}: to fill in hidden tokens of a block from the "
        "rest of it and the text before it. It writes confident positions first, in parallel, and can be taught by an "
        "autoregressive teacher (`forkleft train`)."
    )
    title = "A diffusion language model adapted with ForkLeft"
    if config.causal_only:
        story = (
            f"`{base}`, which learned to predict next tokens with ForkLeft {__version__}, and nothing of denoising: "
            "what it needs before it can be taught is `forkleft adapt` without `causal_only`."
        )
        title = "A language model trained on next tokens with ForkLeft"
    question = fill(config.prompt_template, {"question": _QUESTIONS.get(config.verifier or "math", _QUESTIONS["math"])})
    rest = [*_use(config, hub_id, question), *(_merge(base, config, hub_id) if adapters else [])]
    return _page(student, title, story, values, state, rest, tags=[*_TAGS, *tags], metadata=metadata)


def _page(
    student: Student,
    title: str,
    story: str,
    values: Mapping[str, str],
    state: TrainerState,
    rest: Sequence[str],
    *,
    tags: Sequence[str],
    metadata: Mapping[str, Any] | None,
) -> str:
    family = student.family
    header: dict[str, Any] = {"library_name": "forkleft", "tags": [*tags], "base_model": _public_name(_source(student))}
    header |= {name: value for name, value in (metadata or {}).items() if value}
    return "\n".join(
        [
            "---",
            ModelCardData(**header).to_yaml(),
            "---",
            "",
            f"# {title}",
            "",
            story,
            "",
            f"Family: {family.attention} attention, blocks of {family.block_size}, anchor {family.anchor}, "
            f"{family.head} head.",
            "",
            "| | |",
            "| --- | --- |",
            *(f"| {name} | {value} |" for name, value in values.items()),
            "",
            *_warnings(state),
            *rest,
        ]
    )


def _source(student: Student) -> str:
    return (student.model.config.name_or_path or "") if student.origin is None else student.origin.source


def _base(student: Student) -> str:
    return _model_name(_source(student), student.model)


def _model_name(source: str, model: PreTrainedModel) -> str:
    return bundled_name(source) or _public_name(source) or _file_name(source) or type(model).__name__


def _rate(config: RunConfig, lengthened: Sequence[str]) -> str:
    return ", ".join([f"{config.learning_rate:g}", SchedulerType(config.lr_scheduler_type).value, *lengthened])


def _shown_row(evaluated: Sequence[dict[str, Any]], state: TrainerState, config: RunConfig) -> dict[str, Any]:
    """The evaluation of the weights beside the card, which are the last, or the best."""
    step = state.best_global_step if config.load_best_model_at_end else None
    return next((row for row in evaluated if row["step"] == step), evaluated[-1])


def _accuracy(row: Mapping[str, Any], config: RunConfig) -> str:
    right, how = f"{row['eval_accuracy']:.1%} of {row['eval_count']}", f"{config.eval_decoding} decoding"
    return f"{right}, at update {row['step']}, {how}"


def _use(config: RunConfig, hub_id: str | None, question: str) -> list[str]:
    """How to write with the model: code that runs as it is; for a local model, in the folder where training started."""
    where = "" if hub_id else ", here from the folder where the training was started"
    return [
        f"It is no autoregressive model, and writes with ForkLeft{where}, or with the tools of its family:",
        "",
        "```python",
        "from forkleft import generate, load_student",
        "from forkleft.prompts import prompt_ids",
        "",
        f"student = load_student({_quoted(hub_id or str(config.output_dir))})",
        f"question = {_quoted(question)}",
        'prompt = prompt_ids(student.tokenizer, [{"role": "user", "content": question}])',
        f"print(generate(student, [prompt], max_new_tokens={config.max_new_tokens})[0].text)",
        "```",
        "",
    ]


def _merge(base: str, config: RunConfig, hub_id: str | None) -> list[str]:
    """How to make a whole model from adapters."""
    whole = f"{Path(hub_id).name if hub_id else config.output_dir}-whole"
    return [
        f"The weights here are adapters of `{base}`, which is loaded with them. To make a whole model of both:",
        "",
        "```bash",
        shlex.join(["forkleft", "merge", "--model", hub_id or str(config.output_dir), "--output", whole]),
        "```",
        "",
    ]


def _quoted(text: str) -> str:
    """A text as Python code, in double quotes."""
    return json.dumps(text, ensure_ascii=False)


def _warnings(state: TrainerState) -> list[str]:
    """The warnings of the run."""
    lines = [f"- Update {row['step']}: {row['text']}." for row in state.log_history if "warning" in row]
    return ["The run warned:", "", *lines, ""] if lines else []


def _public_name(source: str) -> str | None:
    """`owner/name` of the hub, without its revision; None for a folder."""
    name = source.partition("@")[0]
    return name if name.count("/") == 1 and not Path(source).expanduser().exists() and name[0] not in "./~" else None


def _file_name(source: str) -> str:
    """The last part of a path; a GGUF file of the hub keeps its repository."""
    path = Path(source).expanduser()
    return source if path.suffix == ".gguf" and not path.is_absolute() and not path.exists() else path.name
