"""The steps of the deployment guide fit each other and the files that they install. None of them is run here: no systemd, no cluster."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from snippets import read_page

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "server" / "deploy"
GUIDE = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """What the blocks of a section of the guide say."""
    text = GUIDE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    return "\n".join(block.text for block in read_page(text))


def setting(name: str) -> str:
    """A setting of the unit."""
    (value,) = re.findall(rf"^{name}=(.*)$", (DEPLOY / "dart-farm.service").read_text(), re.MULTILINE)
    return str(value)


def manifests() -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def test_what_the_unit_starts_is_what_the_steps_install() -> None:
    steps = section("As a service, with systemd")
    program = Path(shlex.split(setting("ExecStart"))[0])
    assert f"python3 -m venv {program.parents[1]}\n" in steps
    home = setting("Environment").removeprefix("DART_HOME=")
    assert f"sudo env DART_HOME={home} {program} setup --user dart\n" in steps
    assert f"sudo tee {setting('EnvironmentFile').removeprefix('-')}\n" in steps
    order = ["useradd", "pip install", "setup --user dart", "install -D", "enable-linger", "user@", "enable --now"]
    assert [steps.index(word) for word in order] == sorted(steps.index(word) for word in order)


def test_sudo_is_given_the_whole_path_of_our_programs() -> None:
    """It drops PATH, so that it does not find what a virtual environment has."""
    pages = [GUIDE, (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")]
    assert [found for page in pages for found in re.findall(r"sudo dart-\w+", page)] == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_reads_the_unit_and_its_drop_in(tmp_path: Path) -> None:
    program = shlex.split(setting("ExecStart"))[0]
    here = shutil.which("true") or ""
    unit = (DEPLOY / "dart-farm.service").read_text()
    (drop_in,) = (block.text for block in read_page(GUIDE) if block.file == "network.conf")
    assert program in drop_in
    command = ["systemd-analyze", "verify", "--user", "--man=no", str(tmp_path / "dart-farm.service")]
    (tmp_path / "dart-farm.service").write_text(unit.replace(program, here))
    (tmp_path / "dart-farm.service.d").mkdir()
    (tmp_path / "dart-farm.service.d" / "network.conf").write_text(drop_in.replace(program, here))
    place = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, env=place, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_names_of_the_manifests_are_those_of_the_steps() -> None:
    steps, found = section("Kubernetes"), manifests()
    pod = found["StatefulSet"]["spec"]["template"]["spec"]
    labels = found["NetworkPolicy"]["spec"]["ingress"][0]["from"][0]["namespaceSelector"]["matchLabels"]
    for name, value in (labels | pod["nodeSelector"]).items():
        assert f"{name}={value}\n" in steps
    secret = next(one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one)
    assert f"create secret tls {secret} --cert=tls.crt --key=tls.key" in steps
    (image,) = re.findall(r"sed \"s\|(image: .*)\$\|", steps)
    assert image == f"image: {pod['containers'][0]['image']}"
    names = next(one["value"] for one in pod["containers"][0]["env"] if one["name"] == "DART_ALLOWED_HOSTS")
    assert all(f"DNS:{name}" in steps for name in yaml.safe_load(names))
    assert (
        f"SSL_CERT_FILE={next(one['value'] for one in pod['containers'][0]['env'] if one['name'] == 'DART_TLS_CERT')} "
        in steps
    )


def test_images_are_built_where_containers_and_pods_look_for_them() -> None:
    (home,) = (
        one["hostPath"]["path"]
        for one in manifests()["StatefulSet"]["spec"]["template"]["spec"]["volumes"]
        if "hostPath" in one
    )
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["farm"]
    assert f"{home}:{home}:ro" in compose["volumes"]
    assert f"DART_HOME={home} /opt/dart/bin/dart-farm images build basic\n" in section("Compose")
    assert f"`{home}` of the node" in GUIDE
