"""Where the models that ship with the package are: `lab:NAME`, wherever a model can be named."""

from pathlib import Path

from forkleft.errors import ForkLeftError, did_you_mean

# Increased when a better lab replaces this one: weights of two versions are never mixed.
LAB_VERSION = 2

_PREFIX = "lab:"
_WEIGHTS = Path(__file__).parents[1] / "lab" / "weights" / f"v{LAB_VERSION}"


def model_path(name: str) -> Path:
    """The folder of a shipped model, which `AutoModelForCausalLM.from_pretrained` can load."""
    known = sorted(path.name for path in _WEIGHTS.iterdir())
    if name not in known:
        raise ForkLeftError(f"no lab model {name!r}; there are {', '.join(known)}{did_you_mean(name, known)}")
    return _WEIGHTS / name


def bundled_name(path: str | Path) -> str | None:
    """`lab:NAME` for the folder of a shipped model; None for any other folder."""
    folder = Path(path)
    return f"{_PREFIX}{folder.name}" if folder.parent == _WEIGHTS else None


def local_path(path_or_hub_id: str | Path) -> Path:
    """Where to look for a model on this machine: the folder of `lab:NAME`, else the given path, with `~` expanded.

    Raises ForkLeftError if the lab has no such model.
    """
    name = str(path_or_hub_id)
    return model_path(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else Path(name).expanduser()
