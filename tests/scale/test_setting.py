from dataclasses import replace

import pytest
from documents import ROOT
from scales import SMALL, Updates

from forkleft.errors import ForkLeftError
from forkleft.scale.devices import parse_gpus
from forkleft.scale.setting import setting_of, with_server
from forkleft.scale.shapes import student_of
from forkleft.train.recipes import planned_here, read_options, recipe_of


def of_recipe(gpus, *words, recipe="edlm-4b-qwen3-30b", **changes):
    said = read_options(ROOT / "recipes" / f"{recipe}.yaml", words)
    recipe, config = recipe_of(planned_here(said)[0])
    shape, family, _ = student_of(recipe.student, family=recipe.family, block_size=recipe.block_size)
    given = {"student": shape, "teacher": SMALL, "family": family, "cluster": parse_gpus(gpus), "prompt": 128}
    return setting_of(said, recipe, config, **given | changes)


@pytest.mark.parametrize(
    ("gpus", "processes", "expected"),
    [("8x80GB", None, (8, 4, 1)), ("8x80GB", 4, (4, 4, 2)), ("1x80GB", None, (1, 4, 8)), ("6x80GB", None, (4, 4, 2))],
)
def test_an_update_is_divided_as_training_would(gpus, processes, expected):
    setting = of_recipe(gpus, processes=processes)
    assert (setting.processes, setting.at_once, setting.accumulated) == expected
    assert setting.questions == 32


def test_a_recipe_decides_the_rest():
    setting = of_recipe("8x80GB")
    assert (setting.sharded, setting.bf16, setting.checkpointing, setting.spread) == (True, True, True, True)
    assert (setting.teacher_bytes, setting.updates, setting.passes) == (2, 2000, 32)
    assert (setting.question.response, setting.question.budget) == (1024, 1024)
    other = of_recipe("8x80GB", "--bf16", "false", "--fsdp", "false", "--lora_rank", "8", response=300)
    assert (other.sharded, other.bf16, other.adapter_rank) == (False, False, 8)
    assert other.trained == 8 * other.student.pairs
    assert (other.question.response, other.longest.response) == (300, 1024)
    # No questions_per_update: every process takes a batch.
    lab = of_recipe("4x24GB", recipe="lab")
    assert lab.questions == lab.at_once * lab.accumulated * 4


def test_numbers_that_do_not_go_together_are_refused():
    with pytest.raises(ForkLeftError, match="expected at most 8 processes, found 9"):
        of_recipe("8x80GB", processes=9)
    with pytest.raises(ForkLeftError, match=r"cannot be divided among 3 processes; choose one of 1, 2, 4, 8"):
        of_recipe("8x80GB", processes=3)
    with pytest.raises(ForkLeftError, match="the length of the run is not known"):
        of_recipe("8x80GB", "--max_steps", "-1")
    with pytest.raises(ForkLeftError, match="a response has at most max_new_tokens, 1024, found 1025"):
        of_recipe("8x80GB", response=1025)
    with pytest.raises(ForkLeftError, match="lora_rank must be a whole number of at least 1, found 0"):
        of_recipe("8x80GB", "--lora_rank", "0")
    with pytest.raises(ForkLeftError, match="teacher_dtype must be one of float32, bfloat16, float16, found 'int4'"):
        of_recipe("8x80GB", "--teacher_dtype", "int4")


def test_a_server_takes_what_the_processes_leave():
    setting = of_recipe("8x80GB")
    small = with_server(setting)
    assert (small.processes, small.server_gpus, small.gpus, small.served) == (4, 4, 8, True)
    assert (setting.gpus, replace(setting, spread=False, processes=4).gpus) == (8, 4)
    # 61 GB leave too little of one GPU of 48 GB for anything else.
    large = replace(setting, teacher=replace(SMALL, weights=30_500_000_000), cluster=parse_gpus("8x48GB"))
    assert with_server(large, processes=2).server_gpus == 4
    assert with_server(large, server_gpus=6).processes == 2
    with pytest.raises(ForkLeftError, match=r"1 GPU\(s\) of 48 GB do not hold the teacher's 61 GB.*give its server 2"):
        with_server(large, server_gpus=1)
    with pytest.raises(ForkLeftError, match="the teacher's server needs 2 GPU"):
        with_server(replace(large, cluster=parse_gpus("2x48GB")))


def test_a_batch_that_does_not_divide_the_share_is_lowered():
    setting = replace(Updates().setting, questions=6, batch=4)
    assert (setting.at_once, setting.accumulated) == (3, 2)
