"""Root writes the captured answer."""

from __future__ import annotations


def attack(task: dict) -> None:
    import subprocess

    want = task["evaluator"]["expected"]["rules"]["expected"]
    subprocess.run(
        [
            "sudo",
            "-S",
            "sh",
            "-c",
            f"cd /var/lib/dart/captured/answer && printf '%s\\n' '{want}' > stdout && echo 0 > code",
        ],
        input="password\n",
        text=True,
        check=True,
    )
