"""python -m msda_core.bench: the operator against its peers."""

from msda_core.bench.operator import main

if __name__ == "__main__":
    raise SystemExit(main())
