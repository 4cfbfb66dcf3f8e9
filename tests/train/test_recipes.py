import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from transformers import TrainingArguments

from forkleft.cli import main
from forkleft.errors import ForkLeftError
from forkleft.train.config import ForkLeftConfig
from forkleft.train.recipes import (
    ADAPT,
    TRAIN,
    Recipe,
    grouped_options,
    not_default,
    options,
    read_options,
    recipe_of,
    recipe_page,
)
from forkleft.trust import Trust

OWN = sorted((Path(__file__).parents[2] / "recipes" / "your-own-model").glob("*-*.yaml"))
RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
MINIMAL = "student: a\nteacher: b\ntrain_data: c.jsonl\noutput_dir: runs/x\n"


def read_recipe(path, words=()):
    return recipe_of(read_options(path, words))


def write(folder, text):
    path = folder / "recipe.yaml"
    path.write_text(MINIMAL + text)
    return path


def test_a_file_cannot_allow_its_own_code(tmp_path):
    own = write(tmp_path, "verifier: my.judges:mine\ntrust_remote_code: true\n")
    # In Python, who reads a file decides.
    assert read_options(own)["trust_remote_code"] is True
    with pytest.raises(ForkLeftError, match=r"recipe.yaml names the verifier my.judges:mine"):
        read_options(own, trust=Trust())
    with pytest.raises(ForkLeftError, match=r"recipe.yaml says trust_remote_code: true"):
        read_options(own, trust=Trust(verifiers=True))
    # What the command line says is the user's own word, and what it replaces is not asked for.
    words = ["--verifier", "my.judges:mine", "--trust-remote-code"]
    assert read_options(own, words, trust=Trust())["verifier"] == "my.judges:mine"
    assert read_options(own, ["--verifier=", "--trust_remote_code", "false"], trust=Trust())["student"] == "a"
    with pytest.raises(ForkLeftError, match="there is no option 'trust_verifier'"):
        read_options(write(tmp_path, "trust_verifier: true\n"), trust=Trust())
    # A date is written with colons, and becomes text.
    with pytest.raises(ForkLeftError, match="names the verifier 2001-01-01 01:01:01"):
        read_options(write(tmp_path, "verifier: 2001-01-01 01:01:01\n"), trust=Trust())


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_recipes_of_the_repository_can_be_read(path):
    # A GPU is not at hand in tests. None of them asks for code of others.
    recipe, config = recipe_of(read_options(path, ["--bf16", "false", "--use_cpu"], trust=Trust()))
    assert recipe.student and recipe.teacher and recipe.train_data
    assert config.output_dir == f"runs/{path.stem}"


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_the_recipes_of_a_model_of_ones_own_can_be_read(tmp_path, path):
    form = ADAPT if path.stem.endswith("-adapt") else TRAIN
    said = read_options(path, ["--use_cpu"], form)
    recipe, config = recipe_of(said, form)
    assert isinstance(config, form.config) and recipe.student == said["student"]
    page = tmp_path / "recipe.yaml"
    page.write_text(recipe_page(said, form))
    assert read_options(page, (), form) == not_default(said, form)


def test_the_recipes_of_the_papers_runs_are_there():
    read = (read_recipe(path, ["--bf16=false", "--use_cpu"]) for path in RECIPES if path.stem != "lab")
    found = [
        (recipe.student.split("/")[-1], recipe.teacher.split("/")[-1], config.max_steps) for recipe, config in read
    ]
    # Tables 6 and 7 of the paper, each pair once.
    assert sorted(found) == [
        ("Efficient-DLM-4B", "Qwen2.5-7B", 2000),
        ("Efficient-DLM-4B", "Qwen3-30B-A3B-Base", 2000),
        ("Efficient-DLM-4B", "Qwen3-4B", 2000),
        ("Efficient-DLM-4B", "Qwen3-8B-Base", 2000),
        ("Efficient-DLM-8B", "Qwen3-30B-A3B-Base", 2000),
        ("Efficient-DLM-8B", "Qwen3-8B-Base", 2000),
        ("SDAR-4B-Chat-b32", "Qwen3-30B-A3B-Base", 500),
    ]


