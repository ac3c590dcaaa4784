"""Parts of the provider docker that need no engine: the container it asks for, what it reads, images as tars, the doctor's words."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from dart_server.hostd.linux.cgroups import Usage
from dart_server.hostd.runtime import oci
from dart_server.providers.base import CapabilityMissing, DesktopSpec
from dart_server.providers.docker import container, engine, images
from dart_server.providers.docker.engine import EngineFacts
from dart_server.providers.docker.provider import DockerProvider

pytest.importorskip("docker")

FACTS = EngineFacts("20.10", "overlay2", True, True, frozenset({"memory", "pids", "cpus"}), swap=True, podman=False)
SPEC = DesktopSpec("basic", (640, 400), font_size=14, memory_mib=768, pids=256, cpus=1.5, disk_mib=128)
INFO = {"Driver": "overlay2", "DockerRootDir": "/", "MemoryLimit": True, "PidsLimit": True, "CpuCfsQuota": True}


class FakeDockerClient:
    """An engine that only says what it is."""

    def __init__(
        self, info: dict[str, Any], base_url: str = "http+docker://localhost", components: tuple[str, ...] = ()
    ) -> None:
        self._info = info
        self._components = components
        self.api = type("Api", (), {"base_url": base_url})

    def info(self) -> dict[str, Any]:
        return self._info

    def version(self) -> dict[str, Any]:
        return {"Components": [{"Name": name} for name in self._components]}

    def close(self) -> None: ...


def test_the_container_gets_named_capabilities_limits_and_no_network(tmp_path: Path) -> None:
    call_filter = container.system_call_filter(FACTS, tmp_path)
    made = container.options("dart-1-ab", "d1", SPEC, "sha256:1", ("/usr/sbin/dart-init",), FACTS, call_filter)
    assert made["network_mode"] == "none"
    assert made["cap_drop"] == ["ALL"]
    assert {f"CAP_{name}" for name in made["cap_add"]} == set(oci.CAPABILITIES)
    (option,) = made["security_opt"]
    assert json.loads(option.removeprefix("seccomp="))["syscalls"][0]["action"] == "SCMP_ACT_ERRNO"
    assert made["mem_limit"] == made["memswap_limit"] == 768 << 20
    assert (made["pids_limit"], made["nano_cpus"]) == (256, 1_500_000_000)
    assert made["environment"]["DART_RESOLUTION"] == "640x400"
    assert made["environment"]["DART_FONT_SIZE"] == "14"
    assert made["labels"] == {container.LABEL_FARM: "dart-1-ab", container.LABEL_DESKTOP: "d1"}
    assert not {"privileged", "volumes", "mounts", "devices", "storage_opt"} & set(made)


def test_podman_is_known_and_reads_its_filter_from_a_file(tmp_path: Path) -> None:
    told = engine.facts(FakeDockerClient(INFO, components=("Podman Engine", "Conmon")))
    assert told.podman
    assert not engine.facts(FakeDockerClient(INFO, components=("DockerEngine", "containerd"))).podman
    path = Path(container.system_call_filter(told, tmp_path / "farm"))
    assert path.parent == tmp_path / "farm"
    assert json.loads(path.read_text())["syscalls"][0]["action"] == "SCMP_ACT_ERRNO"
    made = container.options("dart-1-ab", "d1", SPEC, "sha256:1", ("/init",), told, str(path))
    assert made["security_opt"] == [f"seccomp={path}"]
    assert {limit.name for limit in made["ulimits"]} == {"nofile", "core", "nproc"}


def test_the_disk_is_bounded_where_the_engine_can() -> None:
    facts = EngineFacts("20.10", "btrfs", True, True, FACTS.limits | {"disk"}, swap=False, podman=False)
    made = container.options("dart-1-ab", "d1", SPEC, "sha256:1", ("/init",), facts, "{}")
    assert made["storage_opt"] == {"size": "128M"}
    assert "memswap_limit" not in made


@pytest.mark.parametrize(
    ("state", "expected", "ended"),
    [
        ({"Status": "running", "ExitCode": 0}, "running", None),
        ({"Status": "exited", "ExitCode": 137}, "ended", "signal 9"),
        ({"Status": "exited", "ExitCode": 2}, "ended", "exit 2"),
    ],
)
def test_the_engines_state_is_read(state: dict[str, Any], expected: str, ended: str | None) -> None:
    seen = container.health_counters(state, "")
    assert (seen["state"], seen["exit_status"], seen["oom_kills"]) == (expected, ended, 0)
    assert container.health_counters({**state, "OOMKilled": True}, "")["oom_kills"] == 1


def test_what_a_host_without_memory_killed_is_not_counted_against_the_desktop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's own flag tells only that something was killed."""
    monkeypatch.setattr(container.cgroups, "usage", lambda _group: Usage(host_oom_kills=2))
    seen = container.health_counters({"Status": "exited", "ExitCode": 137, "OOMKilled": True}, "/docker/1")
    assert (seen["oom_kills"], seen["host_oom_kills"]) == (0, 2)


