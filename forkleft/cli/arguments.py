"""What the commands share: adding a command, the arguments of models and samplers, and loading what they name."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from forkleft.errors import ForkLeftError

if TYPE_CHECKING:
    from forkleft.students import Student

Commands = argparse._SubParsersAction
# If unpacking a GGUF file takes longer than this, a line says so.
_LONG_SECONDS = 5.0
# Not from `rollout/orders.py`, which loads PyTorch; a test compares them.
ORDERS = ("confidence", "high_entropy", "low_entropy", "left_to_right", "random")
DTYPES = ("float32", "bfloat16", "float16", "float64")


def add_command(
    parsers: Commands,
    name: str,
    run: Callable[[argparse.Namespace], None],
    summary: str,
    *,
    takes_options: bool = False,
    add_help: bool = True,
) -> argparse.ArgumentParser:
    """Add a command that calls `run` with its options. With takes_options, unknown arguments are kept in `rest`."""
    parser = parsers.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", add_help=add_help
    )
    # `--debug` may also come after the command; SUPPRESS keeps the value of one before it.
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.set_defaults(run=run, takes_options=takes_options, parser=parser)
    return parser


def model_arguments(command: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the arguments that say which student to load, and where."""
    other = "" if required else " (default: a small stand-in)"
    help_text = f"a folder, a repository of the hub, lab:NAME{other}"
    command.add_argument("--model", required=required, metavar="MODEL", help=help_text)
    command.add_argument("--family", metavar="NAME", help="where the checkpoint does not tell (docs/models.md)")
    command.add_argument("--block-size", type=int, metavar="N", help="where the family's usual one is not wanted")
    command.add_argument("--mask-token", type=token, metavar="TOKEN", help="or its id, where the checkpoint says none")
    template_argument(command)
    command.add_argument("--device", metavar="DEVICE", help="cpu, cuda, cuda:1 … (default: a GPU if there is one)")
    command.add_argument(
        "--dtype",
        choices=DTYPES,
        help="default: bfloat16 on a GPU, else float32",
    )
    command.add_argument("--dense-attention", action="store_true", help="on a GPU, attend without FlexAttention")
    command.add_argument("--trust-remote-code", action="store_true", help="let a tokenizer run its own code")


def trust_verifier_argument(command: argparse.ArgumentParser, file: str) -> None:
    """Add `--trust-verifier`. file: who may name a verifier then."""
    help_text = f"import the verifier that {file} names (package.module:function), which runs its code"
    command.add_argument("--trust-verifier", action="store_true", help=help_text)


def template_argument(command: argparse.ArgumentParser) -> None:
    """Add `--chat-template`."""
    help_text = "a Jinja file, or Jinja: where the tokenizer has no chat template, or instead of its own"
    command.add_argument("--chat-template", metavar="FILE", help=help_text)


def sampler_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments that say how a student writes."""
    help_text = "static (default): a fixed number of tokens a pass; native: the family's own settings (docs/models.md)"
    command.add_argument("--decoding", choices=("static", "native"), default="static", help=help_text)
    command.add_argument("--passes", type=int, metavar="N", help="passes a block (default: one token a pass)")
    command.add_argument("--threshold", type=float, metavar="P", help="also commit all positions above this confidence")
    command.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 takes the likeliest token")
    command.add_argument("--top-p", type=float, default=1.0, metavar="P", help="sample from so much mass (default 1)")
    command.add_argument("--seed", type=int, default=0, help="for sampling (default 0)")
    command.add_argument("--batch-size", type=int, default=32, metavar="N", help="responses at a time (default 32)")


def token(text: str) -> str | int:
    """A token, or its id."""
    return int(text) if text.isdecimal() else text


def say_loading(what: str) -> None:
    """Say on standard error what a command is about to do, before PyTorch is imported, which takes seconds.

    Only the first process of several says it, and none that has PyTorch already.
    """
    if "torch" not in sys.modules and int(os.environ.get("RANK", 0)) == 0:
        print(f"{what}; loading PyTorch", file=sys.stderr, flush=True)


def hide_loading_bars() -> None:
    """Switch off the progress bar that Transformers draws for every model it loads."""
    from transformers import modeling_gguf_pytorch_utils
    from transformers.utils import logging

    logging.disable_progress_bar()
    # This bar ignores the setting above.
    modeling_gguf_pytorch_utils.tqdm = _unpacked


def _unpacked(tensors: Sequence[Any], **bar: Any) -> Iterator[Any]:
    """The tensors of a GGUF file; prints one line, instead of a bar, if it takes long to unpack them."""
    begun, said = time.monotonic(), False
    for number, tensor in enumerate(tensors):
        if not said and time.monotonic() - begun > _LONG_SECONDS:
            said = True
            print(f"unpacking the tensors of the GGUF file: {number} of {len(tensors)} done", file=sys.stderr)
        yield tensor


def place(options: argparse.Namespace) -> tuple[str, Any]:
    """The device and the precision that the options name, or the defaults for this machine."""
    import torch

    # Under torchrun every process has a GPU of its own.
    gpu = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    device = options.device or (gpu if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ForkLeftError(f"there is no device {device!r} here: {str(error).splitlines()[0]}") from error
    return device, getattr(torch, options.dtype or ("bfloat16" if device.startswith("cuda") else "float32"))


def loading(options: argparse.Namespace) -> dict[str, Any]:
    """The options of the model, its device and its precision, as arguments of the loaders."""
    device, dtype = place(options)
    names = ("family", "block_size", "mask_token", "chat_template", "trust_remote_code", "dense_attention")
    said = {name: getattr(options, name) for name in names}
    return said | {"device": device, "dtype": dtype}


def student_of(options: argparse.Namespace) -> "Student":
    """Load the student that the options name."""
    from forkleft.students import load_student

    return load_student(options.model, **loading(options))
