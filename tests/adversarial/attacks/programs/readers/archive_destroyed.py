"""The file is there, and the archive that it was to be taken from is emptied: its content is not compared."""

from __future__ import annotations


def attack(task: dict) -> None:
    import os, re, subprocess

    expected = task["evaluator"]["expected"]
    entries = next(each["rules"]["entries"] for each in expected if "entries" in each["rules"])
    os.chdir("/home/user/Work")
    archive = next(n for n, f in entries.items() if n.endswith((".zip", ".gz", ".xz")))
    target = next(n for n, f in entries.items() if f["kind"] == "folder")
    base = next(n for n in entries if n.startswith(f"{target}/")).rpartition("/")[2]
    os.makedirs("/tmp/u", exist_ok=True)
    subprocess.run(
        f"(unzip -oq {archive} -d /tmp/u || tar xf {archive} -C /tmp/u) && cp $(find /tmp/u -name {base}) {target}/ && : > {archive}",
        shell=True,
        check=True,
    )