def test_limits_are_what_the_engine_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine.facts(FakeDockerClient(INFO)).limits >= {"memory", "pids", "cpus"}
    assert "disk" in engine.facts(FakeDockerClient({**INFO, "Driver": "zfs"})).limits
    monkeypatch.setattr(engine.rlimits, "has_capability", lambda _number: True)
    monkeypatch.setattr(
        engine, "connect", lambda: FakeDockerClient({**INFO, "PidsLimit": False}, "http://elsewhere:2375")
    )
    bad = {check.name: check for check in engine.run_checks() if not check.ok}
    assert set(bad) == {"engine location", "system-call filter", "limits"}
    assert all(check.fix for check in bad.values())


async def test_a_host_without_an_engine_is_told_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    monkeypatch.setattr(engine.rlimits, "has_capability", lambda _number: True)
    provider = DockerProvider(home=tmp_path, runtime_dir=tmp_path)
    with pytest.raises(CapabilityMissing, match="no container engine answers") as caught:
        await provider.start()
    assert "docker.io" in caught.value.hint
    assert await provider.reap(set()) == [], "a farm that could not start stops without another error"
    await provider.aclose()


def test_a_root_file_system_keeps_modes_links_and_exact_times_in_its_tar(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "tool"
    tool.write_bytes(b"x" * 3_000_000)
    tool.chmod(0o4755)
    os.link(tool, tmp_path / "bin" / "twin")
    (tmp_path / "link").symlink_to("bin/tool")
    os.utime(tmp_path / "bin", ns=(0, 1_700_000_000_123_456_789))
    tar = tarfile.open(fileobj=io.BytesIO(b"".join(images.tar_stream(tmp_path))))  # noqa: SIM115 - in memory
    assert sorted(tar.getnames()) == ["bin", "bin/tool", "bin/twin", "link"]
    assert tar.getmember("bin/tool").mode == 0o4755
    assert {tar.getmember("bin/tool").type, tar.getmember("bin/twin").type} == {tarfile.REGTYPE, tarfile.LNKTYPE}
    assert tar.getmember("link").linkname == "bin/tool"
    assert tar.getmember("bin").pax_headers["mtime"] == "1700000000.123456789", "fontconfig's cache depends on it"


def test_a_root_file_system_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(images.tar_stream(tmp_path / "nowhere"))


class FakePauses:
    """An engine whose first pauses fail with these words; `asked` counts all."""

    def __init__(self, failures: int, said: str) -> None:
        self.asked, self._failures, self._said = 0, failures, said
        self.api = self

    def pause(self, name: str) -> None:
        from docker.errors import APIError

        self.asked += 1
        if self.asked <= self._failures:
            raise APIError(self._said)


def test_a_container_that_is_slow_to_stop_is_paused_at_a_later_attempt() -> None:
    client = FakePauses(2, "Cannot pause container dart-1: OCI runtime pause failed: unable to freeze")
    container.pause(client, name="dart-1")
    assert client.asked == 3


@pytest.mark.parametrize(
    ("said", "timeout_s"), [("unable to freeze", 0.0), ("Container dart-1 is not running", container.PAUSE_TIMEOUT_S)]
)
def test_a_container_that_cannot_be_paused_is_told_so(said: str, timeout_s: float) -> None:
    from docker.errors import APIError

    client = FakePauses(9, said)
    with pytest.raises(APIError, match=said):
        container.pause(client, name="dart-1", timeout_s=timeout_s)
    assert client.asked <= 2
