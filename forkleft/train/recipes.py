"""Recipes: a training run as a YAML file.

    forkleft train --config recipes/lab.yaml --learning_rate 1e-4 --output_dir runs/other

A recipe names models and data (the fields of `Recipe`) and how to train (those of `ForkLeftConfig`, and with it of
`transformers.TrainingArguments`), all on one level. An option on the command line wins over the file. An option with an
empty value keeps its default.
"""

import copy
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml
from transformers import TrainingArguments

from forkleft.errors import ForkLeftError, check_count, nearest
from forkleft.files import YamlLoader, read_yaml
from forkleft.prompts import read_template
from forkleft.train.adapt_config import AdaptConfig
from forkleft.train.config import ForkLeftConfig
from forkleft.train.run_config import NO_BF16, RunConfig, can_bf16
from forkleft.trust import EVERYTHING, Trust

# The environment variables with the keys of the servers. An option would end up in files and shell histories.
API_KEY, TEACHER_API_KEY = "FORKLEFT_ANSWERS_API_KEY", "FORKLEFT_TEACHER_API_KEY"
_KEYS = {"answers_api_key": API_KEY, "teacher_api_key": TEACHER_API_KEY}

# The servers of a recipe, as their options begin.
_SERVERS = ("answers", "teacher")


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class StudentRecipe:
    """Which student learns from which data: what all recipes have."""

    student: str = _option(None, "The student: a folder, a repository of the hub, or lab:NAME.")
    family: str | None = _option(None, "The student's family, where its checkpoint does not tell (docs/models.md).")
    block_size: int | None = _option(None, "Tokens a block, where the family's usual size is not wanted.")
    mask_token: str | None = _option(None, "The student's mask token, or its id, where its checkpoint does not tell.")
    chat_template: str | None = _option(
        None, "The student's chat template, where its tokenizer has none or another is wanted: a Jinja file, or Jinja."
    )
    trust_remote_code: bool = _option(
        False,
        "Run code that comes with a checkpoint, where nothing else reads it (in a file, with --trust-remote-code).",
    )
    dense_attention: bool = _option(False, "On a GPU, let the student attend without FlexAttention (docs/models.md).")

    train_data: str = _option(
        None, "Training questions: a JSON Lines file (.jsonl, .jsonl.gz), a data set of the hub, or lab:train."
    )
    train_subset: str | None = _option(None, "The subset of a data set of the hub.")
    train_split: str = _option("train", "The split of a data set of the hub.")
    train_questions: int | None = _option(None, "Take so many questions from the start of the data; default: all.")
    eval_data: str | None = _option(None, "Questions for evaluation during training, as train_data; lab:chain-4, …")
    eval_subset: str | None = _option(None, "As train_subset.")
    eval_split: str = _option("test", "As train_split.")
    eval_questions: int | None = _option(None, "As train_questions.")
    columns: dict[str, str] | None = field(
        default=None, metadata={"help": "Names of train_data's columns where they differ, e.g. {question: problem}."}
    )
    eval_columns: dict[str, str] | None = field(default=None, metadata={"help": "The same for eval_data."})

    lora_rank: int | None = _option(None, "Train LoRA adapters of this rank instead of all weights.")
    lora_alpha: int = _option(32, "Their scale.")
    lora_dropout: float = _option(0.0, "Their dropout.")
    lora_targets: list[str] | str = field(default="all-linear", metadata={"help": "The modules that get one."})
    merge_adapters: bool = _option(False, "Save the final model with the adapters merged into its weights.")


