"""`forkleft doctor`: check the maths on a device, and a teacher on a server."""

import argparse
import sys

from forkleft.cli.arguments import Commands, add_command, hide_loading_bars, model_arguments, place, student_of
from forkleft.errors import ForkLeftError


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    doctor = add_command(commands, "doctor", run, "check the maths on your device, in your precision, with your model")
    model_arguments(doctor, required=False)
    help_text = "compare this teacher in memory with the same teacher behind --teacher-url, and check only that"
    doctor.add_argument("--teacher", metavar="TEACHER", help=help_text)
    doctor.add_argument("--teacher-url", metavar="URL", help="a vLLM server in pooling mode (docs/teacher-server.md)")
    doctor.add_argument("--teacher-model", metavar="NAME", help="its name on that server (default: as --teacher says)")


def run(options: argparse.Namespace) -> None:
    """`forkleft doctor`."""
    from forkleft.objective.checks import stand_in
    from forkleft.report.doctor import doctor

    hide_loading_bars()
    if options.teacher is not None or options.teacher_url is not None:
        holds = _same_teacher(options)
    else:
        device, dtype = place(options)
        student = stand_in(dtype, device) if options.model is None else student_of(options)
        student.use_dense_attention(options.dense_attention)
        holds = doctor(student)
    if not holds:
        sys.exit(1)


def _same_teacher(options: argparse.Namespace) -> bool:
    from forkleft.cli.runs import state_server
    from forkleft.report.doctor import teacher_doctor
    from forkleft.teacher import RemoteTeacher, load_teacher

    if options.teacher is None or options.teacher_url is None:
        raise ForkLeftError(
            "expected --teacher and --teacher-url: a model and the server that runs it, to compare them"
        )
    if options.model is not None:
        raise ForkLeftError("expected --model or --teacher, found both: check them one after the other")
    device, dtype = place(options)
    server = state_server(options.teacher_url, options.teacher_model or options.teacher, attempts=1)
    settings = {"dtype": dtype, "device": device, "chat_template": options.chat_template}
    settings |= {"trust_remote_code": options.trust_remote_code}
    # First, so that a server that is not there is reported before a large model is loaded.
    server.check()
    remote = load_teacher(options.teacher, server=server, **settings)
    assert isinstance(remote, RemoteTeacher)
    return teacher_doctor(load_teacher(options.teacher, **settings), remote)
