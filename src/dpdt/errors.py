"""The errors that a user is meant to read."""


class InputError(ValueError):
    """Something the user gave cannot be used; the message is one sentence that says what and why.

    The command line prints the message without a traceback and exits with status 2.
    """


class ArgumentError(InputError):
    """An argument of a function cannot be used.

    The message begins with the argument's name. The command line prints the name as an option.
    """

    def __init__(self, argument: str, problem: str):
        super().__init__(argument, problem)
        self.argument = argument
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.argument}: {self.problem}"


class Tainted(InputError):
    """Something was found that breaks a guarantee: nothing is guaranteed any more."""
