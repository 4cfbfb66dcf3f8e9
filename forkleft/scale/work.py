"""How much work the parts of an update are: tokens through the layers, (query, key) pairs, rows through the head.

These are counts of what the method needs, as `rollout/` and `objective/` compute it, without padding and masked pairs.
Positions are drawn at random, so that counts of readouts are expectations.
"""

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import cache

from forkleft.objective.positions import selection_size
from forkleft.objective.readouts import Geometry, ReadAttention, View
from forkleft.objective.routes import Route
from forkleft.objective.supervision import Supervision, Term, terms_of
from forkleft.rollout.orders import commits_this_pass
from forkleft.scale.shapes import Shape
from forkleft.students.family import Family


@dataclass(frozen=True)
class Work:
    """tokens through the layers; pairs: (query, key) in each layer; rows through the head.

    unread: tokens of a student that nobody reads, which its last layer leaves out behind attention
    (`students/reading.py`). That they are no queries there either, without FlexAttention, is not counted.
    """

    tokens: float = 0
    pairs: float = 0
    rows: float = 0
    unread: float = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: float) -> "Work":
        return Work(*(mine * times for mine in astuple(self)))

    def flops(self, shape: Shape) -> float:
        """FLOPs of a forward: 2 for each weight that a token meets, 4 for each number of a query that meets a key."""
        return self.layer_flops(shape) + 2 * self.rows * shape.head

    def layer_flops(self, shape: Shape) -> float:
        """The same without the head."""
        return self.product_flops(shape) + 4 * self.pairs * shape.layers * shape.queries

    def product_flops(self, shape: Shape) -> float:
        """The same without the head and attention."""
        return 2 * (self.tokens * shape.linear - self.unread * shape.feed_forward)


def _read(tokens: float, pairs: float, rows: float) -> Work:
    """The work of a student of whose tokens only so many rows are read."""
    return Work(tokens, pairs, rows, tokens - rows)


@dataclass(frozen=True)
class Question:
    """The lengths of a question, in tokens: its prompt, the response (and the reference), and the response budget."""

    prompt: int
    response: int
    budget: int


@dataclass(frozen=True)
class Reading:
    """How a student is read: the options of the objective that decide the work."""

    rho: float
    view: View = "prefix"
    geometry: Geometry = "truncated"
    attention: ReadAttention = "native"


def forwards(family: Family, question: Question, passes: int) -> Iterator[Work]:
    """The forwards in which one response is written, in order (`rollout/sampler.py`)."""
    prompt, end = question.prompt, question.prompt + question.budget
    written, final = prompt, 0
    while written < prompt + question.response:
        start, stop = family.segment(written, prompt)
        stop = min(stop, end)
        window = min(family.window(written, prompt)[1], stop)
        unresolved, this_pass = window - written, 1
        while unresolved:
            # Keys and values of finished blocks are kept; with full attention, all of the canvas is new in every pass.
            first = 0 if family.attention == "full" else final
            last = end if family.attention == "full" else stop
            yield _read(last - first, _pairs(family, prompt, first, last), unresolved)
            final = start
            unresolved -= commits_this_pass(unresolved, passes, this_pass)
            this_pass += 1
        written = window


@cache
def rollout(family: Family, question: Question, passes: int) -> Work:
    """All forwards of one response."""
    return sum(forwards(family, question, passes), start=Work())


@cache
def readout(family: Family, question: Question, reading: Reading, view: View = "prefix") -> Work:
    """The readout of one continuation under a view, gradients included in none of the counts."""
    prompt, length = question.prompt, question.response
    chosen = selection_size(length, reading.rho)
    if not chosen:
        return Work()
    sequences = family.attention == "full" or (reading.attention == "full" and view == "prefix")
    replicas = [_replica(family, question, i, reading.geometry, view, sequences) for i in range(length - 1)]
    # Each candidate is drawn with the same probability.
    work = sum(replicas, start=Work()) * (chosen / (length - 1))
    if sequences:
        return work
    clean = family.segment(prompt + _last(question, chosen), prompt)[0]
    return work + _read(clean, _pairs(family, prompt, 0, clean), 0)


@cache
def probe(family: Family, question: Question, reading: Reading) -> Work:
    """The all-mask probe of one response: prompt and masks, up to the end of the last block that is read."""
    chosen = selection_size(question.response, reading.rho)
    if not chosen:
        return Work()
    end = question.prompt + question.budget
    if family.attention == "block":
        end = min(end, family.segment(question.prompt + _last(question, chosen), question.prompt)[1])
    return _read(end, _pairs(family, question.prompt, 0, end), chosen)


def teacher(question: Question, rho: float) -> Work:
    """One causal forward up to the last token before a taught position; the rows are of its head, in the loss."""
    chosen = selection_size(question.response, rho)
    length = question.prompt + _last(question, chosen) if chosen else 0
    return Work(length, length * (length + 1) / 2, chosen)


def views_of(route: Route, supervision: Supervision, view: View) -> list[View]:
    """The views of the readouts of a question: its own response, under one view or two, and its reference."""
    terms: tuple[Term, ...] = terms_of(route, supervision)
    if not terms:
        return []
    own: list[View] = ["prefix", view] if "teacher" in terms and view != "prefix" else ["prefix"]
    return own + (["prefix"] if {"reference", "mixture"} & set(terms) else [])


def _replica(family: Family, question: Question, i: int, geometry: Geometry, view: View, sequences: bool) -> Work:
    """The tokens in which position i is read: a replica of its block, or a sequence of its own."""
    prompt, target, shift = question.prompt, question.prompt + i, family.shift
    end = prompt + question.response
    if sequences:
        tokens = target + 1 - shift
        if geometry == "canvas":
            tokens = prompt + question.budget
        elif view == "target_masked":
            tokens = end
        return _read(tokens, tokens**2, 1)
    start, stop = family.segment(target, prompt)
    if shift and target == start:
        # It is read from the clean stream.
        return _read(0, 0, 1)
    tokens = target + 1 - shift - start
    if geometry == "canvas":
        tokens = min(stop, prompt + question.budget) - start
    elif view == "target_masked":
        tokens = min(stop, end) - start
    return _read(tokens, tokens * (start + tokens), 1)


def _last(question: Question, chosen: int) -> int:
    """The last of n positions that are drawn without replacement from m, in the mean: n (m + 1) / (n + 1), from 1."""
    return round(chosen * question.response / (chosen + 1)) - 1


@cache
def _pairs(family: Family, prompt: int, first: int, end: int) -> int:
    """The keys that the tokens from `first` to `end` see, in a sequence that ends there."""
    if family.attention == "full":
        return (end - first) * end
    pairs, position = 0, first
    while position < end:
        alone = family.anchor == "prompt_end" and position < prompt
        stop = min(prompt if alone else family.segment(position, prompt)[1], end)
        pairs += (stop - position) * stop
        position = stop
    return pairs
