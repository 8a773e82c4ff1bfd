"""The command `python -m msda_core.machine`: scripts as they are, profiled without a GPU."""
