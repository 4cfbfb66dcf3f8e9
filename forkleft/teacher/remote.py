"""A teacher on a server: vLLM in pooling mode gives the hidden states, and the output head is here.

    teacher = load_teacher("Qwen/Qwen3-30B-A3B", student=student, server=StateServer("http://node7:8000", "teacher"))

A hidden state is all that the head needs, so the distribution over all words is exact for 2 to 4 kB a token, and the
trainer holds one tensor of the teacher instead of all. `docs/teacher-server.md` shows how to start such a server.

Shapes: T tokens, S positions asked for, E the teacher's width, V the rows of its head.
"""

import json
import math
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cached_property, partial
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import MoeModelOutputWithPast

from forkleft.errors import ForkLeftError
from forkleft.prompts import Message, Reading
from forkleft.teacher.answers import Answer, Keep
from forkleft.teacher.connection import Connection
from forkleft.teacher.ending import Ending
from forkleft.teacher.local import Hidden, Teacher

_GUIDE = "docs/teacher-server.md shows how to start such a server"
# By so many nats a token the same text may cost more or less the next time; rounding to bfloat16 makes about 0.01.
_SAME_COST = 0.2
# A reply may be so many times as large as one of the teacher.
_OTHER_WIDTHS = 4
# A server that loads a large model is away for minutes. With the pauses of `Connection`, this waits for ten.
_ATTEMPTS = 25


class StateServer(Connection):
    """A vLLM server in pooling mode behind `url` (for instance http://localhost:8000), which serves `model`.

    settings: those of `Connection`.
    """

    _wanted, _options = "hidden states", "teacher"

    def __init__(self, url: str, model: str, *, attempts: int = _ATTEMPTS, **settings: Any) -> None:
        super().__init__(url, model, attempts=attempts, **settings)
        self._root = self.url.removesuffix("/v1")

    def check(self) -> None:
        """Raise ForkLeftError if the server cannot be reached, does not let us in, or does not list the model."""
        self._entry()

    @cached_property
    def context(self) -> float:
        """The longest sequence that the server takes; infinite if it does not say. Raises as `check` does."""
        said = self._entry().get("max_model_len")
        return said if isinstance(said, int) and said > 0 else math.inf

    def _entry(self) -> dict[str, Any]:
        """What the server says of the model."""
        listed = self.listed(f"{self._root}/v1/models")
        if not listed:
            raise ForkLeftError(f"{self.url} lists no models, as vLLM does; is this its address? {_GUIDE}")
        if self.model not in listed:
            raise ForkLeftError(
                f"{self.url} serves {', '.join(map(repr, listed))}, expected {self.model!r}; name what it serves "
                "(teacher_model), or start it with --served-model-name"
            )
        return listed[self.model]

    def states(self, ids: Sequence[int], dtype: torch.dtype, width: int) -> torch.Tensor:
        """`hidden_TE` of all tokens of a sequence, as one request gives it. width: what the teacher's is.

        Raises what `send` does, and ValueError, KeyError or TypeError for a reply that is not whole.
        """
        body = {
            "model": self.model,
            "input": [list(ids)],
            "task": "token_embed",
            "encoding_format": "bytes",
            "embed_dtype": _name(dtype),
            "endianness": "little",
            "use_activation": False,
        }
        # Those of another model may be wider, which is told as such.
        most = _OTHER_WIDTHS * len(ids) * width * dtype.itemsize
        return _parsed(*self.send(f"{self._root}/pooling", body, most=most), len(ids), dtype)


