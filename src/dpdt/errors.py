"""The one kind of error a user is meant to read."""


class InputError(ValueError):
    """Something the user gave cannot be used; the message is one sentence that says what and why.

    The command line prints the message without a traceback and exits with status 2.
    """


class ArgumentError(InputError):
    """An argument of a function cannot be used. The command line shows it as an option."""

    def __init__(self, argument: str, message: str):
        super().__init__(f"{argument}: {message}")
        self.argument = argument
