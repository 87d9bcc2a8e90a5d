"""Errors that a user can mend."""


class StallscopeError(Exception):
    """Bad input, in one message: where, what was found, what was expected, what to do. The CLI exits with 2."""
