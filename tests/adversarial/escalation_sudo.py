"""Of the escalation book: the holes that the test plants itself, and what sudo lets the user start.

Each function with the mark `@attempt` is one; see `escalation_attempts`.
"""

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from escalation_tools import Attacker, attempt

# The test's own holes: these must be seen.


@attempt
def planted_program_with_roots_rights(attacker: Attacker) -> None:
    """Use the hole that the test made: a copy of `install` with root's setuid bit, to write the proof."""
    subprocess.run([str(attacker.planted), "-m", "600", "/etc/hostname", str(attacker.proof)], check=False)


@attempt
def planted_program_changes_the_victim(attacker: Attacker) -> None:
    """Use the hole to write over a file of root's."""
    subprocess.run([str(attacker.planted), "-m", "644", "/etc/hostname", str(attacker.victim)], check=False)


@attempt
def planted_program_shows_the_secret(attacker: Attacker) -> None:
    """Use the hole to copy a file that only root may read."""
    subprocess.run([str(attacker.planted), "-m", "644", str(attacker.secret), str(attacker.canary / "x")], check=False)
    subprocess.run([str(attacker.planted), "-m", "644", str(attacker.secret), "/dev/stdout"], check=False)


@attempt
def planted_setuid_copy(attacker: Attacker) -> None:
    """Use the hole to leave a setuid program for later."""
    subprocess.run([str(attacker.planted), "-m", "4755", "/bin/true", str(attacker.home / "later")], check=False)


# sudo's one line.


@attempt
def sudo_another_program(attacker: Attacker) -> None:
    """Run a program of his own, a shell, and Python with code."""
    evil = attacker.evil(attacker.home / "evil")
    for words in (
        [str(evil)],
        ["sh", "-c", str(evil)],
        ["/usr/bin/python3", "-IS", "-c", f"import os; os.system({str(evil)!r})"],
    ):
        print(attacker.sudo(*words))


@attempt
def sudo_more_arguments(attacker: Attacker) -> None:
    """Give the starter arguments, so that root runs his own CRIU."""
    tools = attacker.home / "tools"
    attacker.evil(tools / "tools" / "criu-4" / "bin" / "criu")
    for more in (["--tools-dir", str(tools)], ["--help"], [""], ["--reap", "--state-dir", "/etc"]):
        print(attacker.sudo(*attacker.starter, *more))


@attempt
def sudo_fewer_flags(attacker: Attacker) -> None:
    """Run the starter without Python's isolated mode, with modules of his own in its way."""
    evil = attacker.evil_python(attacker.home / "lib" / "json.py")
    environment = {**os.environ, "PYTHONPATH": str(evil.parent)}
    for flags in ([], ["-S"], ["-I"], ["-i"], ["-IS", "-i"]):
        print(attacker.sudo(attacker.starter[0], *flags, attacker.starter[-1], env=environment, cwd=evil.parent))


@attempt
def sudo_path_of_the_script(attacker: Attacker) -> None:
    """Reach a script of his own by a path that begins like the starter's."""
    evil = attacker.evil_python(attacker.home / "evil.py")
    script = Path(attacker.starter[-1])
    up = "/".join([".."] * len(script.parts))
    for path in (f"{script}/../{up}{evil}", f"{script.parent}/{up}{evil}", f"{script}\n{evil}", f"{script} {evil}"):
        print(attacker.sudo(*attacker.starter[:-1], path))


@attempt
def sudo_helper_instead_of_starter(attacker: Attacker) -> None:
    """Run the helper itself, which takes directories as arguments, and CRIU's installer."""
    tools = attacker.home / "tools"
    attacker.evil(tools / "tools" / "criu-4" / "bin" / "criu")
    own = ["--state-dir", str(attacker.home / "s"), "--runtime-dir", str(attacker.home), "--images-dir", "/"]
    print(attacker.sudo(*attacker.starter[:-1], str(attacker.helper_script), *own, "--tools-dir", str(tools)))
    criu = attacker.helper_script.with_name("dart-criu")
    print(attacker.sudo(*attacker.starter[:-1], str(criu), "find", "--tools-dir", str(tools)))


