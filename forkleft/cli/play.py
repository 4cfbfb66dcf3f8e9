"""`forkleft play`: a local page on which one or two students write."""

import argparse
import copy
import signal

from forkleft.cli.arguments import Commands, add_command, hide_loading_bars, model_arguments, student_of
from forkleft.errors import ForkLeftError
from forkleft.signals import EndedBySignal

_HOST, _PORT = "127.0.0.1", 8642


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    play = add_command(commands, "play", run, "ask students on a local page, and watch them denoise side by side")
    model_arguments(play)
    help_text = "a second student, asked the same; the other options hold for both"
    play.add_argument("--compare", metavar="MODEL", help=help_text)
    play.add_argument("--plain", action="store_true", help="take questions as they are, without the chat template")
    help_text = "who judges, if the page is told the right answer (default math; lab for the lab's students)"
    play.add_argument("--verifier", metavar="NAME", help=f"{help_text}: a kind, or package.module:function")
    play.add_argument("--host", default=_HOST, help=f"where to listen (default {_HOST}: for this machine only)")
    play.add_argument("--port", type=int, default=_PORT, metavar="N", help=f"default {_PORT}; 0 takes a free one")


def run(options: argparse.Namespace) -> None:
    """`forkleft play`."""
    try:
        from forkleft.report.play.server import Server, address_of, is_loopback, listen, playground
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("starlette", "uvicorn"):
            raise
        raise ForkLeftError(
            f"the playground needs Starlette and uvicorn, and {missing} is not installed; install them with: "
            "pip install 'forkleft[play]'"
        ) from error
    from forkleft.report.play.writing import Player
    from forkleft.verify import Verifier

    hide_loading_bars()
    verifier = None if options.verifier is None else Verifier.of(options.verifier)
    # Models may take minutes to load, so a port that is taken is told before.
    with listen(options.host, options.port) as listener:
        players = []
        for name in filter(None, (options.model, options.compare)):
            said = copy.copy(options)
            said.model = name
            player = Player(name, student_of(said), options.plain)
            # A tokenizer that cannot render questions is told now, not on the page.
            player.prompt("1+1?")
            players.append(player)
        application = playground(players, verifier, options.host)
        if not is_loopback(options.host):
            print("Everybody who can reach this machine can use the page: there is no password.")
        print(f"{address_of(listener)}   (Ctrl-C ends)", flush=True)
        try:
            Server(application).run(sockets=[listener])
        except KeyboardInterrupt as error:
            print()
            if isinstance(error, EndedBySignal) and error.number != signal.SIGINT:
                raise
