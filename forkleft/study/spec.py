"""A study as a YAML file: a base recipe, arms, seeds, benchmarks, and what is compared with what.

    name: order-view
    about: Does the order of writing matter, or the view of the teacher?
    base: ../lab.yaml
    set: {eval_strategy: no}
    arms:
      L-high: {}
      L-low: {rollout_order: low_entropy}
    seeds: [1, 2, 3]
    benchmarks: [lab-chain-3, lab-chain-4]
    compare: [[L-high, L-low]]

`docs/studies.md` explains every key. An option is taken from the strongest of these, from weak to strong: the base
recipe, `set`, `with_seed`, the arm, `--set option=value`, `--set arm.option=value`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forkleft.errors import ForkLeftError, check_choice, nearest
from forkleft.evaluate.benchmarks import BENCHMARKS, read_benchmarks
from forkleft.evaluate.protocols import Settings
from forkleft.files import is_file, read_yaml
from forkleft.lab.benchmarks import LAB_BENCHMARKS
from forkleft.objective.routes import Route
from forkleft.train.recipes import checked_options, default_of, option_words, options, read_options
from forkleft.trust import EVERYTHING, Trust

_KEYS = (
    *("name", "about", "base", "set", "arms", "seeds", "with_seed", "benchmarks", "limit", "decoding", "curve"),
    *("compare", "effects"),
)
_NEEDED = ("name", "base", "arms", "seeds", "benchmarks")
# Options that a study sets by itself, for each cell.
_OURS = ("output_dir", "answer_cache", "resume_from_checkpoint", "seed", "save_at", "train_ids", "train_route")
# Kept in no file. A study keeps the options of its cells in several.
_SECRET = "hub_token"
# Fields of `evaluate.protocols.Settings`. Not `samples`: several samples of an item give shares, not verdicts.
_DECODING = (
    *("decoding", "passes", "threshold", "max_new_tokens", "geometry", "temperature", "top_p"),
    *("batch_size", "seed"),
)
_STATIC = "static"
# The folder of studies in the repository.
_STUDIES = "recipes/studies/"
_NAME = re.compile(r"\w[\w.+-]*")


@dataclass(frozen=True)
class Source:
    """Where an arm takes its questions from: those that another arm's run had on a route at their first visit."""

    arm: str
    route: str


@dataclass(frozen=True)
class Arm:
    """One configuration. options: of its recipe; with_seed: options that take turns with the seeds.

    launcher: the words before its commands where they are printed for several processes; None: the usual ones.
    """

    name: str
    options: dict[str, Any]
    with_seed: dict[str, list[Any]]
    questions_from: Source | None = None
    launcher: str | None = None


@dataclass(frozen=True)
class Study:
    """What is run and compared.

    limit: take only so many items of each benchmark. decoding: settings of an evaluation by name. curve: updates after
    which every run is evaluated too, as numbers or shares (`5%`). compare: pairs of arms, the first minus the second.
    effects: two factors of two levels each, every level with its two arms; the first level minus the second. described:
    of each benchmark that is not built in, the YAML file that describes it, and its number of items; own_verifier:
    whether a function of the user's judges one of them.
    """

    name: str
    about: str
    arms: dict[str, Arm]
    seeds: tuple[int, ...]
    benchmarks: tuple[str, ...]
    limit: int | None
    decoding: dict[str, dict[str, Any]]
    curve: tuple[int | str, ...]
    compare: tuple[tuple[str, str], ...]
    effects: dict[str, dict[str, tuple[str, ...]]]
    described: dict[str, tuple[str, int]] = field(default_factory=dict)
    own_verifier: bool = False

    def options(self, arm: str, seed: int) -> dict[str, Any]:
        """The options of an arm's recipe for one of the study's seeds."""
        found, turn = self.arms[arm], self.seeds.index(seed)
        taken = {name: values[turn % len(values)] for name, values in found.with_seed.items()}
        return found.options | taken | {"seed": seed}


