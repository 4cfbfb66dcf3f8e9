"""Runs behind `forkleft train` and `forkleft answer`: from a recipe to models, data and a trainer."""

import copy
import logging
import os
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from rich.console import Console
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from forkleft.cli.sources import rows_of
from forkleft.errors import ForkLeftError, StoppedError, check_choice
from forkleft.files import check_writable, write_text
from forkleft.progress import Meter
from forkleft.report.curves import draw_curves
from forkleft.report.page import write_report
from forkleft.students import Student, load_student
from forkleft.students.adapters import no_peft
from forkleft.students.saving import check_mergeable
from forkleft.teacher import (
    AnswerCache,
    AnswerServer,
    RemoteTeacher,
    StateServer,
    Teacher,
    cached_answers,
    load_teacher,
)
from forkleft.teacher.answers import Answerer, Renamed, answer_key
from forkleft.train import checkpoints
from forkleft.train.batches import batches_of
from forkleft.train.config import ForkLeftConfig
from forkleft.train.data import Example, read_ids, rows_named
from forkleft.train.folders import RunFolder, in_main_process
from forkleft.train.preflight import Prepared, check_folder, check_options, check_updates, plan_of
from forkleft.train.prepare import check_adapted, prepare_examples, sharing_vocabulary
from forkleft.train.recipes import API_KEY, TEACHER_API_KEY, Recipe, StudentRecipe, recipe_page
from forkleft.train.resume import decisive_data, questions_digest
from forkleft.train.run_config import RunConfig
from forkleft.train.run_files import METRICS
from forkleft.train.trainer import ForkLeftTrainer
from forkleft.trust import trusting_words

_LOG = logging.getLogger(__name__)
# A phase of `forkleft answer`, as in training.
_ASKING = "teacher"
# The recipe that repeats a run, in its folder.
RECIPE = "recipe.yaml"


