"""The one kind of error a user is meant to read."""


class InputError(ValueError):
    """Something the user gave cannot be used; the message is one sentence that says what and why.

    The command line prints the message without a traceback and exits with status 2.
    """
