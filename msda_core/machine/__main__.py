"""`python -m msda_core.machine run SCRIPT.py`: see `tool/cli.py`."""

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # tiles are too small to share among threads
os.environ.setdefault("TRITON_INTERPRET", "0")  # scripts meet the kernels that they would meet on a GPU

if __name__ == "__main__":
    from msda_core.machine.tool.cli import main

    sys.exit(main())
