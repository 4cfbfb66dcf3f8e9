"""Which examples a process works on: the order of an epoch, cut into batches, which are divided among the processes.

Accelerate's own division either repeats questions from the start of the data to fill the last batches, so that they
count twice in an update, or gives some processes fewer batches, so that the others wait for ever.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from forkleft.errors import ForkLeftError
from forkleft.randomness import keyed_generator
from forkleft.train.run_config import RunConfig

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class Batches(Sampler[list[int]]):
    """Indices for one process. All processes have the same number of batches; the last may have fewer indices, or none.

    count: examples of the data; batch_size: of one process. The order of an epoch depends on `seed` and the epoch.
    drop_last: leave out the questions at the end of an epoch that do not fill an update of `accumulated` batches.
    """

    def __init__(
        self,
        count: int,
        batch_size: int,
        *,
        process: int,
        processes: int,
        seed: int,
        shuffle: bool = True,
        drop_last: bool = False,
        accumulated: int = 1,
    ) -> None:
        self.count, self.together, self.accumulated = count, batch_size * processes, accumulated
        self.process, self.processes, self.seed = process, processes, seed
        self.shuffle, self.drop_last = shuffle, drop_last
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Use the order of another epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        if self.drop_last:
            return self.count // (self.together * self.accumulated) * self.accumulated
        return math.ceil(self.count / self.together)

    def check(self) -> None:
        """Raise ForkLeftError if there is no batch at all."""
        if not len(self):
            raise ForkLeftError(
                f"{self.count} questions do not fill one update of {self.together * self.accumulated}, and "
                "dataloader_drop_last leaves out what is not full; lower the batch size, or turn that off"
            )

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order(self.count, self.epoch)
        for start in range(0, len(self) * self.together, self.together):
            yield order[start : start + self.together][self.process :: self.processes]

    def _order(self, count: int, key: int | str) -> list[int]:
        """The numbers below `count` in the order of a key."""
        if not self.shuffle:
            return list(range(count))
        return torch.randperm(count, generator=keyed_generator(self.seed, key, "order")).tolist()


def batches_of(config: RunConfig, count: int) -> Batches:
    """The batches of a run in this process over `count` examples. Raises ForkLeftError if there is none."""
    batches = Batches(count, config.train_batch_size, **_order_of(config))
    batches.check()
    return batches


def filled_batches_of(config: RunConfig, sizes: Sequence[int], limit: int) -> Batches:
    """The same with as many examples in each as fit, by their sizes."""
    batches = FilledBatches(sizes, limit, **_order_of(config))
    batches.check()
    return batches


def _order_of(config: RunConfig) -> dict[str, Any]:
    return {
        "process": config.process_index,
        "processes": config.world_size,
        "seed": config.order_seed,
        "shuffle": config.train_sampling_strategy == "random",
        "drop_last": config.dataloader_drop_last,
        "accumulated": config.gradient_accumulation_steps,
    }


class FilledBatches(Batches):
    """Batches with as many examples as fit: `sizes` of the examples add up to `limit` at most.

    Which examples share a batch depends on `seed` alone, and the order of the batches on the epoch too.
    """

    def __init__(self, sizes: Sequence[int], limit: int, **settings: Any) -> None:
        super().__init__(len(sizes), 1, **settings)
        self._filled = list(filled(self._order(self.count, "rows"), sizes.__getitem__, limit))
        self.count = len(self._filled)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order(self.count, self.epoch)
        for start in range(0, len(self) * self.together, self.together):
            mine = order[start : start + self.together][self.process :: self.processes]
            yield self._filled[mine[0]] if mine else []


def filled(items: Iterable[T], size_of: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Groups of items in their order, each with as many as fit: their sizes add up to `limit` at most.

    Raises ForkLeftError if one does not fit on its own.
    """
    group: list[T] = []
    room = limit
    for item in items:
        size = size_of(item)
        if size > limit:
            raise ForkLeftError(
                f"tokens_per_batch is {limit}, but a row has {size} tokens in a forward; raise it, or shorten the rows"
            )
        if group and size > room:
            yield group
            group, room = [], limit
        group.append(item)
        room -= size
    if group:
        yield group


class Loader(DataLoader):
    """A data loader over `Batches` that takes the epoch from the Trainer."""

    def __init__(self, examples: Sequence[Any], batches: Batches) -> None:
        # Any sequence works, though the declared type is Dataset.
        super().__init__(examples, batch_sampler=batches, collate_fn=list)  # type: ignore[arg-type]
        self._batches = batches

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on to the sampler."""
        self._batches.set_epoch(epoch)


class StreamBatches(IterableDataset):
    """Batches for one process of a source that is read to its end, and then again, without end.

    items: gives its items anew each time that it is iterated over. Each batch has as many as fit into `limit` by their
    sizes. All processes read the whole source, and have the same number of batches. An update has `accumulated` of each
    process, all from one pass: the last of a pass may be empty, so that updates have the same items however they are
    divided.
    """

    def __init__(
        self,
        items: Iterable[T],
        size_of: Callable[[T], int],
        limit: int,
        *,
        process: int,
        processes: int,
        accumulated: int = 1,
    ) -> None:
        self._items, self._size_of, self._limit = items, size_of, limit
        self._process, self._processes, self._accumulated = process, processes, accumulated

    def __iter__(self) -> Iterator[list[Any]]:
        told = False
        while True:
            count, groups = 0, filled(self._items, self._size_of, self._limit)
            while update := list(islice(groups, self._processes * self._accumulated)):
                count += sum(map(len, update))
                mine = update[self._process :: self._processes]
                yield from mine
                yield from ([] for _ in range(self._accumulated - len(mine)))
            if not count:
                raise ForkLeftError("the data has nothing to learn from, though its first rows had; mend it")
            if not told and self._process == 0:
                _LOG.warning("the data ended after %d rows; the run goes on with its first rows again", count)
            told = True


class StreamLoader(DataLoader):
    """A data loader over `StreamBatches`."""

    def __init__(self, batches: StreamBatches) -> None:
        super().__init__(batches, batch_size=None, collate_fn=list)
