"""Adapters: folders with the weights that PEFT trained for a base, without the base itself.

`adapter_config.json` names the base: a folder, a repository of the hub, or `lab:NAME`. A base may itself be a folder of
adapters. Once loaded, base and adapters are one stock model: the adapters are added into its weights.
"""

from pathlib import Path

from transformers import PreTrainedModel

from forkleft.errors import ForkLeftError
from forkleft.files import write_json
from forkleft.students.shards import checkpoint_folder, first_line, read_json, shown

CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"


def adapters_and_base(folder: Path, *, weights: bool = True) -> tuple[list[Path], Path]:
    """The adapter folders of a checkpoint, in the order in which they are added, and the folder of the base.

    A whole checkpoint is its own base, without adapters. weights: download those of a base on the hub. Raises
    ForkLeftError, naming the base, if the base is not found.
    """
    adapters: list[Path] = []
    while (folder / CONFIG).is_file():
        if (folder / "config.json").is_file():
            raise ForkLeftError(
                f"{folder} holds a whole model (config.json) as well as adapters ({CONFIG}); move either to a folder "
                "of its own"
            )
        adapters.insert(0, folder)
        folder = _base_folder(folder, weights)
        if folder in adapters:
            raise ForkLeftError(f"{adapters[0] / CONFIG} names adapters that are built on it as their base")
    return adapters, folder


def add_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Add the adapters in a folder into the weights of the base they were trained on.

    Raises ForkLeftError if PEFT is not installed, or if the adapters do not fit the model.
    """
    try:
        from peft import PeftConfig, PeftModel
    except ImportError as error:
        raise no_peft() from error
    if not (folder / _WEIGHTS).is_file():
        # PEFT would look for a pickle next, and then on the hub.
        raise ForkLeftError(f"{folder} has {CONFIG}, but no {_WEIGHTS}: it is not whole, copy or download it again")
    try:
        adapted = PeftModel(model, PeftConfig.from_pretrained(str(folder)))
        report = adapted.load_adapter(folder, "default", torch_device=str(model.device))
        wrong = sorted([*report.missing_keys, *report.unexpected_keys])
        adapted.merge_and_unload()
    except Exception as error:  # a damaged file, another shape, adapters that cannot be merged, …
        raise ForkLeftError(
            f"the adapters in {folder} cannot be added to {type(model).__name__}: {first_line(error)}; were they "
            "trained on another base?"
        ) from error
    if wrong:
        raise ForkLeftError(
            f"the adapters in {folder} are not those of {type(model).__name__}; missing or unexpected: {shown(wrong)}"
        )
    # PEFT froze the base; now it is a whole model again, which can be trained.
    model.requires_grad_(True)


def note_base(folder: Path, source: str) -> None:
    """Write into a folder of adapters the name of their base. source: as it was given to `load_student`."""
    path = folder / CONFIG
    name, _, revision = (source, "", "") if Path(source).is_dir() else source.partition("@")
    fields = read_json(path) | {"base_model_name_or_path": name, "revision": revision or None}
    write_json(path, fields, sort_keys=True)


def no_peft() -> ForkLeftError:
    """The error if PEFT is not installed."""
    return ForkLeftError("adapters need PEFT; install it with: pip install 'forkleft[lora]'")


def _base_folder(folder: Path, weights: bool) -> Path:
    fields = read_json(folder / CONFIG)
    name, revision = fields.get("base_model_name_or_path"), fields.get("revision")
    if not isinstance(name, str) or not name:
        raise ForkLeftError(
            f"{folder} holds adapters, and {CONFIG} does not say of which base; write that there as "
            "base_model_name_or_path: a folder, owner/name, or lab:NAME"
        )
    base = f"{name}@{revision}" if revision and not Path(name).expanduser().is_dir() else name
    try:
        return checkpoint_folder(base, weights=weights)
    except ForkLeftError as error:
        raise ForkLeftError(
            f"{folder} holds adapters of {base}, which is not found: {error}. Put the base there, or write its place "
            f"into {folder / CONFIG} as base_model_name_or_path"
        ) from error