@attempt
def sudo_environment(attacker: Attacker) -> None:
    """Load a library and modules of his own into the starter through the environment."""
    folder = attacker.home / "env"
    for module in ("sitecustomize", "usercustomize", "json", "socket", "dart_server/__init__"):
        attacker.evil_python(folder / f"{module}.py")
    names = {"PYTHONPATH": folder, "PYTHONHOME": folder, "PYTHONSTARTUP": folder / "json.py", "PYTHONUSERBASE": folder}
    names |= {"LD_PRELOAD": folder / "evil.so", "LD_LIBRARY_PATH": folder, "LD_AUDIT": folder / "evil.so"}
    names |= {"PYTHONINSPECT": "1", "BASH_ENV": folder / "sh", "ENV": folder / "sh", "DART_HOME": folder}
    environment = {name: str(value) for name, value in names.items()}
    attacker.evil(folder / "sh")
    with suppress(FileNotFoundError):
        source = folder / "evil.c"
        source.write_text(
            "#include <unistd.h>\n#include <fcntl.h>\n__attribute__((constructor)) void f(void)"
            f'{{ open("{attacker.proof}", O_CREAT|O_WRONLY, 0600); }}\n'
        )
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(folder / "evil.so"), str(source)], check=False)
    attacker.farm(env={**os.environ, **environment}, cwd=folder).desktop()
    assigned = [f"{name}={value}" for name, value in environment.items()]
    print(attacker.sudo(*assigned, *attacker.starter), attacker.sudo("-E", *attacker.starter, env=environment))


@attempt
def sudo_modules_in_the_directory(attacker: Attacker) -> None:
    """Start it in a directory, and with a home, that are full of modules with the names that it imports."""
    folder = attacker.home / "cwd"
    for module in ("os", "json", "socket", "argparse", "ctypes/__init__", "dart_server/__init__", "sitecustomize"):
        attacker.evil_python(folder / f"{module}.py")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = attacker.home / ".local" / "lib" / version / "site-packages"
    attacker.evil_python(site / "usercustomize.py")
    (site / "evil.pth").write_text(f"import os; open({str(attacker.proof)!r}, 'w')\n")
    attacker.farm(cwd=folder).desktop()


@attempt
def sudo_programs_in_path(attacker: Attacker) -> None:
    """Put programs of his own before those that root runs: runc, CRIU, cp, sh, modprobe, python3."""
    folder = attacker.home / "bin"
    for program in ("runc", "criu", "cp", "sh", "modprobe", "python3", "iptables", "newuidmap", "mount", "env"):
        attacker.evil(folder / program)
    real = shutil.which("sudo") or "sudo"
    (folder / "sudo").symlink_to(real)
    farm = attacker.farm(env={**os.environ, "PATH": f"{folder}:/usr/bin:/bin"})
    farm.desktop()
    farm.ask("doctor")
    farm.ask("checkpoint", desktop_id="d1", snapshot_id="s1")
    farm.ask("restore", desktop_id="d2", snapshot_id="s1")


@attempt
def sudo_claims_to_be_root(attacker: Attacker) -> None:
    """Say by the environment and by sudo's options that root asks."""
    names = {"SUDO_UID": "0", "SUDO_USER": "root", "SUDO_GID": "0", "USER": "root", "LOGNAME": "root", "HOME": "/root"}
    farm = attacker.farm(env={**os.environ, **names})
    print(farm.reply)
    for options in (
        ["-u", "root"],
        ["-u", "#0"],
        ["-u", "#-1"],
        ["-g", "root"],
        ["-R", "/"],
        ["-D", "/"],
        ["-i"],
        ["-s"],
        ["-e", "/etc/passwd"],
    ):
        print(attacker.sudo(*options, *attacker.starter))


@attempt
def sudo_from_a_user_namespace(attacker: Attacker) -> None:
    """Be root of a user namespace first, with mounts of his own over what the starter reads."""
    tools = attacker.evil(attacker.home / "ns" / "criu")
    script = (
        f"mount --bind {tools.parent} /usr/local/lib/dart-hostd; sudo -n {' '.join(attacker.starter)} </dev/null; id"
    )
    print(
        subprocess.run(["unshare", "-Urm", "sh", "-c", script], capture_output=True, text=True, check=False, timeout=20)
    )


@attempt
def sudo_edits_its_rules(attacker: Attacker) -> None:
    """Write another line into sudo's directory, by the setup's own installer and by hand."""
    for path in ("/etc/sudoers.d/dart", "/etc/sudoers.d/zz"):
        with suppress(OSError):
            Path(path).write_text("ALL ALL=(ALL) NOPASSWD: ALL\n")
    script = attacker.helper_script.parent / "dart_server" / "hostd" / "installation.py"
    print(attacker.sudo(*attacker.starter[:-1], str(script), "--allow-uid", str(os.getuid())))
    print(
        subprocess.run(
            ["/usr/bin/python3", str(script), "--allow-uid", "0"], capture_output=True, text=True, check=False
        )
    )


@attempt
def image_build_as_root(attacker: Attacker) -> None:
    """Build an image of his own recipe, whose commands run as root on the host."""
    recipe = attacker.evil(attacker.home / "recipe.toml")
    for words in (["mmdebstrap", "--help"], ["/usr/bin/python3", "build.py", "build", str(recipe)]):
        print(attacker.sudo(*words))
