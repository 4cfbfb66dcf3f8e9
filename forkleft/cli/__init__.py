"""The `forkleft` command, one file for each sub-command."""

from forkleft.cli.main import main

__all__ = ["main"]
