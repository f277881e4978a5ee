"""python -m dpdt, and the command `dpdt`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command. An interrupt while it is being imported ends it like any other."""
    try:
        from dpdt.cli.main import main as command

        command()
    except KeyboardInterrupt:
        print("dpdt: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
