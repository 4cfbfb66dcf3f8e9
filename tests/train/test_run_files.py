import os

import pytest

from forkleft.errors import ForkLeftError
from forkleft.train.run_files import RUN_FILE, is_finished, read_run, write_run


def test_what_decides_a_run_comes_back(tmp_path):
    assert read_run(tmp_path) is None
    write_run(tmp_path, {"seed": 3})
    assert read_run(tmp_path) == {"seed": 3}
    (tmp_path / RUN_FILE).write_text("{")
    with pytest.raises(ForkLeftError, match="cannot be read"):
        read_run(tmp_path)


def test_a_run_is_finished_if_its_card_is_newer_than_its_start(tmp_path):
    assert not is_finished(tmp_path)
    (tmp_path / "README.md").touch()
    assert is_finished(tmp_path)
    write_run(tmp_path, {})
    later = (tmp_path / "README.md").stat().st_mtime_ns + 10**9
    os.utime(tmp_path / RUN_FILE, ns=(later, later))
    assert not is_finished(tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"max_steps": "x"}, {"processes": "2"}, {"num_train_epochs": [1]}, {"verifier": ["math"]}, {"lengthened": 5}],
)
def test_values_of_another_kind_are_told(tmp_path, change):
    write_run(tmp_path, {"seed": 3} | change)
    name = next(iter(change))
    with pytest.raises(ForkLeftError, match=rf"forkleft.json cannot be read \({name} is .*, expected another kind"):
        read_run(tmp_path)
