"""`render_mode="human"` on a farm of simulated desktops: an address on loopback that logs a browser in once, and no key anywhere."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from served_farm import served_farm

from dart_envs.envs.env import DartOSWorldEnv
from dart_envs.farm import live
from dart_envs.tasks import parse_task

TASK = {
    "id": "live-view",
    "instruction": "Look.",
    "evaluator": {"func": "infeasible"},
    "publish_setup": False,
}


@pytest.fixture
def url() -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory(prefix="dart-view-") as place,
        served_farm(Path(place), provider="sim", max_desktops=1) as url,
    ):
        yield url


def test_a_browser_without_a_key_sees_the_desktop_of_an_env_by_its_printed_address(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "has_browser", lambda: False)
    key = (Path(urlsplit(url).path).parent / "farm.key").read_text().strip()
    env = DartOSWorldEnv(parse_task(TASK, name="live-view"), resolution=(640, 400), farm=url, render_mode="human")
    try:
        env.reset()
        env.reset()
        told = capsys.readouterr().out
        assert key not in told
        (address,) = re.findall(r"http://127\.0\.0\.1:\d+/\S+", told)
        parts = urlsplit(address)
        lease_id, ticket = parts.fragment.removeprefix("/leases/").split("?ticket=")
        base = f"http://{parts.netloc}"
        with httpx.Client(base_url=base, headers={"origin": base}, trust_env=False) as browser:
            assert "<title>" in browser.get(parts.path).text
            assert browser.get(f"/dashboard/api/leases/{lease_id}").status_code == 401
            assert browser.post("/dashboard/api/ticket", json={"ticket": ticket}).status_code == 200
            seen = browser.get(f"/dashboard/api/leases/{lease_id}").json()
            assert browser.get(f"/dashboard/api/desktops/{seen['desktop_id']}/picture").status_code == 200
            assert browser.post("/dashboard/api/ticket", json={"ticket": ticket}).status_code == 401, "it works once"
    finally:
        env.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(base, trust_env=False)