def read_study(
    path: Path,
    *,
    base: Path | None = None,
    overrides: Sequence[str] = (),
    benchmarks: Sequence[str] | None = None,
    limit: int | None = None,
    decoding: str | None = None,
    trust: Trust = EVERYTHING,
) -> Study:
    """The study in a file. Raises ForkLeftError for keys that are missing, unknown or of the wrong kind.

    base, benchmarks, limit, decoding (`static` or `native`) replace those of the file; another base also replaces the
    options that take turns with the seeds. overrides: words such as `max_steps=10` or `L-high.rho=0.5`. trust: the code
    that the study, its recipes and its benchmarks may have run; what `overrides` say needs no permission.
    """
    if not path.exists():
        raise ForkLeftError(_no_study(path))
    said = read_yaml(path, "study")
    if "arms" not in said and {"student", "teacher"} & set(said):
        raise ForkLeftError(
            f"{path} is a recipe, not a study: train it (forkleft train --config {path}), or run a study of "
            f"{_STUDIES} on it (--base {path})"
        )
    _check_names(f"{path}: there is no key", said, _KEYS)
    if missing := [key for key in _NEEDED if said.get(key) is None]:
        raise ForkLeftError(f"{path}: expected {', '.join(_NEEDED)}, {', '.join(missing)} missing; add it")
    name = str(said["name"])
    if not _NAME.fullmatch(name) or name == "cells":
        raise ForkLeftError(f"{path}: name is that of a folder; expected letters, digits, . _ + -, found {name!r}")
    if not is_file(base or path.parent / str(said["base"])):
        where = str(base or path.parent / str(said["base"]))
        raise ForkLeftError(f"{path}: there is no base recipe {where:.200}; mend base")
    # Files that the study names are beside it; those of the command line are relative to the working directory.
    named = said["benchmarks"] if benchmarks is None else list(benchmarks)
    beside = path.parent if benchmarks is None else Path()
    names, described, own_verifier = _benchmarks(path, named, beside, trust)
    if limit is not None:
        said["limit"] = limit
    if decoding is not None:
        said["decoding"] = {decoding: {} if decoding == _STATIC else {"decoding": decoding}}
    arms = _arms(path, said, base, overrides, trust)
    study = Study(
        name=name,
        about=str(said.get("about") or ""),
        arms=arms,
        seeds=_seeds(path, said["seeds"]),
        benchmarks=names,
        limit=_limit(path, said.get("limit")),
        decoding=_decoding(path, said.get("decoding")),
        curve=_curve(path, said.get("curve") or []),
        compare=_compare(path, said.get("compare") or [], arms),
        effects=_effects(path, said.get("effects") or {}, arms),
        described=described,
        own_verifier=own_verifier,
    )
    return study


def _no_study(path: Path) -> str:
    """The message that there is no such file; it names the nearest of the files beside it or in the repository."""
    files = {file.name: file for folder in (Path(_STUDIES), path.parent) for file in sorted(folder.glob("*.yaml"))}
    near = nearest(path.name, files)
    hint = f"did you mean {files[near]}? The" if near else "the"
    return f"there is no study {path}; {hint} folder {_STUDIES} of the repository has some"


def with_seeds(study: Study, seeds: Iterable[int]) -> Study:
    """The study with only some of its seeds. Raises ForkLeftError for a seed that it does not have.

    The order of the seeds stays that of the study, and each seed keeps the options that take turns with the seeds.
    """
    wanted = list(seeds)
    if unknown := [seed for seed in wanted if seed not in study.seeds]:
        known = ", ".join(map(str, study.seeds))
        raise ForkLeftError(f"{study.name} has no seed {unknown[0]}; its seeds are {known}: add it to the study's file")
    turns = {seed: turn for turn, seed in enumerate(study.seeds)}
    kept = tuple(seed for seed in study.seeds if seed in wanted)
    arms = {
        name: replace(
            arm,
            with_seed={
                option: [values[turns[seed] % len(values)] for seed in kept] for option, values in arm.with_seed.items()
            },
        )
        for name, arm in study.arms.items()
    }
    return replace(study, seeds=kept, arms=arms)


def _arms(
    path: Path, said: Mapping[str, Any], base: Path | None, overrides: Sequence[str], trust: Trust
) -> dict[str, Arm]:
    given = _mapping(path, "arms", said["arms"])
    if not given:
        raise ForkLeftError(f"{path}: expected at least one arm, found none")
    for name in given:
        if not _NAME.fullmatch(name):
            raise ForkLeftError(f"{path}: the arm {name!r} is named by letters, digits, . _ + - alone")
    for_all, for_arm = _overrides(overrides, given)
    shared = _own(path, "set", _mapping(path, "set", said.get("set") or {}))
    # Students that take turns belong to the file's own base.
    turns = {} if base else _mapping(path, "with_seed", said.get("with_seed") or {})
    arms = {}
    for name, values in given.items():
        values = _mapping(path, f"arms.{name}", values or {})
        own_base = values.pop("base", said["base"])
        file = base or path.parent / str(own_base)
        source = _source(path, name, values.pop("questions_from", None), given)
        launcher = values.pop("launcher", None)
        own_turns = _mapping(path, f"arms.{name}.with_seed", values.pop("with_seed", None) or {})
        own = _own(path, f"arms.{name}", values)
        said_here = for_all | for_arm.get(name, {})
        with_seed = {
            option: _turn(path, option, listed)
            for option, listed in (turns | own_turns).items()
            if option not in said_here and (option in own_turns or option not in own)
        }
        options = {k: v for k, v in read_options(file).items() if k not in (*_OURS, _SECRET)}
        # Of each option, only the file that decides it needs the permission.
        in_study, stronger = shared | own, {*said_here, *with_seed}
        trust.check({k: v for k, v in options.items() if k not in stronger | in_study.keys()}, str(file))
        trust.check({k: v for k, v in in_study.items() if k not in stronger}, str(path))
        for option, listed in with_seed.items():
            for value in listed:
                trust.check({option: value}, str(path))
        words = None if launcher is None else str(launcher)
        arms[name] = Arm(name, options | in_study | said_here, with_seed, source, words)
    return arms


