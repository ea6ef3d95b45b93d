"""`occl.bench` with the programs of this folder among the contenders: ``make bench ARGS=--peers``."""

from benchmarks.peers import programs
from occl.bench.command import Programs, run

if __name__ == "__main__":
    run(Programs(tuple(programs.PROGRAMS), programs.prepare, programs.work))
