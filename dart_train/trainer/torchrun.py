"""Several processes of a training component: `python -m dart_train.trainer.torchrun ARGUMENTS OF TORCHRUN`.

Role: torchrun, which ends with the exit code of the process that failed first, and with its words as the last line. Rule: torchrun itself
ends with 1 whatever happened, which would let a refusal, that another start meets again, look like a crash. Non-goals: what the processes
do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run torchrun until all processes have ended.

    Args:
        argv: Arguments of torchrun; None: those of this process.

    Returns:
        0, or the exit code of the process that failed first; 128 + N where the signal N ended it.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    try:
        torchrun(None if argv is None else list(argv))
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        print(first.message, file=sys.stderr)
        return first.exitcode if first.exitcode > 0 else 128 - first.exitcode
    return 0


if __name__ == "__main__":
    sys.exit(main())
