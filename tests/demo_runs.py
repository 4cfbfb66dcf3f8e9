"""A short demo, as a program that can run in several processes:

python demo_runs.py OUTPUT
"""

import sys
import tempfile
from pathlib import Path

from forkleft.cli import demonstration
from forkleft.errors import ForkLeftError, ToldError
from forkleft.lab.benchmarks import lab_set
from forkleft.train.recipes import read_options, recipe_page

WORDS = ["--questions_per_update", "4", "--train_questions", "8", "--eval_questions", "2", "--passes", "4"]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        short = Path(folder, "short.yaml")
        said = read_options(demonstration.RECIPE, [*WORDS, "--showcase_questions", "1"])
        short.write_text(recipe_page(said), encoding="utf-8")
        demonstration.RECIPE = short
        demonstration.lab_set = lambda name: lab_set(name, 40)
        try:
            demonstration.demo(Path(sys.argv[1]), updates=1)
        except ForkLeftError as error:
            if not isinstance(error, ToldError):
                print(error, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
