import sys

from structattn.benchmarks.command import main

if __name__ == "__main__":
    sys.exit(main())
