"""`forkleft doctor`: check the maths on a device."""

import argparse
import sys

from forkleft.cli.arguments import Commands, add_command, hide_loading_bars, model_arguments, place, student_of


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    doctor = add_command(commands, "doctor", run, "check the maths on your device, in your precision, with your model")
    model_arguments(doctor, required=False)


def run(options: argparse.Namespace) -> None:
    """`forkleft doctor`."""
    from forkleft.objective.checks import stand_in
    from forkleft.report.doctor import doctor

    hide_loading_bars()
    device, dtype = place(options)
    student = stand_in(dtype, device) if options.model is None else student_of(options)
    student.use_dense_attention(options.dense_attention)
    if not doctor(student):
        sys.exit(1)