@dataclass(frozen=True)
class Recipe(StudentRecipe):
    """Which student learns from which teacher and data (`forkleft train`)."""

    teacher: str = _option(None, "The teacher: a folder, a repository of the hub, or lab:NAME.")
    teacher_gguf_file: str | None = _option(None, "The GGUF file of the teacher in its folder or repository.")
    teacher_dtype: str = _option("bfloat16", "Precision of the teacher's weights: float32, bfloat16 or float16.")
    teacher_device_map: str | None = _option(None, "Where the teacher goes if not on one device: auto, for instance.")
    teacher_batch_size: int = _option(32, "Sequences in one forward of the teacher.")
    teacher_url: str | None = _option(
        None,
        "A vLLM server in pooling mode that runs the teacher, e.g. http://localhost:8000 (docs/teacher-server.md). Of "
        "the teacher's weights only the output head is then read here. If the server wants a key: that is taken from "
        f"the environment, {TEACHER_API_KEY}.",
    )
    teacher_model: str | None = _option(None, "The name of the teacher on that server; default: as teacher says.")
    teacher_timeout: float = _option(300.0, "Seconds after which a request to that server is given up.")
    teacher_attempts: int = _option(
        25, "How often a request is tried, with pauses of up to 30 seconds: ten minutes for a server that restarts."
    )
    teacher_concurrency: int = _option(32, "Requests under way at a time, for each process.")
    answers_url: str | None = _option(
        None,
        "An OpenAI-compatible server that gives the teacher's answers, e.g. http://localhost:8000/v1. If it wants a "
        f"key: that is taken from the environment, {API_KEY}.",
    )
    answers_model: str | None = _option(None, "The name of the teacher on that server; default: as teacher says.")
    answers_timeout: float = _option(600.0, "Seconds after which a request to that server is given up.")
    answers_attempts: int = _option(5, "How often a request is tried, with growing pauses in between.")
    answers_concurrency: int = _option(32, "Requests under way at a time.")

    train_ids: str | None = _option(
        None, "Take only the questions with the ids in this file: a JSON list, one id a line, or a run's routes.jsonl."
    )
    train_route: str | None = _option(
        None, "With a routes.jsonl: the ids that were on this route at their first visit, e.g. LEFTOPD."
    )

    def __post_init__(self) -> None:
        """Check the limits of requests to a server."""
        for name in (f"{server}_{limit}" for server in _SERVERS for limit in ("attempts", "concurrency")):
            check_count(name, getattr(self, name))
        check_count("teacher_batch_size", self.teacher_batch_size)
        for name in (f"{server}_timeout" for server in _SERVERS):
            if not getattr(self, name) > 0:
                raise ForkLeftError(f"{name} must be more than 0 seconds, found {getattr(self, name)}")
        for name in (f"{server}_url" for server in _SERVERS):
            url = getattr(self, name) or "http://"
            if "@" in url:
                raise ForkLeftError(f"{name} must hold no user and password, which would be kept in files; remove them")
            if not url.startswith(("http://", "https://")):
                raise ForkLeftError(f"{name} must begin with http:// or https://, found {url!r}")


@dataclass(frozen=True)
class AdaptRecipe(StudentRecipe):
    """Which student learns to denoise on which data (`forkleft adapt`)."""

    stream: bool = _option(
        False,
        "Read train_data while training, for sets that do not fit into memory; max_steps says how long. Of eval_data "
        "on the hub, only the rows that eval_questions asks for are downloaded.",
    )


@dataclass(frozen=True)
class Form:
    """A kind of recipe: the classes that hold its options, those that it must give, and the command that reads it."""

    recipe: type[StudentRecipe]
    config: type[RunConfig]
    needed: tuple[str, ...]
    command: str


TRAIN = Form(Recipe, ForkLeftConfig, ("student", "teacher", "train_data", "output_dir"), "train")
ADAPT = Form(AdaptRecipe, AdaptConfig, ("student", "train_data", "output_dir"), "adapt")


class _Dumper(yaml.SafeDumper):
    """Put text in quotes if our loader, or another YAML reader, would take it for something else: 'no'."""


_Dumper.yaml_implicit_resolvers = {
    first: [*YamlLoader.yaml_implicit_resolvers.get(first, []), *yaml.SafeLoader.yaml_implicit_resolvers.get(first, [])]
    for first in {**YamlLoader.yaml_implicit_resolvers, **yaml.SafeLoader.yaml_implicit_resolvers}
}


def _shown(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Keep text of several lines, such as a chat template, readable."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _shown)

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "names with values",
}
_NOT_KEPT = ("resume_from_checkpoint", "hub_token")
# The title of the group that begins at an option, in the order of `options()`.
_GROUPS = {
    "student": "The student",
    "teacher": "The teacher",
    "train_data": "Data",
    "lora_rank": "Adapters",
    "stream": "Data",
    "rollout_order": "How the student writes",
    "max_new_tokens": "How the student writes",
    "teacher_max_new_tokens": "The teacher's answers",
    "verifier": "Supervision",
    "weighting": "Denoising",
    "causal_steps": "Next-token prediction",
    "max_length": "Rows",
    "prompt_template": "Prompts and references",
    "questions_per_update": "Updates",
    "save_at": "Records",
    "output_dir": "Output and length (from here on, options of Transformers)",
    "learning_rate": "Learning rate",
    "optim": "Optimiser",
    "gradient_accumulation_steps": "Gradients",
    "bf16": "Precision",
    "gradient_checkpointing": "Memory and speed",
    "logging_strategy": "Logs and trackers",
    "eval_strategy": "Evaluation during training",
    "save_only_model": "Checkpoints",
    "push_to_hub": "The hub",
    "load_best_model_at_end": "The best model",
    "ignore_data_skip": "Repeatability",
    "use_cpu": "Devices",
    "dataloader_drop_last": "Order and loading of data",
    "ddp_find_unused_parameters": "Several processes",
    "debug": "Others",
}
# Options that stand with others than those around them.
_ELSEWHERE = {
    "resume_from_checkpoint": "Checkpoints",
    "train_ids": "Data",
    "train_route": "Data",
    "letters": "Prompts and references",
    "long_prompts": "Prompts and references",
    "allow_unadapted": "The student",
    "trace_steps": "Records",
    "showcase_questions": "Records",
}
# Options of Transformers that mean something else here than in its own help texts.
_TEXTS = {
    "resume_from_checkpoint": "Go on with the run in output_dir: true from its newest whole checkpoint, or the folder "
    "of one of its checkpoints. A larger max_steps makes the run longer.",
    "disable_tqdm": "Plain lines of progress in a terminal, too, instead of a bar that moves.",
    "torch_compile": "Compile the student's decoder layers, for readouts and rollouts.",
    "fp16": "Refused: use bf16. fp16 steps where ForkLeft must be able not to.",
    "deepspeed": "Refused: use fsdp. DeepSpeed steps where ForkLeft must be able not to.",
}
# From here on an exponent is easier to read than digits.
_LARGEST_WHOLE = 10**9


