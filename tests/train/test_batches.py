from itertools import chain

import pytest

from forkleft.train.batches import Batches, Loader, StreamBatches


def parts(count, size, processes, *, epoch=0, seed=3, **settings):
    """The batches of every process."""
    found = []
    for process in range(processes):
        batches = Batches(count, size, process=process, processes=processes, seed=seed, **settings)
        batches.set_epoch(epoch)
        assert len(list(batches)) == len(batches)
        found.append(list(batches))
    return found


@pytest.mark.parametrize(("count", "size", "processes"), [(12, 4, 1), (12, 2, 2), (9, 2, 2), (5, 4, 3), (1, 2, 4)])
def test_every_question_once_and_equally_many_batches(count, size, processes):
    found = parts(count, size, processes)
    assert len({len(batches) for batches in found}) == 1
    assert sorted(chain(*chain(*found))) == list(range(count))
    # Whatever the number of processes, the same questions meet in an update.
    (whole,) = parts(count, size * processes, 1)
    together = [sorted(chain(*batch)) for batch in zip(*found, strict=True)]
    assert together == [sorted(batch) for batch in whole]


def test_another_epoch_is_another_order():
    one, again, other = (parts(20, 4, 1, epoch=epoch) for epoch in (0, 0, 1))
    assert one == again != other
    # Nor is it the order of another seed.
    assert other != parts(20, 4, 1, epoch=0, seed=4)


def test_what_is_not_full_can_be_dropped_and_order_kept():
    assert parts(10, 2, 2, drop_last=True, shuffle=False) == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]
    # An update of 4 questions is whole or left out, however it is divided.
    for size, accumulated in ((4, 1), (2, 2), (1, 4)):
        (batches,) = parts(11, size, 1, drop_last=True, shuffle=False, accumulated=accumulated)
        assert list(chain(*batches)) == list(range(8))


def test_the_loader_gives_examples_and_passes_the_epoch_on():
    batches = Batches(3, 2, process=0, processes=1, seed=0, shuffle=False)
    loader = Loader(["a", "b", "c"], batches)
    assert list(loader) == [["a", "b"], ["c"]]
    loader.set_epoch(7)
    assert batches.epoch == 7


@pytest.mark.parametrize(
    ("limit", "processes", "accumulated"), [(8, 1, 1), (4, 1, 2), (4, 2, 1), (2, 2, 2), (2, 1, 4), (1, 8, 1)]
)
def test_a_stream_gives_updates_the_same_items_however_they_are_divided(limit, processes, accumulated):
    """11 items, 8 an update: the second of each pass has three, and the next pass begins a new one."""
    parts = [
        StreamBatches(range(11), lambda item: 1, limit, process=p, processes=processes, accumulated=accumulated)
        for p in range(processes)
    ]
    streams = [iter(part) for part in parts]
    updates = [sorted(chain(*(next(stream) for stream in streams for _ in range(accumulated)))) for _ in range(4)]
    assert updates == [[*range(8)], [8, 9, 10]] * 2