def _overrides(words: Sequence[str], arms: Iterable[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The options of `--set`: those for all arms, and those for single ones."""
    for_all: list[str] = []
    for_arm: dict[str, list[str]] = {}
    for word in words:
        if "=" not in word:
            raise ForkLeftError(f"--set: expected option=value, found {word!r}")
        # An arm's name may have dots in it.
        named = next((arm for arm in arms if word.startswith(f"{arm}.")), None)
        if named is None:
            for_all.append(f"--{word}")
        else:
            for_arm.setdefault(named, []).append(f"--{word.removeprefix(f'{named}.')}")
    return (
        _own("--set", "", option_words(for_all)),
        {arm: _own("--set", arm, option_words(given)) for arm, given in for_arm.items()},
    )


def _own(path: Path | str, key: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an arm, checked; one without a value has its default, whatever the base says.

    Raises ForkLeftError for unknown ones, and for those that the study sets itself.
    """
    where = f"{path}, {key}" if key else str(path)
    if _SECRET in values:
        raise ForkLeftError(f"{where}: {_SECRET} would be kept in files; leave it out, and log in (hf auth login)")
    if ours := [option for option in values if option in _OURS]:
        raise ForkLeftError(f"{where}: {ours[0]} is for the study to say in each cell; leave it out")
    said = checked_options(values, where)
    return said | {name: default_of(option) for name, option in options().items() if name in values.keys() - said}


def _turn(path: Path, option: str, listed: Any) -> list[Any]:
    if not isinstance(listed, list) or not listed:
        raise ForkLeftError(f"{path}: with_seed.{option} is a list to take turns with the seeds, found {listed!r:.60}")
    return [_own(path, "with_seed", {option: value})[option] for value in listed]


def _source(path: Path, arm: str, said: Any, arms: Mapping[str, Any]) -> Source | None:
    if said is None:
        return None
    where = f"{path}: arms.{arm}.questions_from"
    if not isinstance(said, Mapping) or set(said) != {"arm", "route"}:
        raise ForkLeftError(f"{where}: expected {{arm: NAME, route: LEFTOPD}}, found {said!r:.60}")
    _check_names(f"{where}: there is no arm", [said["arm"]], arms)
    check_choice(f"{where}: route", said["route"], Route)
    if said["arm"] == arm or (arms[said["arm"]] or {}).get("questions_from"):
        raise ForkLeftError(f"{where}: expected an arm that trains on all questions, found {said['arm']!r}")
    return Source(said["arm"], said["route"])


def _seeds(path: Path, said: Any) -> tuple[int, ...]:
    if not isinstance(said, list) or not said or not all(type(seed) is int and seed >= 0 for seed in said):
        raise ForkLeftError(f"{path}: seeds is a list of whole numbers, found {said!r:.60}")
    if twice := [seed for seed in said if said.count(seed) > 1]:
        raise ForkLeftError(f"{path}: seed {twice[0]} is named twice")
    return tuple(said)


def _benchmarks(
    path: Path, said: Any, beside: Path, trust: Trust
) -> tuple[tuple[str, ...], dict[str, tuple[str, int]], bool]:
    """The names of a study's benchmarks; of those in YAML files the file and the number of items; `own_verifier`."""
    if not isinstance(said, list) or not said:
        raise ForkLeftError(f"{path}: benchmarks is a list of names, found {said!r:.60}")
    known = [*BENCHMARKS, *LAB_BENCHMARKS]
    names: list[str] = []
    described: dict[str, tuple[str, int]] = {}
    own_verifier = False
    for word in said:
        if not str(word).endswith((".yaml", ".yml")):
            _check_names(f"{path}: there is no benchmark", [word], known)
            names.append(word)
            continue
        for benchmark in read_benchmarks(beside / word, trust):
            if benchmark.name in known:
                raise ForkLeftError(f"{word}: there is a benchmark {benchmark.name} already; give yours another name")
            names.append(benchmark.name)
            described[benchmark.name] = (str(beside / word), benchmark.items)
            own_verifier |= benchmark.verifier.function is not None
    if twice := [name for name in names if names.count(name) > 1]:
        raise ForkLeftError(f"{path}: the benchmark {twice[0]} is named twice")
    return tuple(names), described, own_verifier


def _limit(path: Path, said: Any) -> int | None:
    if said is not None and (type(said) is not int or said < 1):
        raise ForkLeftError(f"{path}: limit must be at least 1 item, found {said!r}")
    return said


def _decoding(path: Path, said: Any) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, settings in _mapping(path, "decoding", said or {_STATIC: {}}).items():
        settings = _mapping(path, f"decoding.{name}", settings or {})
        _check_names(f"{path}: decoding.{name} has no setting", settings, _DECODING)
        try:
            Settings(**settings)
        except (ForkLeftError, TypeError) as error:
            raise ForkLeftError(f"{path}: decoding.{name}: {error}") from error
        if settings in found.values():
            raise ForkLeftError(f"{path}: decoding.{name} is the same as another; leave out one of them")
        found[name] = settings
    return found


def _curve(path: Path, said: Any) -> tuple[int | str, ...]:
    def right(step: Any) -> bool:
        return (type(step) is int and step >= 0) or (isinstance(step, str) and _share(step) is not None)

    if not isinstance(said, list) or not all(map(right, said)):
        raise ForkLeftError(f"{path}: curve is a list of updates or shares of them, [0, 5%, 50%], found {said!r:.60}")
    return tuple(said)


def curve_steps(study: Study, updates: int) -> list[int]:
    """The updates after which a run of `updates` updates is evaluated, in order; the last one is always among them."""
    if not study.curve:
        return []
    steps = {updates}
    for step in study.curve:
        if isinstance(step, int):
            steps.add(step)
        else:
            share = _share(step)
            steps.add(max(1, round(share * updates)) if share else 0)
    if beyond := [step for step in steps if step > updates]:
        raise ForkLeftError(f"{study.name}: curve names update {max(beyond)}, but the runs have {updates}")
    return sorted(steps)


def _share(text: str) -> float | None:
    """5% as a fraction; None if the text is not a share."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text)
    return float(found[1]) / 100 if found and float(found[1]) <= 100 else None


def _compare(path: Path, said: Any, arms: Mapping[str, Arm]) -> tuple[tuple[str, str], ...]:
    if not isinstance(said, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in said):
        raise ForkLeftError(f"{path}: compare is a list of pairs of arms, [[L-high, L-low]], found {said!r:.60}")
    for pair in said:
        _check_names(f"{path}: compare: there is no arm", pair, arms)
        if pair[0] == pair[1]:
            raise ForkLeftError(f"{path}: compare: {pair[0]} is compared with itself")
    return tuple((first, second) for first, second in said)


def _effects(path: Path, said: Any, arms: Mapping[str, Arm]) -> dict[str, dict[str, tuple[str, ...]]]:
    factors = {
        factor: {level: _listed(path, named) for level, named in _mapping(path, f"effects.{factor}", levels).items()}
        for factor, levels in _mapping(path, "effects", said).items()
    }
    if not factors:
        return {}
    for levels in factors.values():
        for named in levels.values():
            _check_names(f"{path}: effects: there is no arm", named, arms)
    if not _crossed(list(factors.values())):
        raise ForkLeftError(
            f"{path}: effects has two factors with two levels, each level with its two arms, such as "
            "{view: {L: [L-high, L-low], B: [B-high, B-low]}, order: {high: [L-high, B-high], low: [L-low, B-low]}}"
        )
    return factors


def _listed(path: Path, said: Any) -> tuple[str, ...]:
    if not isinstance(said, list):
        raise ForkLeftError(f"{path}: effects: expected a list of arms at each level, found {said!r:.60}")
    return tuple(said)


def _crossed(factors: list[dict[str, tuple[str, ...]]]) -> bool:
    """Whether there are two factors of two levels each, with exactly one arm for each pair of levels."""
    if [len(levels) for levels in factors] != [2, 2]:
        return False
    pairs = [set(arms_a) & set(arms_b) for arms_a in factors[0].values() for arms_b in factors[1].values()]
    named = {arm for levels in factors for arms in levels.values() for arm in arms}
    return all(len(pair) == 1 for pair in pairs) and len(named) == len(pairs)


def _mapping(path: Path | str, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ForkLeftError(f"{path}: {key} has names with values, found {value!r:.60}")
    return {str(name): inner for name, inner in value.items()}


def _check_names(what: str, names: Iterable[Any], known: Iterable[str]) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            near = nearest(str(name), known)
            raise ForkLeftError(f"{what} {name!r}; " + (f"did you mean {near}?" if near else f"known: {known}"))
