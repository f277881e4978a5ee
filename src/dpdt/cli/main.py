"""The `dpdt` command. Each subcommand is imported when it is called, so that help is instant."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from typing import Any, NoReturn

import click

from dpdt import __version__
from dpdt.cli import console
from dpdt.errors import ArgumentError, InputError, PrivateWarning, meant

COMMANDS = {
    "init": "Write a configuration for a data file of your own.",
    "train": "Train a model and say what it guarantees.",
    "account": "Say what a run guarantees, without training.",
    "explore": "Move a setting, and see every ε move.",
    "calibrate": "Find the noise for a target ε.",
    "allocate": "Split the privacy budget over kinds of block.",
    "compare": "Compare methods at the same proven ε.",
    "tune": "Choose settings on private data, and count what it costs.",
    "budget": "Add up what each data set has paid.",
    "audit": "Try to break a guarantee.",
    "report": "Write a page about a run, to look at and to show.",
    "predict": "Say the class of new examples.",
    "release": "Write a model and its certificate, to hand over.",
    "verify": "Say whether a release is what it says.",
    "reproduce": "Draw a figure of the paper.",
    "data": "Say which data sets are here.",
}
NEXT = """\
dpdt trains models on sensitive data, and says what they guarantee. Three things to do next:

  dpdt train digits --out runs/first   a private model in seconds, on data that are here
  dpdt report runs/first               a page about it, to look at and to show
  dpdt init people.csv                 a configuration for a table of your own, to fill in

dpdt --help lists all commands, and dpdt COMMAND --help explains one."""


class Commands(click.Group):
    """Subcommands by name, one module each."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            near = meant(name, COMMANDS) or f"; there are {', '.join(COMMANDS)}"
            raise InputError(f"{name}: no such command{near}")
        if name != "train" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise InputError(f"{name}: runs in one process; torchrun is for dpdt train")
        command: click.Command = importlib.import_module(f"dpdt.cli.{name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: dpdt train digits --set privacy.epsilon=3",
    invoke_without_command=True,
)
@click.version_option(__version__, prog_name="dpdt")
@click.pass_context
def cli(context: click.Context) -> None:
    """Differentially private decoupled training: train, account, audit, release."""
    if context.invoked_subcommand is None:
        click.echo(NEXT)


_WARNED: set[str] = set()
LONGEST = 2000  # characters of a message, which may repeat what it is about


def _warn(message: Any, category: type[Warning] = UserWarning, *_: Any, **__: Any) -> None:
    """Print a warning, each once. What is private is not for a log, which could be published."""
    if issubclass(category, PrivateWarning) and not console.on_terminal():
        return
    if str(message) not in _WARNED:
        _WARNED.add(str(message))
        click.echo(f"warning: {message}", err=True)


def _told(error: InputError) -> str:
    """The message, in which an argument bears its name on the command line."""
    told = str(error)
    if isinstance(error, ArgumentError):
        told = f"--{error.argument.replace('_', '-')}: {error.problem}"
    return told if len(told) <= LONGEST else f"{told[:LONGEST]} …"


def main() -> None:
    """Run the command; what goes wrong is one sentence on stderr and status 2."""
    warnings.showwarning = _warn
    if os.environ.get("RANK", "0") != "0":
        warnings.simplefilter("ignore")  # rank 0 prints them
    if not console.prepare():
        _fail("standard output is closed, and the result would be lost; redirect it to a file")
    try:
        status = cli(standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except InputError as error:
        _fail(_told(error))
    except console.OutputError as error:
        if error.broken_pipe:
            sys.exit(141)  # as if SIGPIPE had ended us
        _fail(f"standard output cannot be written ({error})")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}; not everything was written")
    except MemoryError as error:
        _fail(f"there is not enough memory ({str(error).strip('. ') or 'nothing more is known'})")
    except (KeyboardInterrupt, click.Abort):
        click.echo("dpdt: interrupted", err=True)
        sys.exit(130)
    sys.exit(status or 0)


def _fail(message: str) -> NoReturn:
    click.echo(f"dpdt: {message}", err=True)
    sys.exit(2)