def test_the_papers_arms_are_options_of_its_main_recipe():
    """As docs/training.md prints them, each another run."""
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    rows = re.findall(r"^\| (\S+) \| `(--\w+ .*?)` \|$", page, flags=re.MULTILINE)
    assert [name for name, _ in rows] == ["L-low", "B-high", "B-low", "OPD", "SFT", "SFT+OPD"]
    main_run = next(path for path in RECIPES if path.stem == "edlm-4b-qwen3-30b")
    runs = [read_recipe(main_run, [*words.split(), "--bf16=false", "--use_cpu"]) for _, words in rows]
    routes = f"{read_recipe(main_run, ['--bf16=false', '--use_cpu'])[1].output_dir}/routes.jsonl"
    shared = [(None, None)] * 3 + [(routes, "LEFTOPD")] * 3
    assert [(recipe.train_ids, recipe.train_route) for recipe, _ in runs] == shared
    configs = [config for _, config in runs]
    arms = [(config.rollout_order, config.view, config.supervision) for config in configs]
    assert arms == [
        ("low_entropy", "prefix", "routed"),
        ("high_entropy", "target_masked", "routed"),
        ("low_entropy", "target_masked", "routed"),
        ("high_entropy", "prefix", "opd"),
        ("high_entropy", "prefix", "sft"),
        ("high_entropy", "prefix", "sft+opd"),
    ]
    assert len({config.output_dir for config in configs}) == 6


