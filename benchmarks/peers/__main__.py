"""``occl bench`` with the programs of this folder among the contenders: ``make bench ARGS=--peers``."""

import argparse
import sys

from benchmarks.peers import programs
from occl.bench import command

if __name__ == "__main__":
    peers = command.Programs(tuple(programs.PROGRAMS), programs.prepare, programs.work)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    command.arguments(parser, peers)
    sys.exit(command.run(parser.parse_args(), peers))
