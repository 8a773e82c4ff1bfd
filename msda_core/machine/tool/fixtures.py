"""A pytest fixture: `machine`, the paper GPU. Load it with `-p msda_core.machine.tool.fixtures`, or in a conftest.

def test_add_stays_cheap(machine):
    with machine.budget({"add_kernel": {"load_sectors": 600}}):
        add(x, y)
"""

import pytest

__all__ = ["machine"]


@pytest.fixture
def machine():
    """The package `msda_core.machine`: `machine.budget`, `machine.session`, `machine.profile`."""
    from msda_core import machine

    return machine
