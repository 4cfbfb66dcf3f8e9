from pathlib import Path

import pytest

from forkleft.errors import ForkLeftError
from forkleft.recipes import options, read_recipe

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.yaml"))
MINIMAL = "student: a\nteacher: b\ntrain_data: c.jsonl\noutput_dir: runs/x\n"


def write(folder, text):
    path = folder / "recipe.yaml"
    path.write_text(MINIMAL + text)
    return path


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_recipes_of_the_repository_can_be_read(path):
    # A GPU is not at hand in tests.
    recipe, config = read_recipe(path, ["--bf16", "false", "--use_cpu"])
    assert recipe.student and recipe.teacher and recipe.train_data
    assert config.output_dir == f"runs/{path.stem}"


def test_the_recipes_of_the_papers_runs_are_there():
    found = {(recipe.student, recipe.teacher) for recipe, _ in (read_recipe(p, ["--bf16=false"]) for p in RECIPES)}
    students = {student.split("/")[-1] for student, _ in found}
    teachers = {teacher.split("/")[-1] for _, teacher in found}
    assert {"Efficient-DLM-4B", "Efficient-DLM-8B", "SDAR-4B-Chat-b32"} <= students
    assert {"Qwen3-30B-A3B-Base", "Qwen3-8B-Base", "Qwen3-4B", "Qwen2.5-7B"} <= teachers


def test_values_come_in_the_kind_that_is_wanted(tmp_path):
    path = write(tmp_path, "learning_rate: 1e-6\nmax_steps: 3\nblock_size: '8'\nmask_token: 5\nsave_strategy: no\n")
    recipe, config = read_recipe(path)
    assert (config.learning_rate, config.max_steps, recipe.block_size, recipe.mask_token) == (1e-6, 3, 8, "5")
    assert config.save_strategy == "no"
    # A word that begins like a truth value is a word.
    assert read_recipe(path, ["--mask_token", "truest"])[0].mask_token == "truest"
    # The paper's values are the defaults.
    assert (config.rho, config.passes, config.rollout_order) == (0.25, 32, "high_entropy")


def test_the_command_line_wins(tmp_path):
    path = write(tmp_path, "rho: 0.5\n")
    words = ["--rho", "0.75", "--learning-rate=2e-4", "--merge_stops", "--lora_targets", "[q_proj, v_proj]"]
    recipe, config = read_recipe(path, words)
    assert (config.rho, config.learning_rate, config.merge_stops) == (0.75, 2e-4, True)
    assert recipe.lora_targets == ["q_proj", "v_proj"]
    assert read_recipe(path, ["--resume_from_checkpoint", "true"])[1].resume_from_checkpoint == "true"


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("learning_rat: 1\n", [], "no option 'learning_rat'; did you mean learning_rate?"),
        ("", ["--pases", "3"], "no option 'pases'; did you mean passes?"),
        ("", ["--xyzzyxyzzy"], "no option 'xyzzyxyzzy'; forkleft train --options lists all"),
        ("learning_rate: fast\n", [], "learning_rate: expected a number, found 'fast'"),
        ("max_steps: 1.5\n", [], "max_steps: expected a number, found 1.5"),
        ("bf16: maybe\n", [], "bf16: expected true or false, found 'maybe'"),
        ("rollout_order: best\n", [], "rollout_order must be one of high_entropy, .*found 'best'"),
        ("verifier: judge\n", [], "unknown verifier kind 'judge'; there are math"),
        ("", ["stray"], "expected an option such as --learning_rate, found 'stray'"),
        ("", ["--rho", "[1"], "--rho: '\\[1' is no YAML value"),
        ("save_strategy: often\n", [], "often is not a valid"),
        ("teacher:\n", [], "expected values for student, .* teacher missing"),
        ("a: [1\n", [], "is no YAML file"),
    ],
)
def test_mistakes(tmp_path, text, words, message):
    with pytest.raises(ForkLeftError, match=message):
        read_recipe(write(tmp_path, text), words)


def test_files_that_are_no_recipe(tmp_path):
    with pytest.raises(ForkLeftError, match="there is no recipe"):
        read_recipe(tmp_path / "missing.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ForkLeftError, match="expected names with values"):
        read_recipe(tmp_path / "list.yaml")


def test_every_option_of_ours_says_what_it_does():
    ours = [one for name, one in options().items() if one.metadata.get("help")]
    assert len(ours) > 100
    names = list(options())
    assert names.index("student") < names.index("rho") < names.index("optim")