class KeptRecipe(TrainerCallback):
    """Writes a recipe that repeats the run into the output folder, when the run begins."""

    def __init__(self, page: str, folder: Path) -> None:
        self.page, self.folder = page, folder

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Write it, in the main process."""
        if state.is_world_process_zero:
            write_text(self.folder / RECIPE, self.page)


@contextmanager
def saying_how_to_resume(command: str, folder: Path, said: Mapping[str, Any]) -> Iterator[None]:
    """Add to the error of a run that a signal has ended the command that goes on with it. said: its options."""
    try:
        yield
    except StoppedError as error:
        again = shlex.join([*_launcher(), "forkleft", command, "--config", str(folder / RECIPE)])
        if error.step:
            again += " --resume_from_checkpoint true"
        again = " ".join([again, *trusting_words(said)])
        raise StoppedError(f"{error}; to go on: {again}", step=error.step, number=error.number) from error


def _launcher() -> list[str]:
    """What starts as many processes as there are now; nothing for a single one."""
    processes, here = (int(os.environ.get(name, 1)) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if processes == 1:
        return []
    # Only the user knows which of the nodes the others should find.
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST:29500"]
    nodes = ["--nnodes", str(processes // here), *meeting] if processes > here else ["--standalone"]
    return ["torchrun", *nodes, "--nproc-per-node", str(here), "-m"]


def train(recipe: Recipe, config: ForkLeftConfig, said: Mapping[str, Any]) -> ForkLeftTrainer:
    """Train as a recipe says, or resume (`config.resume_from_checkpoint`). Returns the trainer.

    said: the options that recipe and config come from (`read_options`); they are written into the output folder.
    """
    folder = RunFolder(config.output_path)
    # Held from the start, so that a second run is refused before it loads its models.
    with folder.held():
        found = prepare(recipe, config, folder)
        student = student_of(recipe)
        # What there is here of a teacher on a server was read to check it.
        teacher = teacher_of(recipe, student) if recipe.teacher_url is None else found.teacher
        settings: dict[str, Any] = {}
        if recipe.lora_rank is not None:
            settings["peft_config"] = adapters_of(recipe, recipe.lora_rank)
        trainer = ForkLeftTrainer(
            student,
            teacher,
            config,
            found.examples,
            found.held_out,
            answerer=_server(recipe, teacher),
            merge_adapters=recipe.merge_adapters,
            callbacks=[KeptRecipe(recipe_page(said), folder.path)],
            folder=folder,
            stop_on_signals=True,
            **settings,
        )
        with saying_how_to_resume("train", folder.path, said):
            trainer.train(resume_from_checkpoint=config.resume_from_checkpoint)
        if trainer.is_world_process_zero():
            draw_curves(trainer.metrics_file.path, folder.path / "curves.png")
    return trainer


def end(folder: Path) -> None:
    """Write the report of a run that has ended, and print what there is in its folder, and where the report is.

    The run is over and its model is saved: if the report fails, for whatever reason, a warning is all that is due.
    """
    try:
        report = write_report([folder])
    except Exception as error:
        report = None
        _LOG.warning("the run is complete, but its report could not be written: %s", error)
    print(end_message(folder))
    if report is not None:
        print(f"report: {report}")


def end_message(folder: Path) -> str:
    """A message that says what a run has left in its folder, in lines of 80 columns."""
    names = [METRICS, "curves.png", *(path.name for path in checkpoints.steps(folder).values())]
    there = ["the model", "its card", *(name for name in names if (folder / name).exists())]
    return _wrapped(f"{folder}: {', '.join(there[:-1])} and {there[-1]}", indent="  ")


def check(recipe: Recipe, config: ForkLeftConfig, remarks: Sequence[str] = ()) -> None:
    """Check a run as `train` does before it loads the models, and print what it would do, with the remarks."""
    folder = RunFolder(config.output_path)
    found = prepare(recipe, config, folder)
    print_plan(plan_of(recipe, config, folder, found), remarks)


def print_plan(lines: Iterable[tuple[str, str]], remarks: Sequence[str]) -> None:
    """Print what a run would do, as rows of a name and a text, and remarks on it."""
    if PartialState().is_main_process:
        for name, text in [*lines, *(("remark", remark) for remark in remarks)]:
            print(_wrapped(f"{name:<10} {text}", indent=" " * 11))


def _wrapped(text: str, *, indent: str) -> str:
    """Wrap a text to 80 columns. Paths are not broken, so that they can be copied."""
    return textwrap.fill(text, 80, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def prepare(recipe: Recipe, config: ForkLeftConfig, folder: RunFolder) -> Prepared:
    """Check all that can be checked without the weights of the models, and read the questions. Raises ForkLeftError.

    folder: the output folder; if it is held, then by this run.
    """
    check_options(recipe, config)
    in_main_process(partial(check_folder, config, folder))
    in_main_process(partial(check_writable, config.answer_file.parent, "answer_cache"))
    student, teacher = _without_weights(recipe)
    if isinstance(teacher, RemoteTeacher):
        in_main_process(teacher.server.check)
    check_adapted(student, config)
    if recipe.lora_rank is not None:
        check_adapters(adapters_of(recipe, recipe.lora_rank), student, merge=recipe.merge_adapters)
    held_out, verifier = None, config.named_verifier()
    if recipe.eval_data is not None:
        held_out = prepare_examples(student, teacher, eval_rows(recipe, recipe.eval_data, config), config, verifier)
    examples = prepare_examples(student, teacher, _train_rows(recipe, config), config, verifier)
    check_updates(config, batches_of(config, len(examples)))
    in_main_process(partial(_check_answers, recipe, config, teacher, examples))
    found = Prepared(student, teacher, examples, held_out)
    data = decisive_data(student, questions=questions_digest(examples))
    in_main_process(partial(check_folder, config, folder, data))
    return found


def _without_weights(recipe: Recipe) -> tuple[Student, Teacher]:
    """Both models without their weights, the student restricted to the shared vocabulary.

    A teacher on a server has its output head.
    """
    student = student_of(recipe, weights=False)
    teacher = teacher_of(recipe, student, weights=False)
    return sharing_vocabulary(student, teacher), teacher


def _check_answers(recipe: Recipe, config: ForkLeftConfig, teacher: Teacher, examples: Sequence[Example]) -> None:
    """Raise ForkLeftError if answers of the teacher are missing that nobody could give during the training.

    A server that generates is not asked whether it is there if all answers are: it may have been stopped.
    """
    answerer: Answerer | None = _server(recipe, teacher)
    if answerer is None and recipe.teacher_url is None:
        return
    missing = list(examples)
    if config.answer_file.exists():
        cache, identity = AnswerCache(config.answer_file), (answerer or teacher).identity
        keys = [answer_key(identity, example.messages, config.teacher_max_new_tokens) for example in examples]
        missing = [example for example, key in zip(examples, keys, strict=True) if cache.get(key) is None]
    if not missing:
        return
    if isinstance(answerer, AnswerServer):
        answerer.check()
    else:
        raise ForkLeftError(
            f"{len(missing)} of {len(examples)} questions have no answer of the teacher in {config.answer_file}, the "
            f"first {missing[0].id}, and {recipe.teacher_url} gives hidden states only; ask the teacher first "
            "(forkleft answer with the same recipe), or name a server that generates (answers_url)"
        )


def answer(recipe: Recipe, config: ForkLeftConfig) -> None:
    """Fill the teacher's answer cache with the answers to all training questions, and print how many are right.

    Processes under torchrun divide the questions.
    """
    state, console, budget = PartialState(), Console(), config.teacher_max_new_tokens
    # Only the student's tokenizer, context and stop ids are needed, and no more of a teacher on a server. The server
    # of `teacher_url` gives no answers, and need not be there.
    in_memory = replace(recipe, teacher_url=None)
    student, teacher = _without_weights(in_memory)
    cache, verifier = AnswerCache(config.answer_file), config.named_verifier()
    examples = prepare_examples(student, teacher, _train_rows(recipe, config), config, verifier)
    server = _server(recipe, teacher)
    if server is not None:
        in_main_process(server.check)
    answerer: Answerer | None = server
    if answerer is None:
        answerer = teacher = teacher_of(in_memory, student)
        teacher.place(config.device)
        if recipe.teacher_url is not None:
            # As whose answers the training will look for them.
            answerer = Renamed(teacher, teacher_of(recipe, student, weights=False).identity)
    mine = examples[state.process_index :: state.num_processes]
    keys = [answer_key(answerer.identity, example.messages, budget) for example in mine]
    unknown = [key for key in keys if cache.get(key) is None]
    name = f"question (process 1 of {state.num_processes})" if state.num_processes > 1 else "question"
    known = len(mine) - len(unknown)
    with Meter(console, name, len(mine), done=known, shown=state.is_main_process, at_ends=True) as meter:

        def found(count: int) -> None:
            meter.move(meter.done + count)
            meter.tell("")
            # Begun again after each batch, so that a log is not silent until the next one.
            meter.phase(_ASKING)

        meter.phase(_ASKING)

        asked = [example.messages for example in mine]
        answers = cached_answers(answerer, cache, asked, max_new_tokens=budget, found=found)
        texts = [written.text for written in answers]
    expected = [example.answer for example in mine]
    right = sum(verifier.judge(texts, expected, ids=[example.id for example in mine]))
    right, new = map(sum, zip(*gather_object([(right, len(set(unknown)))]), strict=True))
    if state.is_main_process:
        console.print(
            f"{len(examples)} questions, {right} answered right ({right / len(examples):.1%}); {new} new answers in "
            f"{cache.path}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def student_of(recipe: StudentRecipe, *, weights: bool = True) -> Student:
    """The student of a recipe, in float32: bfloat16 weights hardly move at the learning rates of post-training."""
    token = recipe.mask_token
    return load_student(
        recipe.student,
        family=recipe.family,
        block_size=recipe.block_size,
        mask_token=int(token) if token is not None and token.isdecimal() else token,
        chat_template=recipe.chat_template,
        trust_remote_code=recipe.trust_remote_code,
        dense_attention=recipe.dense_attention,
        weights=weights,
    )


def teacher_of(recipe: Recipe, student: Student, *, weights: bool = True) -> Teacher:
    """The teacher of a recipe for its student."""
    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    check_choice("teacher_dtype", recipe.teacher_dtype, known)
    settings: dict[str, Any] = {}
    if recipe.teacher_url is not None:
        settings["server"] = state_server(
            recipe.teacher_url,
            recipe.teacher_model or recipe.teacher,
            attempts=recipe.teacher_attempts,
            timeout=recipe.teacher_timeout,
            concurrency=recipe.teacher_concurrency,
        )
    elif recipe.teacher_device_map is not None:
        settings["device_map"] = recipe.teacher_device_map
    teacher = load_teacher(
        recipe.teacher,
        student=student,
        gguf_file=recipe.teacher_gguf_file,
        dtype=known[recipe.teacher_dtype],
        batch_size=recipe.teacher_batch_size,
        trust_remote_code=recipe.trust_remote_code,
        weights=weights,
        **settings,
    )
    if recipe.teacher_gguf_file is not None or recipe.teacher.endswith(".gguf"):
        # Transformers names only the folder, and there may be several files in it.
        teacher.model.config.name_or_path = str(Path(recipe.teacher, recipe.teacher_gguf_file or ""))
    return teacher


def state_server(url: str, model: str, **settings: Any) -> StateServer:
    """A server that runs a teacher, with the key for it from the environment."""
    return StateServer(url, model, api_key=_key(TEACHER_API_KEY), **settings)


def _train_rows(recipe: Recipe, config: ForkLeftConfig) -> Sequence[Mapping[str, Any]]:
    if recipe.train_ids is None and recipe.train_route is not None:
        raise ForkLeftError("train_route is of the routes.jsonl that train_ids names; add train_ids, or leave it out")
    # Read before the data, which may take long to load.
    names = None if recipe.train_ids is None else read_ids(recipe.train_ids, recipe.train_route)
    rows = train_rows(recipe, config)
    if recipe.train_ids is None or names is None:
        return rows
    return rows_named(rows, names, config.prompt_template, source=recipe.train_ids)


def train_rows(recipe: StudentRecipe, config: RunConfig) -> list[dict[str, Any]]:
    """The rows of a recipe's training data."""
    with said_in("train_data"):
        return rows_of(*train_source(recipe, config))


