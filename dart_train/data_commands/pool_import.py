"""Successes of other runs in the experience pool of a run: by `dart-train data import`, and by the recipe before training.

Role: `import_folder` for one folder, `import_pool` for those of `curation.pool_import`. Rule: no data manager is at work on the database;
what the recipe names is imported once, which the state of the run notes, so that the folders may be gone when it is continued. Non-goals:
which trajectories are taken, and as what (`portable`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from dart_agent.data_client.image_location import open_images
from dart_agent.errors import AgentError, ConfigError
from dart_train.config import Recipe, RecipeError
from dart_train.data_commands.portable import IMPORTED_BEFORE, import_trajectories
from dart_train.data_manager.__main__ import placeholders_of, writer_lock
from dart_train.data_manager.catalog import SuiteCatalog
from dart_train.data_manager.store.step_checks import Placeholders
from dart_train.data_manager.store.trajectories import TrajectoryStore
from dart_train.run.components import database_location, image_location, start_model
from dart_train.run.paths import RunPaths
from dart_train.run.recipe_policy import initial_policy
from dart_train.run.state import RunState


def import_folder(recipe: Recipe, paths: RunPaths, source: Path, name: str | None = None) -> tuple[int, Counter[str]]:
    """Take the successes of a folder into the experience pool of a run.

    Args:
        recipe: The recipe of the run.
        paths: Its folder.
        source: What `dart-train data export --format portable` wrote.
        name: What the source is called; None: as its folder.

    Returns:
        Number of imported trajectories, and by reason how many were not.

    Raises:
        StoreError: The folder or the database cannot be read, or `name` cannot be used.
        BlobError: An image cannot be stored.
    """
    store = TrajectoryStore.open(
        database_location(recipe, paths),
        SuiteCatalog(recipe.tasks.task_folder).split_of,
        placeholders=_placeholders(recipe, paths),
    )
    try:
        return import_trajectories(
            store,
            open_images(image_location(recipe, paths)),
            source,
            source.resolve().name.lower() if name is None else name,
            recipe.reward.success_at,
            recipe.reward.source,
        )
    finally:
        store.close()


def _placeholders(recipe: Recipe, paths: RunPaths) -> Placeholders:
    """The placeholders of the policy that the run starts from; before a warm start, those of what it starts from. Unknown without files."""
    try:
        start = start_model(recipe, paths)
        return placeholders_of(start if (start / "config.json").is_file() else initial_policy(recipe, paths))
    except ConfigError:  # it is not on this host
        return placeholders_of(None)


def import_pool(recipe: Recipe, paths: RunPaths, state: RunState, note: Callable[[str], None]) -> None:
    """Take the successes that the recipe names into the experience pool, where that was not done before.

    Args:
        recipe: The recipe of the run.
        paths: Its folder.
        state: Its progress; changed and saved.
        note: Shows a sentence.

    Raises:
        RecipeError: A folder cannot be read, or has nothing that this run can use.
    """
    if state.pool_imported:
        return
    for folder in recipe.curation.pool_import:
        source = folder.expanduser().resolve()
        name = re.sub(r"[^a-z0-9._-]+", "-", source.name.lower()).strip("-._") or "pool"
        try:
            with writer_lock(database_location(recipe, paths)):
                imported, left_out = import_folder(recipe, paths, source, name)
        except AgentError as error:
            raise RecipeError(f"curation.pool_import: {error}") from error
        told = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items()))
        if not imported and not left_out[IMPORTED_BEFORE]:
            raise RecipeError(
                f"curation.pool_import: nothing in {folder} can complete a group of this run ({told or 'it is empty'}): give successes of "
                "train tasks of its suite, with log-probs, or leave the folder out"
            )
        note(f"experience pool: {imported} successes of {folder}" + (f"; left out: {told}" if told else ""))
    state.pool_imported = True
    state.save(paths.state)
