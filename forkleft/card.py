"""The model card that a training run leaves beside its weights."""

from transformers import TrainerState

from forkleft import __version__
from forkleft.config import ForkLeftConfig
from forkleft.students.student import Student
from forkleft.teacher import Teacher


def model_card(student: Student, teacher: Teacher, config: ForkLeftConfig, questions: int, state: TrainerState) -> str:
    """The page, in Markdown with the metadata that the hub reads."""
    family = student.family
    names = [model.config.name_or_path or type(model).__name__ for model in (student.model, teacher.model)]
    batch = config.train_batch_size * config.gradient_accumulation_steps * config.world_size
    values = {
        "updates": f"{state.global_step} of {batch} questions, {questions} in all",
        "learning rate": f"{config.learning_rate:g}, {config.lr_scheduler_type}",
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
            "library_name: transformers",
            "tags: [forkleft, diffusion-language-model, distillation]",
            f"base_model: {names[0]}",
            "---",
            "",
            "# A diffusion language model trained with ForkLeft",
            "",
            f"`{names[0]}` taught by `{names[1]}` with ForkLeft {__version__}. The student wrote its own answers, most "
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
        ]
    )