def train_source(recipe: StudentRecipe, config: RunConfig) -> tuple[Any, ...]:
    """Where a recipe's training data comes from, as `rows_of` and `RowStream` take it."""
    chosen = (recipe.train_data, recipe.train_subset, recipe.train_split, recipe.train_questions, recipe.columns)
    return (*chosen, config.seed)


def eval_rows(recipe: StudentRecipe, source: str, config: RunConfig, *, remote: bool = False) -> list[dict[str, Any]]:
    """The rows of a recipe's data for evaluation; remote: as for `rows_of`."""
    with said_in("eval_data"):
        return rows_of(
            source,
            recipe.eval_subset,
            recipe.eval_split,
            recipe.eval_questions,
            recipe.eval_columns,
            config.seed,
            remote=remote,
        )


@contextmanager
def said_in(option: str) -> Iterator[None]:
    """Put the option's name in front of errors that are raised within."""
    try:
        yield
    except ForkLeftError as error:
        raise ForkLeftError(f"{option}: {error}") from error


def _server(recipe: Recipe, teacher: Teacher) -> AnswerServer | None:
    """The answer server of a recipe. Its answers end at the same stop tokens as those of the teacher in memory."""
    if recipe.answers_url is None:
        return None
    stop = [str(teacher.tokenizer.decode([i])) for i in teacher.stop_ids]
    return AnswerServer(
        recipe.answers_url,
        recipe.answers_model or recipe.teacher,
        stop=stop,
        api_key=_key(API_KEY),
        attempts=recipe.answers_attempts,
        timeout=recipe.answers_timeout,
        concurrency=recipe.answers_concurrency,
    )


def _key(variable: str) -> str | None:
    # A line end from a file would not fit into a header.
    return os.environ.get(variable, "").strip() or None


def adapters_of(recipe: StudentRecipe, rank: int) -> Any:
    """The adapters that a recipe names. Raises ForkLeftError if PEFT is not installed."""
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise no_peft() from error
    return LoraConfig(
        r=rank,
        lora_alpha=recipe.lora_alpha,
        lora_dropout=recipe.lora_dropout,
        target_modules=recipe.lora_targets,
        exclude_modules=["lm_head"],
        task_type="CAUSAL_LM",
    )


def check_adapters(adapters: Any, student: Student, *, merge: bool) -> None:
    """Raise ForkLeftError if a student cannot have these adapters, or if they are to be merged and cannot be."""
    from peft import get_peft_model

    model = copy.deepcopy(student.model)
    try:
        get_peft_model(model, adapters)
    except ValueError as error:
        raise ForkLeftError(f"the adapters cannot be made: {error}; mend lora_rank, lora_targets, …") from error
    if merge:
        check_mergeable(model)