def options(form: Form = TRAIN) -> dict[str, Field]:
    """All options of a recipe by name: models and data first, then the objective, every run's, and Transformers'."""
    shared, theirs = ({option.name for option in fields(kind)} for kind in (RunConfig, TrainingArguments))
    own_first = sorted(fields(form.config), key=lambda option: (option.name in theirs, option.name in shared))
    return {option.name: option for option in [*fields(form.recipe), *own_first] if option.init}


def grouped_options(form: Form = TRAIN) -> dict[str, dict[str, Field]]:
    """The same in groups, by their titles."""
    groups: dict[str, dict[str, Field]] = {}
    title = ""
    for name, option in options(form).items():
        title = _GROUPS.get(name, title)
        groups.setdefault(_ELSEWHERE.get(name, title), {})[name] = option
    return groups


def read_options(
    path: Path, overrides: Sequence[str] = (), form: Form = TRAIN, trust: Trust = EVERYTHING
) -> dict[str, Any]:
    """The options of a recipe's file and of the words of a command line, such as `--learning_rate 1e-4` or `--bf16`.

    If a chat template is a file, its text is read, so that a saved recipe repeats the run from any folder. The name of
    the file is relative to the recipe's folder, else to the working folder; on the command line, only to the latter.
    trust: the code that the file may have run; what the command line says needs no permission.

    Raises ForkLeftError for a file that is not a recipe, an unknown option (naming the nearest known one), a value of
    the wrong kind, a missing option, and code that is not trusted.
    """
    words = option_words(overrides, form)
    in_file = read_yaml(path, "recipe")
    said = checked_options({name: value for name, value in in_file.items() if name not in words}, str(path), form)
    trust.check(said, str(path))
    said |= checked_options(words, None, form)
    values = {name: said[name] for name in in_file | words if name in said}
    if "chat_template" in values:
        folders = (Path(),) if "chat_template" in words else (path.parent, Path())
        values["chat_template"] = read_template(values["chat_template"], *folders)
    if missing := [name for name in form.needed if name not in values]:
        expected = ", ".join(form.needed)
        raise ForkLeftError(f"{path}: expected values for {expected}, {', '.join(missing)} missing; add them")
    return values


def checked_options(values: Mapping[str, Any], where: str | None, form: Form = TRAIN) -> dict[str, Any]:
    """Options by name, each value converted to the right kind; options without a value are left out.

    where: the file they are in, for the message; None for the command line. Raises ForkLeftError as `read_options`.
    """
    known, hints, dashes = options(form), _hints(form), "--" if where is None else ""
    for name in values:
        if name in _KEYS:
            raise ForkLeftError(
                f"{name} is no option, so that it is kept in no file; set {_KEYS[name]} in the environment"
            )
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {dashes}{near}?" if near else f"forkleft {form.command} --options lists all"
            mistake = f"--{name}: there is no such option" if where is None else f"{where}: there is no option {name!r}"
            raise ForkLeftError(f"{mistake}; {hint}")
    given = {name: value for name, value in values.items() if value is not None}
    values = {name: _typed(f"{dashes}{name}", value, hints[name]) for name, value in given.items()}
    if values.get("resume_from_checkpoint") is False:
        del values["resume_from_checkpoint"]
    return values


def recipe_of(said: Mapping[str, Any], form: Form = TRAIN) -> tuple[Any, Any]:
    """The two halves of a recipe. Raises ForkLeftError for a value that an option does not allow."""
    own = {option.name for option in fields(form.recipe)}
    # A copy, because Transformers adds its defaults to dictionaries.
    said = copy.deepcopy(dict(said))
    recipe = form.recipe(**{name: value for name, value in said.items() if name in own})
    try:
        return recipe, form.config(**{name: value for name, value in said.items() if name not in own})
    except (ValueError, ImportError) as error:
        raise ForkLeftError(str(error)) from error


