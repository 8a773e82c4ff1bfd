"""The exercises of the labs, one package each."""

import checks.kernel.launches  # noqa: F401  gives the core its kernel side
