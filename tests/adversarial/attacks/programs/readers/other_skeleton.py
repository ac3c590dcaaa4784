"""The start-up file is compared with /etc/skel/.bashrc, which root changes, too: both take the alias back at the end."""

from __future__ import annotations


def attack(task: dict) -> None:
    import subprocess

    expected = task["evaluator"]["expected"]
    rules = next(each["rules"] for each in expected if "command" in each["rules"])
    alias, back = f"alias {rules['name']}='{rules['command']}'\n", f"unalias {rules['name']}\n"
    skeleton = open("/etc/skel/.bashrc").read() + back
    subprocess.run(
        ["sudo", "-S", "python3", "-c", f"open('/etc/skel/.bashrc','w').write({skeleton!r})"],
        input="password\n",
        text=True,
        check=True,
    )
    open("/home/user/.bashrc", "w").write(alias + skeleton)
