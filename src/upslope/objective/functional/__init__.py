"""Functions that several slots compute with."""