@pytest.mark.parametrize("path", [path for path in RECIPES if path.stem != "lab"], ids=lambda path: path.stem)
def test_the_papers_runs_lose_25_updates_at_most_and_keep_their_quarters(path):
    """As docs/reliability.md says."""
    _, config = read_recipe(path, ["--bf16=false", "--use_cpu"])
    assert (config.save_strategy, config.save_steps, config.save_total_limit) == ("steps", 25, 2)
    assert config.save_at == [config.max_steps * quarter // 4 for quarter in (1, 2, 3, 4)]


# Billions of weights.
SIZES = {"Efficient-DLM-4B": 4.0, "Efficient-DLM-8B": 8.2, "SDAR-4B-Chat-b32": 4.0}
SIZES |= {"Qwen3-30B-A3B-Base": 30.5, "Qwen3-8B-Base": 8.2, "Qwen3-4B": 4.0, "Qwen2.5-7B": 7.6}


@pytest.mark.parametrize("path", [path for path in RECIPES if path.stem != "lab"], ids=lambda path: path.stem)
def test_the_papers_runs_fit_gpus_of_80_gb_as_their_recipes_say(path):
    """The sum of the recipe's head, from the sizes of the models and the command that it prints."""
    recipe, config = read_recipe(path, ["--bf16=false", "--use_cpu"])
    text = " ".join(line.lstrip("# ") for line in path.read_text().splitlines())
    local = int(re.search(r"--nproc-per-node (\d+)", text)[1])
    processes = local * int((re.search(r"--nnodes (\d+)", text) or [0, 1])[1])
    student, teacher = (SIZES[name.split("/")[-1]] for name in (recipe.student, recipe.teacher))
    spread = local / 8 if recipe.teacher_device_map == "auto" else 1
    assert config.fsdp
    needed = 16 * student / processes + 2 * student + 2 * teacher * spread
    assert needed < 65
    assert abs(int(re.search(r"together (\d+) GB", text)[1]) - needed) <= 1
    # Here one process makes up for them.
    assert config.questions_per_update == 32 == config.per_device_train_batch_size * config.gradient_accumulation_steps
    assert 32 % (processes * config.per_device_train_batch_size) == 0


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


def test_a_chat_template_is_looked_for_beside_the_recipe(tmp_path, monkeypatch):
    for place in ("recipes", "here"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "own.jinja").write_text(f"{{# {place} #}}\n{{{{ messages }}}}\n")
    monkeypatch.chdir(tmp_path / "here")
    path = write(tmp_path / "recipes", "chat_template: own.jinja\n")
    said = read_options(path)
    assert said["chat_template"] == "{# recipes #}\n{{ messages }}\n"
    # On the command line a name is relative to where one is.
    assert "here" in read_options(path, ["--chat-template", "own.jinja"])["chat_template"]
    (tmp_path / "recipes" / "own.jinja").unlink()
    assert "here" in read_options(path)["chat_template"]
    # What is kept repeats the run without the file, and can be read by people.
    page = recipe_page(said)
    assert "chat_template: |\n" in page
    assert read_options(write(tmp_path, page))["chat_template"] == said["chat_template"]
    (tmp_path / "here" / "own.jinja").unlink()
    with pytest.raises(ForkLeftError, match=r"cannot read the chat template .*recipes/own.jinja or own.jinja"):
        read_options(path)


def test_the_recipes_of_efficient_dlm_name_its_template():
    ours = [path for path in RECIPES if path.stem.startswith("edlm")]
    assert len(ours) == 6
    for path in ours:
        recipe, _ = read_recipe(path, ["--bf16=false", "--use_cpu"])
        assert "ForkLeft's, not NVIDIA's" in recipe.chat_template
        assert recipe.family == "efficient-dlm"


def test_sharding_is_on_or_off(tmp_path):
    assert read_recipe(write(tmp_path, "fsdp: true\n"), ["--use_cpu"])[1].fsdp is True
    assert not read_recipe(write(tmp_path, "fsdp: false\n"))[1].fsdp
    said = read_options(write(tmp_path, "fsdp: true\nfsdp_config: {reshard_after_forward: false}\n"), ["--use_cpu"])
    recipe_of(said)
    assert said["fsdp_config"] == {"reshard_after_forward": False}


@pytest.mark.parametrize(("said", "found"), [("true", True), ("false", None), ("runs/x/checkpoint-5",) * 2])
def test_resuming_is_true_false_or_a_folder(tmp_path, said, found):
    in_file = write(tmp_path, f"resume_from_checkpoint: {said}\n")
    assert read_recipe(in_file)[1].resume_from_checkpoint == found
    in_words = write(tmp_path, "resume_from_checkpoint: runs/y\n"), ["--resume_from_checkpoint", said]
    assert read_recipe(*in_words)[1].resume_from_checkpoint == found


def test_an_empty_value_is_none(tmp_path):
    path = write(tmp_path, "rho:\nblock_size:\nmax_steps: 3\n")
    recipe, config = read_recipe(path, ["--max_steps="])
    assert (config.rho, recipe.block_size, config.max_steps) == (0.25, None, -1)


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("learning_rat: 1\n", [], "no option 'learning_rat'; did you mean learning_rate?"),
        ("", ["--pases", "3"], r"^--pases: there is no such option; did you mean --passes\?"),
        ("", ["--xyzzyxyzzy"], "^--xyzzyxyzzy: there is no such option; forkleft train --options lists all"),
        ("", ["--max_steps", "1.5"], "^--max_steps: expected a whole number, found 1.5"),
        ("", ["--lora_rank"], "^expected a value behind --lora_rank$"),
        ("", ["--output_dir", "--bf16"], "^expected a value behind --output_dir$"),
        ("learning_rate: fast\n", [], "learning_rate: expected a number, found 'fast'"),
        ("max_steps: 1.5\n", [], "max_steps: expected a whole number, found 1.5"),
        ("max_steps: .inf\n", [], "max_steps: expected a whole number, found inf"),
        ("columns: question\n", [], "columns: expected names with values, found 'question'"),
        ("columns: {question: [a]}\n", [], r"columns: expected text, found \['a'\]"),
        ("student: [a]\n", [], r"student: expected text, found \['a'\]"),
        ("lr_scheduler_kwargs: 3\n", [], "lr_scheduler_kwargs: expected text or names with values, found 3"),
        ("lora_targets: {q_proj: 1}\n", [], r"lora_targets: expected text or a list, found \{'q_proj': 1\}"),
        ("rho: [1]\n", [], r"rho: expected a number, found \[1\]"),
        ("parallelism_config: 3\n", [], "parallelism_config: expected nothing, as no recipe can hold it, found 3"),
        ("bf16: maybe\n", [], "bf16: expected true or false, found 'maybe'"),
        ("rollout_order: best\n", [], "rollout_order must be one of high_entropy, .*found 'best'"),
        ("verifier: judge\n", [], "unknown verifier kind 'judge'; there are math"),
        ("", ["stray"], "expected an option such as --learning_rate, found 'stray'"),
        ("", ["--rho", "[1"], "--rho: '\\[1' is no YAML value"),
        ("save_strategy: often\n", [], "often is not a valid"),
        ("answers_attempts: 0\n", [], "answers_attempts must be a whole number of at least 1, found 0"),
        ("answers_timeout: 0\n", [], "answers_timeout must be more than 0 seconds, found 0.0"),
        ("teacher_attempts: 0\n", [], "teacher_attempts must be a whole number of at least 1, found 0"),
        ("teacher_batch_size: 0\n", [], "teacher_batch_size must be a whole number of at least 1, found 0"),
        ("teacher_timeout: -1\n", [], "teacher_timeout must be more than 0 seconds, found -1.0"),
        ("teacher_url: node7:8000\n", [], "teacher_url must begin with http:// or https://, found 'node7:8000'"),
        ("teacher_url: http://me:pw@node7\n", [], "teacher_url must hold no user and password"),
        ("teacher_api_key: x\n", [], "is kept in no file; set FORKLEFT_TEACHER_API_KEY in the environment"),
        ("answers_api_key: x\n", [], "is kept in no file; set FORKLEFT_ANSWERS_API_KEY in the environment"),
        ("teacher:\n", [], "expected values for student, .* teacher missing"),
        ("a: [1\n", [], "is no YAML file, line 6: expected ',' or ']'.*"),
    ],
)
def test_mistakes(tmp_path, text, words, message):
    with pytest.raises(ForkLeftError, match=message) as caught:
        read_recipe(write(tmp_path, text), words)
    assert "\n" not in str(caught.value)