class RemoteTeacher(Teacher):
    """A teacher whose layers run on a server.

    model: without weights; ending: its head and final norm. stop_ids: as for a teacher in memory. Its own answers come
    from elsewhere: a cache that was filled before, or a server that generates.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        stop_ids: Sequence[int],
        server: StateServer,
        ending: Ending,
    ) -> None:
        super().__init__(model, tokenizer, stop_ids=stop_ids)
        self.server, self._norm, self._fingerprint = server, ending.norm, ending.fingerprint
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        is_tied = head.weight is embedding.weight
        head.weight = torch.nn.Parameter(ending.head_VE, requires_grad=False)
        if is_tied:
            embedding.weight = head.weight
        self._lock = threading.Lock()
        # What `check` reads, what it cost in nats a token at first, and how often the server was lost by then.
        self._known: list[Reading] = []
        self._cost: float | None = None
        self._losses = 0

    @property
    def _marks(self) -> list[str]:
        return [*super()._marks, self._fingerprint]

    @property
    def reading_context(self) -> float:
        """The longest sequence that the model was made for and the server takes."""
        return min(self.context, self.server.context)

    def place(self, device: torch.device) -> None:
        """Move the head to a device."""
        self.model.get_output_embeddings().to(device)

    def answers(
        self, conversations: Sequence[Sequence[Message]], *, max_new_tokens: int, keep: Keep | None = None
    ) -> list[Answer]:
        """Raise ForkLeftError: hidden states are all that the server gives."""
        raise ForkLeftError(
            f"{len(conversations)} question(s) have no answer of the teacher yet, the first {conversations[0]!r:.120}, "
            f"and {self.server.url} gives hidden states only; ask the teacher first (forkleft answer), or name a "
            "server that generates (answers_url)"
        )

    def hidden(self, readings: Sequence[Reading]) -> list[torch.Tensor]:
        """`hidden_SE` for each reading. Raises ForkLeftError naming the question and the server."""
        return [found() if callable(found) else found for found in self.ask(readings)]

    def ask(self, readings: Sequence[Reading]) -> list[Hidden]:
        """Send the requests for the hidden states of each reading, and return at once with calls that wait for them.

        What `check` has read is read again first: since then there may be another server.
        """
        self._check_head()
        over = threading.Event()
        asks = [partial(self._read, reading, over) for reading in readings]
        first, *futures = self.server.begin([partial(self._look, over), *asks], over)
        return [partial(self._result, first, future) for future in futures]

    def check(self, known: Sequence[Reading]) -> None:
        """Raise ForkLeftError unless the server serves this teacher: its hidden states must fit norm and head.

        known: continuations that the teacher finds likely at their positions, such as its own answers. They are read
        again before each request for hidden states, and after the server was away.
        """
        self._check_head()
        self.server.check()
        self._known, self._cost, over = list(known), None, threading.Event()
        # In the background, so that a long wait is told of.
        (look,) = self.server.begin([partial(self._look, over)], over)
        self.server.first_done([look])
        look.result()

    def _result(self, first: Future[torch.Tensor], future: Future[torch.Tensor]) -> torch.Tensor:
        for awaited in (first, future):
            self.server.first_done([awaited])
            awaited.result()
        return future.result()

    def _read(self, reading: Reading, over: threading.Event) -> torch.Tensor:
        def ask() -> torch.Tensor:
            hidden_SE = self._states(reading, self.head_weight.dtype)
            if fault := self._fault(hidden_SE):
                raise ValueError(fault)
            return hidden_SE

        hidden_SE = self.server.tried(ask, over, name=f"question {reading.id}", hint=_GUIDE)
        with self._lock:
            if self.server.losses != self._losses:
                # It was away: what is there now may be another one.
                self._look(over)
        return hidden_SE

    def _states(self, reading: Reading, dtype: torch.dtype) -> torch.Tensor:
        # As in memory: what is behind the last position asked for is left out.
        ids = [*reading.prompt, *reading.response[: max(reading.positions, default=0)]]
        width = self.head_weight.shape[1]
        return self.server.states(ids, dtype, width)[[len(reading.prompt) - 1 + i for i in reading.positions]]

    def _fault(self, hidden_SE: torch.Tensor) -> str | None:
        """What shows that rows are no hidden states of this teacher; None if nothing does."""
        width = self.head_weight.shape[1]
        if hidden_SE.shape[1] != width:
            return f"expected hidden states of width {width}, found {hidden_SE.shape[1]}: of another model"
        if not hidden_SE.isfinite().all():
            return "expected finite hidden states, found NaN or infinity"
        if self._norm is not None and not self._norm.came_out(hidden_SE):
            return (
                "expected hidden states that came out of the teacher's final norm, found others: of another model, "
                "from before the norm, or normalised (use_activation)"
            )
        return None

    @torch.no_grad()
    def _look(self, over: threading.Event) -> torch.Tensor:
        """The cost of what the teacher should know, which must be low, and what it was before."""
        losses, url = self.server.losses, self.server.url
        nll: list[torch.Tensor] = [torch.zeros(0)]
        read: list[torch.Tensor] = []
        for reading in self._known:
            ask = partial(self._states, reading, torch.float32)
            hidden_SE = self.server.tried(ask, over, name=f"a look at the teacher ({reading.id})", hint=_GUIDE)
            if fault := self._fault(hidden_SE):
                raise ForkLeftError(f"{url} does not serve the teacher: {fault}; {_GUIDE}")
            logp_SV = self.head_logits(hidden_SE).float().log_softmax(-1)
            nll.append(-logp_SV[range(len(hidden_SE)), [reading.response[i] for i in reading.positions]].cpu())
            read.append(hidden_SE)
        if read:
            self._check_precision(torch.cat(read))
            self._check_cost(torch.cat(nll).mean().item())
        self._losses = losses
        return torch.cat(nll)

    def _check_precision(self, values: torch.Tensor) -> None:
        served, wanted = _precision(values), self.head_weight.dtype
        if served not in (torch.float32, wanted):
            fitting = " or ".join(dict.fromkeys((_name(wanted), "float32")))
            raise ForkLeftError(
                f"{self.server.url} computes in {_name(served)}, expected {fitting}; start it with --dtype "
                f"{_name(wanted)}, or accept it with teacher_dtype: {_name(served)}"
            )

    def _check_cost(self, found: float) -> None:
        guessed, first = math.log(self.head_weight.shape[0]), self._cost
        if not found < guessed:
            raise ForkLeftError(
                f"{self.server.url} does not serve the teacher: by its hidden states and the teacher's head, what the "
                f"teacher should know costs {found:.1f} nats a token, no less than a blind guess ({guessed:.1f}); does "
                "it serve the checkpoint that teacher names?"
            )
        if first is not None and abs(found - first) > _SAME_COST:
            raise ForkLeftError(
                f"{self.server.url} serves another model than before: the same text costs {found:.2f} nats a token, "
                f"and cost {first:.2f} when the training began; start the server with the model that it had, and resume"
            )
        self._cost = found if first is None else first

    @cached_property
    def _head_is_plain(self) -> bool:
        """Whether the model's class does nothing to logits but multiply by the head, tried on made-up hidden states."""
        head = self.model.get_output_embeddings()
        if self._scales_logits or getattr(head, "bias", None) is not None:
            return False
        generator = torch.Generator().manual_seed(0)
        hidden_SE = torch.randn(2, head.weight.shape[1], generator=generator).to(head.weight.device, head.weight.dtype)
        layers, name = self.model.base_model, self.model.base_model_prefix
        try:
            setattr(self.model, name, _Given(hidden_SE))
            ids_BT = torch.zeros(1, len(hidden_SE), dtype=torch.long, device=hidden_SE.device)
            logits_SV = self.model(input_ids=ids_BT, use_cache=False).logits[0].float()
        except Exception as error:  # a class that is built in another way may raise anything
            raise ForkLeftError(
                f"what {type(self.model).__name__} does behind its layers cannot be tried without its weights "
                f"({type(error).__name__}: {error}); teach with the model in memory (without teacher_url)"
            ) from error
        finally:
            setattr(self.model, name, layers)
        return self._same_logits(self.head_logits(hidden_SE), logits_SV)


