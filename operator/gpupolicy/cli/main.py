"""`kubectl-gpupolicy`: the table of commands, and the way from the command line to one of them.

A command is a module of this package with `add_arguments(parser)` and `run(arguments)`, which returns the exit code. It
is imported when it is asked for, so that no command pays for the libraries of another.
"""

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["COMMANDS", "USAGE_ERROR", "Command", "CommandError", "main"]

USAGE_ERROR: Final = 2
"""Exit code of every command for arguments or input that cannot be used."""

_INTERRUPTED: Final = 130
_BROKEN_PIPE: Final = 141


class CommandError(Exception):
    """A command cannot do what it is asked to; the message says why and what to do. It ends with `USAGE_ERROR`."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the program."""

    name: str
    module: str
    """Module below `gpupolicy.cli`."""
    summary: str


COMMANDS: Final = (
    Command(
        "select", "select", "show which devices a CEL selector matches, and judge it as the API server would"
    ),
    Command("explain", "explain", "explain why a pod waits for its devices"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="kubectl-gpupolicy",
        description="Policies for GPUs on Kubernetes, from the command line.",
        epilog="commands:\n" + "\n".join(f"  {command.name:10} {command.summary}" for command in COMMANDS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=[command.name for command in COMMANDS], metavar="COMMAND")
    name = parser.parse_args(words[:1]).command
    command = next(command for command in COMMANDS if command.name == name)
    module = importlib.import_module(f"gpupolicy.cli.{command.module}")
    command_parser = argparse.ArgumentParser(
        prog=f"kubectl-gpupolicy {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(command_parser)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that has no letter for something is no reason to show nothing.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = int(module.run(command_parser.parse_args(words[1:])))
        # Here, and not when the interpreter ends: what fails then becomes an exit code of its own.
        sys.stdout.flush()
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        _discard_output()
        return _BROKEN_PIPE
    except OSError as error:
        _discard_output()
        print(f"error: {error.strerror or error}; the output is not complete", file=sys.stderr)
        return USAGE_ERROR
    return code


def _discard_output() -> None:
    """Send what is still to be written nowhere, or the interpreter would try once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    # Under `python -m` this file is another module than the one the commands import, with another CommandError.
    sys.exit(importlib.import_module("gpupolicy.cli.main").main())