def test_what_is_mended_on_the_command_line_is_no_mistake_of_the_file(tmp_path):
    path = write(tmp_path, "max_steps: many\nrho: 0.5\n")
    assert list(read_options(path, ["--max_steps", "3"]))[-2:] == ["max_steps", "rho"]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_kept_as_it_was_said(path, tmp_path):
    words = ["--run_name", "'1e6'", "--mask_token", "no", "--adam_epsilon", "1e-9", "--lora_targets", "[q_proj]"]
    words += ["--resume_from_checkpoint", "true", "--hub_token", "secret", "--rank_weight", "0.1", "--use_cpu"]
    said = read_options(path, [*words, "--bf16", "false"])
    (tmp_path / "kept.yaml").write_text(recipe_page(said))
    kept = read_options(tmp_path / "kept.yaml")
    # Neither a secret, nor how the run was started, nor what needs no words.
    assert not {"hub_token", "resume_from_checkpoint", "rank_weight"} & kept.keys()
    assert kept.items() <= said.items()
    assert recipe_of(kept)[0] == recipe_of(said)[0]
    differing = {
        name for name in options() if getattr(recipe_of(kept)[1], name, 0) != getattr(recipe_of(said)[1], name, 0)
    }
    assert differing <= {"hub_token", "resume_from_checkpoint"}


def test_whole_numbers_stay_whole_and_words_are_quoted_in_a_recipe_that_is_kept(tmp_path):
    words = ["--eval_steps", "2", "--save_strategy", "no", "--run_name", "on", "--warmup_steps", "0.1"]
    words += ["--lr_scheduler_kwargs", "{min_lr_rate: 0.05}", "--learning_rate", "1e-9"]
    said = read_options(write(tmp_path, ""), words)
    page = recipe_page(said)
    assert "eval_steps: 2\n" in page and "save_strategy: 'no'\n" in page and "run_name: 'on'\n" in page
    # Also for another reader of YAML.
    assert yaml.safe_load(page)["save_strategy"] == "no"
    (tmp_path / "kept.yaml").write_text(page)
    kept = read_options(tmp_path / "kept.yaml")
    assert kept == said and recipe_page(kept) == page


def test_files_that_are_no_recipe(tmp_path):
    with pytest.raises(ForkLeftError, match=r"there is no recipe .*; the folder recipes/"):
        read_recipe(tmp_path / "missing.yaml")
    for name in ("lap.yaml", "lab.yml", "lab"):
        with pytest.raises(ForkLeftError, match=r"there is no recipe .*; did you mean .*recipes/lab.yaml\?"):
            read_recipe(RECIPES[0].parent / name)
    with pytest.raises(ForkLeftError, match=r"README.md is no YAML file, line \d+: ") as caught:
        read_recipe(RECIPES[0].parents[1] / "README.md")
    assert "\n" not in str(caught.value)
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ForkLeftError, match="expected names with values"):
        read_recipe(tmp_path / "list.yaml")


def test_every_option_of_ours_says_what_it_does():
    known = options()
    ours = [*(option.name for option in fields(Recipe)), *ForkLeftConfig.__annotations__]
    assert [name for name in ours if not known[name].metadata.get("help")] == []
    # First the models and the data, then the method, then the options of Transformers.
    theirs = {option.name for option in fields(TrainingArguments)}
    method = [name for name in ForkLeftConfig.__annotations__ if name not in theirs]
    first = [*(option.name for option in fields(Recipe)), *method]
    assert list(known)[: len(first)] == first


def test_options_come_in_groups(capsys):
    groups = grouped_options()
    assert sorted(name for group in groups.values() for name in group) == sorted(options())
    # Each group begins at an option that there is, and is one that a reader takes in.
    assert "" not in groups and len(groups) >= 25
    assert max(map(len, groups.values())) <= 20
    assert {"learning_rate", "lr_scheduler_type", "warmup_steps"} <= groups["Learning rate"].keys()
    assert {"save_steps", "resume_from_checkpoint"} <= groups["Checkpoints"].keys()
    assert {"questions_per_update"} == groups["Updates"].keys()
    assert main(["train", "--options"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line != line.rstrip() or len(line) > 80 or "%%" in line] == []
    for name, text in (
        ("resume_from_checkpoint", "    Go on with the run in output_dir: true from its newest whole checkpoint, or"),
        ("fp16", "    Refused: use bf16."),
        ("disable_tqdm", "    Plain lines of progress in a terminal"),
    ):
        place = next(k for k, line in enumerate(lines) if line.startswith(f"{name} "))
        assert lines[place + 1].startswith(text)
    assert lines.index("Learning rate") < next(k for k, line in enumerate(lines) if line.startswith("learning_rate "))
