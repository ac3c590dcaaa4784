"""The plan of a session: the defaults, and what the recipe `desktop` lays down."""

from pathlib import Path

from dart_guest import session

RECIPE_PLAN = Path(__file__).resolve().parents[3] / "vm_images/recipes/desktop/etc/dart/session.toml"


def test_an_image_without_a_plan_runs_a_bare_window_manager(tmp_path: Path) -> None:
    plan = session.read_plan(tmp_path / "missing.toml")
    assert (plan.desktop, plan.window_manager[0], plan.shell, plan.windows) == ("Openbox", "openbox", (), ())


def test_the_full_desktop_starts_a_panel_and_icons_and_waits_for_them() -> None:
    plan = session.read_plan(RECIPE_PLAN)
    assert plan.desktop == "XFCE"
    assert "--compositor=off" in plan.window_manager
    assert [argv[0] for argv in plan.shell] == ["pulseaudio", "xfsettingsd", "xfce4-panel", "xfdesktop"]
    assert plan.windows == ("Xfce4-panel", "Xfdesktop")
    assert all(isinstance(value, str) for value in plan.environment.values())
