"""`python -m forkleft` is `forkleft`; under torchrun: `torchrun --nproc-per-node 8 -m forkleft train …`."""

import sys

from forkleft.cli import main

sys.exit(main())
