"""What is deployed asks for what the farm has: options, settings, routes, paths. None of it is run here: no registry, no cluster."""

from __future__ import annotations

import configparser
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from farm_harness import Api

from dart_server.http.app import create_app
from dart_server.process.host_setup import SYSTEM_PACKAGES, SYSTEM_PYTHON
from dart_server.settings import FarmSettings

DEPLOY = Path(__file__).parents[3] / "server" / "deploy"
SERVE = (Path(__file__).parents[3] / "server" / "dart_server" / "cli" / "process.py").read_text()


def compose() -> dict[str, Any]:
    service: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["farm"]
    return service


def manifests() -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = manifests()["StatefulSet"]["spec"]["template"]["spec"]
    return spec


def unit() -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "dart-farm.service")
    return parser["Service"]


def image() -> dict[str, str]:
    """The environment that the container's image sets."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    [line] = [line for line in text.splitlines() if line.startswith("ENV ")]
    return dict(pair.split("=", 1) for pair in shlex.split(line.removeprefix("ENV ")))


def commands() -> Iterator[tuple[str, list[str]]]:
    yield "compose", compose()["command"]
    yield "kubernetes", pod()["containers"][0]["args"]
    yield "systemd", shlex.split(unit()["ExecStart"])[1:]


@pytest.mark.parametrize(("where", "command"), list(commands()))
def test_every_option_is_one_of_serve(where: str, command: list[str]) -> None:
    assert command[0] == "serve"
    known = {f"--{name.replace('_', '-')}" for name in re.findall(r"^    (\w+): Annotated", SERVE, re.MULTILINE)}
    options = [word for word in command if word.startswith("--")]
    assert options
    assert set(options) <= known, where


def environments() -> dict[str, dict[str, str]]:
    kubernetes = {one["name"]: one["value"] for one in pod()["containers"][0]["env"]}
    return {"compose": compose()["environment"], "kubernetes": kubernetes}


@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_every_setting_is_one_and_they_agree(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {name: value for name, value in (image() | environments()[where]).items() if name.startswith("DART_")}
    assert {name.removeprefix("DART_").lower() for name in given} <= set(FarmSettings.model_fields)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    command = dict(commands())[where]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    named = {name.removeprefix("--").replace("-", "_"): value for name, value in options.items()}
    settings = FarmSettings(**named)
    assert settings.port == 8700
    assert settings.host == "127.0.0.1" or settings.tls_cert, "beyond loopback with TLS only"
    assert not settings.insecure_plain_http


async def test_the_probes_ask_for_routes_that_need_no_key(api: Api) -> None:
    paths = create_app(api.farm).openapi()["paths"]
    container = pod()["containers"][0]
    probes = [container[name]["httpGet"] for name in ("readinessProbe", "livenessProbe")]
    asked = [probe["path"] for probe in probes] + re.findall(r"8700(/\w+)", str(compose()["healthcheck"]["test"]))
    assert asked == ["/readyz", "/healthz", "/readyz"]
    for path in asked:
        assert "security" not in paths[path]["get"]
    assert {probe["scheme"] for probe in probes} == {"HTTPS"}, "the farm speaks TLS there"


def test_the_parts_of_the_manifests_fit_each_other() -> None:
    found, container = manifests(), pod()["containers"][0]
    stateful = found["StatefulSet"]["spec"]
    named = {one["name"] for one in pod()["volumes"]} | {
        one["metadata"]["name"] for one in stateful["volumeClaimTemplates"]
    }
    assert {one["name"] for one in container["volumeMounts"]} == named
    labels = stateful["template"]["metadata"]["labels"]
    assert labels == stateful["selector"]["matchLabels"] == found["Service"]["spec"]["selector"]
    assert labels == found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]
    assert stateful["serviceName"] == found["Service"]["metadata"]["name"]
    assert stateful["replicas"] == 1, "the database has one farm"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports[found["Service"]["spec"]["ports"][0]["targetPort"]] == 8700
    mounted = {one["mountPath"] for one in container["volumeMounts"]}
    paths = {one["name"]: one["value"] for one in container["env"]}
    assert image()["DART_HOME"] in mounted
    for name in ("DART_STATE_DIR", "DART_RUNTIME_DIR"):
        assert str(Path(image()[name]).parent) in mounted, "below its mount, which is open to others"
    assert str(Path(paths["DART_TLS_CERT"]).parent) in mounted
    assert str(Path(paths["DART_SNAPSHOT_DIR"]).parent) in mounted


def test_state_and_images_outlive_the_container_of_compose() -> None:
    whole, service = yaml.safe_load((DEPLOY / "compose.yaml").read_text()), compose()
    targets = {target: source for source, target in (one.split(":")[:2] for one in service["volumes"])}
    below = str(Path(image()["DART_STATE_DIR"]).parent)
    assert targets[below] in whole["volumes"]
    assert targets[image()["DART_HOME"]] == image()["DART_HOME"], "the host's images, as on a node of Kubernetes"
    assert service["tmpfs"][0].split(":")[0] == str(Path(image()["DART_RUNTIME_DIR"]).parent)
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).samefile(DEPLOY / "Dockerfile")
    assert "privileged" not in service
    assert "ports" not in service, "on loopback alone"


def test_the_container_has_what_the_root_helper_needs() -> None:
    """The pod reaches nothing outside, so that what the setup fetches on a host must be in its image."""
    text = (DEPLOY / "Dockerfile").read_text()
    packages = re.findall(r"--no-install-recommends (.*) \\", text)[0].split()
    assert {SYSTEM_PACKAGES[program] for program in (SYSTEM_PYTHON, "runc")} <= set(packages)
    assert f'{SYSTEM_PYTHON} -IS "$helper/dart-criu" install' in text


def test_a_stop_has_the_time_it_takes() -> None:
    from dart_server.cli.process import STOP_TIMEOUT_S

    assert float(unit()["TimeoutStopSec"]) >= STOP_TIMEOUT_S
    assert pod()["terminationGracePeriodSeconds"] >= STOP_TIMEOUT_S
    assert float(compose()["stop_grace_period"].removesuffix("s")) >= STOP_TIMEOUT_S
