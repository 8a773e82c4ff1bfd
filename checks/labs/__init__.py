"""The exercises of the labs, one package each."""
