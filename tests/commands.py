"""The command line in this process."""

from pathlib import Path

from forkleft.cli.main import main

ROOT = Path(__file__).parents[1]


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err
