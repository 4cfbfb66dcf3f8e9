"""The result of a rollout."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Trajectory:
    """A completed response c and how it was written. Lists have one entry for each token.

    tokens: as committed, cut after the first stop id; never re-tokenised from text.
    text: the tokens as text, without special tokens; None if there is no tokenizer.
    commit_pass: the pass of its block in which a token was committed, from 1.
    entropy, confidence: H(p) in nats and max p of the distribution that it was committed from.
    stopped: whether a stop id ended the response (else the budget did).
    forwards: how many forwards the response took.
    """

    tokens: list[int]
    text: str | None
    commit_pass: list[int]
    entropy: list[float]
    confidence: list[float]
    stopped: bool
    forwards: int
