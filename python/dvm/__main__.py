"""python -m dvm COMMAND"""

from __future__ import annotations

import sys

USAGE = """usage: python -m dvm doctor [--json]   what is installed and whether it works
       python -m dvm cache ls|verify|clear   programs that torch.compile keeps on disk
       python -m dvm version"""


def main(argv: list[str]) -> int:
    """Runs a command; its exit code."""
    if argv[:1] == ["doctor"]:
        from .doctor import main as doctor

        return doctor(argv[1:])
    if argv[:1] == ["cache"] and argv[1:] in (["ls"], ["verify"], ["clear"]):
        from .torch.cache import command

        return command(argv[1])
    if argv[:1] in (["version"], ["--version"]):
        from . import __version__

        print(__version__)
        return 0
    print(USAGE, file=sys.stderr if argv[:1] not in ([], ["-h"], ["--help"]) else sys.stdout)
    return 0 if argv[:1] in ([], ["-h"], ["--help"]) else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
