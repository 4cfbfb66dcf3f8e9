"""The model card that a training run leaves beside its weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from transformers import TrainerState

from forkleft import __version__
from forkleft.config import ForkLeftConfig
from forkleft.students.student import Student
from forkleft.teacher import Teacher

_TAGS = ("forkleft", "diffusion-language-model", "distillation")


def model_card(
    student: Student,
    teacher: Teacher,
    config: ForkLeftConfig,
    questions: int,
    state: TrainerState,
    *,
    tags: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
) -> str:
    """The page, in Markdown with the metadata that the hub reads: `tags` beside our own, and whatever of `metadata` is
    not None."""
    family = student.family
    source = student.model.config.name_or_path if student.origin is None else student.origin.source
    base, master = (
        _public_name(name) or Path(name).name or type(model).__name__
        for name, model in ((source, student.model), (teacher.model.config.name_or_path, teacher.model))
    )
    header = {"library_name": "forkleft", "tags": [*_TAGS, *tags], "base_model": _public_name(source)}
    header |= {name: value for name, value in (metadata or {}).items() if value is not None}
    batch = config.train_batch_size * config.gradient_accumulation_steps * config.world_size
    values = {
        "updates": f"{state.global_step} of {batch} questions, {questions} in all",
        "learning rate": f"{config.learning_rate:g}, {config.lr_scheduler_type.value}",
        "writing order": f"{config.rollout_order}, {config.passes} passes a block, {config.max_new_tokens} tokens",
        "supervision": f"{config.supervision}, {config.view} view, {config.geometry} readout",
        "ρ, μ, δ, λ": f"{config.rho:g}, {config.mu:g}, {config.delta:g}, {config.rank_weight:g}",
        "seed": str(config.seed),
    }
    evaluated = [row for row in state.log_history if "eval_accuracy" in row]
    if evaluated:
        # The weights beside the card are the last ones, or the best.
        step = state.best_global_step if config.load_best_model_at_end else None
        row = next((row for row in evaluated if row["step"] == step), evaluated[-1])
        values["accuracy in evaluation"] = f"{row['eval_accuracy']:.1%} of {row['eval_count']}, at update {row['step']}"
    return "\n".join(
        [
            "---",
            yaml.safe_dump({name: value for name, value in header.items() if value}, allow_unicode=True) + "---",
            "",
            "# A diffusion language model trained with ForkLeft",
            "",
            f"`{base}` taught by `{master}` with ForkLeft {__version__}. The student wrote its own answers, most "
            "uncertain positions first; where only the teacher was right, it learned the teacher's distributions under "
            "its own left prefixes. It decodes as before: confident positions first, in parallel.",
            "",
            f"Family: {family.attention} attention, blocks of {family.block_size}, anchor {family.anchor}, "
            f"{family.head} head.",
            "",
            "| | |",
            "| --- | --- |",
            *(f"| {name} | {value} |" for name, value in values.items()),
            "",
            "It is no autoregressive model, and writes with ForkLeft or the tools of its family:",
            "",
            "```python",
            "from forkleft import generate, load_student",
            "from forkleft.prompts import prompt_ids",
            "",
            f'student = load_student("{config.hub_model_id or Path(config.output_dir).name}")',
            'prompt = prompt_ids(student.tokenizer, [{"role": "user", "content": "…"}])',
            f"print(generate(student, [prompt], max_new_tokens={config.max_new_tokens})[0].text)",
            "```",
            "",
        ]
    )


def _public_name(source: str) -> str | None:
    """`owner/name` of the hub, without its revision; None for a folder."""
    name = source.partition("@")[0]
    return name if name.count("/") == 1 and not Path(source).expanduser().exists() and name[0] not in "./~" else None
