"""Which questions a process works on: the order of an epoch, cut into batches, which are divided among the processes.

Accelerate's own division either repeats questions from the start of the data to fill the last batches, so that they
count twice in an update, or gives some processes fewer batches, so that the others wait for ever.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import DataLoader, Sampler

from forkleft.errors import ForkLeftError
from forkleft.randomness import keyed_generator
from forkleft.train.data import Example


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
        order = list(range(self.count))
        if self.shuffle:
            order = torch.randperm(self.count, generator=keyed_generator(self.seed, self.epoch, "order")).tolist()
        for start in range(0, len(self) * self.together, self.together):
            yield order[start : start + self.together][self.process :: self.processes]


class Loader(DataLoader):
    """A data loader over `Batches` that takes the epoch from the Trainer."""

    def __init__(self, examples: Sequence[Example], batches: Batches) -> None:
        # Any sequence works, though the declared type is Dataset.
        super().__init__(examples, batch_sampler=batches, collate_fn=list)  # type: ignore[arg-type]
        self._batches = batches

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on to the sampler."""
        self._batches.set_epoch(epoch)
