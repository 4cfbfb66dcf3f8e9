"""Code that files name: it runs only if the person who starts the command says so, outside of the files.

Two options of a recipe, a study or a benchmark run code that somebody else may have written: `verifier:
package.module:function` imports that module, and `trust_remote_code: true` lets a checkpoint bring its own code. A file
may come from anywhere, so it cannot give itself the permission.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forkleft.errors import ForkLeftError

_VERIFIER, _REMOTE_CODE = "--trust-verifier", "--trust-remote-code"


@dataclass(frozen=True)
class Trust:
    """What files may run.

    verifiers: any function that they name as a verifier; named: only these functions, because the command line names
    them itself. remote_code: code that comes with checkpoints.
    """

    verifiers: bool = False
    remote_code: bool = False
    named: tuple[str, ...] = ()

    def check(self, options: Mapping[str, Any], where: str) -> None:
        """Raise ForkLeftError if options that a file gives run code, and that is not allowed. where: the file."""
        verifier = options.get("verifier")
        if names_code(verifier) and not self.verifiers and verifier not in self.named:
            module = str(verifier).partition(":")[0]
            raise ForkLeftError(
                f"{where} names the verifier {verifier!s:.200}, whose code would run: expected that the command line "
                f"allows it, too; read {module:.200}, and if you trust it add {_VERIFIER}"
            )
        if options.get("trust_remote_code") and not self.remote_code:
            raise ForkLeftError(
                f"{where} says trust_remote_code: true, so that code of its checkpoints would run: expected that the "
                f"command line says it, too; read that code, and if you trust it add {_REMOTE_CODE}"
            )


# In Python, who reads a file decides what to read.
EVERYTHING = Trust(verifiers=True, remote_code=True)


def names_code(verifier: Any) -> bool:
    """Whether a verifier is a function to be imported, `package.module:function`, rather than a kind of ours."""
    return isinstance(verifier, str) and ":" in verifier


def trusting_words(options: Mapping[str, Any]) -> list[str]:
    """What a command line must say so that a file with these options is obeyed."""
    words = [_VERIFIER] if names_code(options.get("verifier")) else []
    return words + ([_REMOTE_CODE] if options.get("trust_remote_code") else [])
