"""Desktops of a killed worker are given back by the next process of its name, but for those that unfinished rollouts need."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dart_agent.rollouts.upkeep import lease_labels, release_former_leases
from dart_envs.errors import LeaseLostError

MINE = lease_labels("rollout-vllm-0", Path("/run/data-ab12.sock"))


@dataclass(frozen=True)
class FakeView:
    lease_id: str
    labels: dict[str, str]


@dataclass
class FakeRegister:
    """A farm with leases; `ended`: those that end before they can be attached to."""

    views: list[Any]
    ended: set[str] = field(default_factory=set)
    released: list[str] = field(default_factory=list)

    async def leases(self) -> list[Any]:
        return self.views

    async def attach(self, reference: str, *, takeover: bool = False) -> Any:
        assert takeover, "calls of the former process may still be on their way"
        if reference in self.ended:
            raise LeaseLostError(f"Lease {reference} has ended.")
        register = self

        class FakeLease:
            async def release(self) -> None:
                register.released.append(reference)

        return FakeLease()


def view(lease_id: str, **labels: str) -> FakeView:
    return FakeView(lease_id, MINE | labels)


async def test_only_the_leases_of_the_same_worker_of_the_same_run_are_given_back() -> None:
    other_run = lease_labels("rollout-vllm-0", Path("/run/data-cd34.sock"))
    assert lease_labels("w", "http://127.0.0.1:8790")["run"] != lease_labels("w", "http://127.0.0.1:8791")["run"]
    proxy = "https://data.example"
    assert lease_labels("w", f"{proxy}/run-a")["run"] != lease_labels("w", f"{proxy}/run-b")["run"]
    assert lease_labels("w", f"{proxy}/run-a/") == lease_labels("w", f"{proxy}/run-a")
    farm = FakeRegister(
        [
            view("a"),
            view("b", worker="rollout-vllm-1"),
            FakeView("c", other_run),
            view("d", more="x"),
            FakeView("e", {}),
        ]
    )
    assert await release_former_leases(farm, MINE, []) == 2
    assert farm.released == ["a", "d"]


async def test_a_desktop_that_an_unfinished_rollout_is_continued_on_stays() -> None:
    farm = FakeRegister([view("a"), view("b")])
    assert await release_former_leases(farm, MINE, ["unix:///run/farm.sock#a"]) == 1
    assert farm.released == ["b"]


async def test_a_lease_that_has_ended_meanwhile_is_passed_by() -> None:
    farm = FakeRegister([view("a"), view("b")], ended={"a"})
    assert await release_former_leases(farm, MINE, []) == 1