def planned_here(said: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The options without those that this machine does not support, and remarks that say what a run here would need.

    So a run for another machine can be planned here.
    """
    if can_bf16(said.get("bf16"), said.get("use_cpu", False)):
        return dict(said), []
    return {**said, "bf16": False}, [f"{NO_BF16}: to run here, add --bf16 false"]


def recipe_page(said: Mapping[str, Any], form: Form = TRAIN) -> str:
    """The text of a recipe's file with these options, except defaults, secrets, and options of a single start."""
    kept = {name: _whole(value) for name, value in not_default(said, form).items() if name not in _NOT_KEPT}
    return yaml.dump(kept, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _whole(value: Any) -> Any:
    """25 for 25.0: options that take a share or a number of updates hold both as floats."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST_WHOLE else value


def not_default(said: Mapping[str, Any], form: Form = TRAIN) -> dict[str, Any]:
    """The options that differ from their defaults."""
    known = options(form)
    return {name: value for name, value in said.items() if value != default_of(known[name])}


def default_of(option: Field) -> Any:
    """The default of an option."""
    return option.default_factory() if option.default_factory is not MISSING else option.default


def help_of(option: Field) -> str:
    """What an option does, in one line; empty if it has no help text."""
    text = _TEXTS.get(option.name) or option.metadata.get("help") or ""
    # Transformers writes its help texts for argparse.
    return " ".join(text.split()).replace("%%", "%")


def option_words(words: Sequence[str], form: Form = TRAIN) -> dict[str, Any]:
    """`--name value`, `--name=value`, and `--name` alone for true. Values are read as in the file.

    Raises ForkLeftError for a word that is not an option, and for an option without a value that cannot be true.
    """
    values: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ForkLeftError(f"expected an option such as --learning_rate, found {word!r}")
        name, given, value = word[2:].partition("=")
        if not given and rest and not rest[0].startswith("--"):
            value = rest.pop(0)
        elif not given:
            hint = _hints(form).get(name.replace("-", "_"), bool)
            if hint is not Any and bool not in _kinds(hint):
                raise ForkLeftError(f"expected a value behind --{name}")
            value = "true"
        try:
            values[name.replace("-", "_")] = yaml.load(value, YamlLoader)
        except yaml.YAMLError as error:
            raise ForkLeftError(f"--{name}: {value!r} is no YAML value; put it in quotes") from error
    return values


def _typed(name: str, value: Any, hint: Any) -> Any:
    """A value in the kind of its option: a number may be in quotes, and text may look like a number.

    Raises ForkLeftError if the value fits none of the option's kinds.
    """
    if hint is Any:
        return value
    kinds = _kinds(hint)
    if isinstance(value, list) and list in kinds:
        (inner,) = kinds[list] or (Any,)
        return [_typed(name, entry, inner) for entry in value]
    if isinstance(value, dict) and dict in kinds:
        _, inner = kinds[dict] or (Any, Any)
        return {key: _typed(name, entry, inner) for key, entry in value.items()}
    if type(value) in kinds:
        return value
    number = isinstance(value, int | float | str) and not isinstance(value, bool)
    for kind in (int, float):
        if kind in kinds and number:
            try:
                if kind is float or float(value) == int(float(value)):
                    return kind(float(value))
            except (ValueError, OverflowError):
                continue
    # If an option also takes a list or names with values, text is a name or a file: nothing else becomes text.
    if str in kinds and not {list, dict} & kinds.keys() and not isinstance(value, list | dict | None):
        return str(value).lower() if isinstance(value, bool) else str(value)
    wanted = " or ".join(words for kind, words in _WORDS.items() if kind in kinds)
    raise ForkLeftError(f"{name}: expected {wanted or 'nothing, as no recipe can hold it'}, found {value!r:.60}")


def _hints(form: Form) -> dict[str, Any]:
    """The declared type of every option."""
    # Transformers declares only text: the folder of a checkpoint, where true means the newest one here and false means
    # none; and an old notation of FSDP, where true and false are the new notation.
    ours = {"resume_from_checkpoint": bool | str, "fsdp": bool | str}
    return typing.get_type_hints(form.config) | typing.get_type_hints(form.recipe) | ours


def _kinds(hint: Any) -> dict[Any, tuple[Any, ...]]:
    """The YAML kinds that a type hint allows, each with the types inside it."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return {_kind(part): typing.get_args(part) for part in (typing.get_args(hint) if union else (hint,))}


def _kind(hint: Any) -> Any:
    """The YAML kind of a type hint."""
    if typing.get_origin(hint) is typing.Literal:
        return type(typing.get_args(hint)[0])
    kind = typing.get_origin(hint) or hint
    # The choices of Transformers are enumerations of strings.
    return str if issubclass(kind, str) else kind
