import subprocess
import sys

import forkleft


def test_public_names_are_there_and_lazy():
    assert all(callable(getattr(forkleft, name)) for name in forkleft.__all__)
    assert forkleft.verify("#2", "2", "lab")
    code = "import forkleft, sys; print('torch' in sys.modules); forkleft.generate; print('torch' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False", "True"]