class _Given(torch.nn.Module):
    """Stands where the layers of a model are, and gives hidden states as if they had made them."""

    def __init__(self, hidden_SE: torch.Tensor) -> None:
        super().__init__()
        self._hidden_SE = hidden_SE

    def forward(self, *inputs: Any, **settings: Any) -> MoeModelOutputWithPast:
        hidden_BSE: Any = self._hidden_SE[None]
        return MoeModelOutputWithPast(last_hidden_state=hidden_BSE)


def _parsed(body: bytes, headers: Any, tokens: int, dtype: torch.dtype) -> torch.Tensor:
    """The hidden states in a reply. Raises ValueError, KeyError or TypeError if they are not what was asked for."""
    metadata = headers.get("metadata")
    if metadata is None:
        raise ValueError("expected a header `metadata`, as vLLM in pooling mode sends it, found none")
    (item,) = json.loads(metadata)["data"]
    if item["embed_dtype"] != _name(dtype) or item["endianness"] != "little":
        raise ValueError(f"expected {_name(dtype)}, little-endian, found {item['embed_dtype']}, {item['endianness']}")
    rows, width = item["shape"]
    if rows != tokens:
        raise ValueError(f"expected the hidden states of {tokens} tokens, found those of {rows}")
    if not len(body) == item["end"] - item["start"] == rows * width * dtype.itemsize:
        raise ValueError(f"expected {rows * width * dtype.itemsize} bytes, found {len(body)}: the reply is not whole")
    # A copy, because the bytes of a reply cannot be written to.
    return torch.frombuffer(bytearray(body), dtype=dtype).view(rows, width)


def _precision(values: torch.Tensor) -> torch.dtype:
    """The lowest precision that holds values in float32 exactly: that in which they were computed."""
    for dtype in (torch.bfloat16, torch.float16):
        if torch.equal(values.to(dtype).float(), values):
            return dtype
    return torch.float32


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
