"""The recipe of a run: one TOML file, checked completely before anything starts.

Role: the single schema of `dart-train run`, one module per section. Rule: unknown keys and wrong types are errors that name the path of the
key; contradicting values are errors here, not after forty minutes; the package imports neither torch nor vLLM. Non-goals: creating paths,
starting anything.
"""

from dart_train.config.curation import CurationSection
from dart_train.config.data import DataSection
from dart_train.config.desktops import DesktopSection
from dart_train.config.evaluation import EvalSection
from dart_train.config.inference import InferenceSection
from dart_train.config.loading import Override, RecipeError, load_recipe
from dart_train.config.model import ModelSection
from dart_train.config.recipe import Recipe
from dart_train.config.rollout import RolloutSection
from dart_train.config.run import LimitSection, RunSection
from dart_train.config.tasks import DemoSection, FamilyLimitSection, TaskSection
from dart_train.config.tracking import TrackingSection
from dart_train.config.train import TrainSection
from dart_train.config.warmup import WarmupSection

__all__ = [
    "CurationSection",
    "DataSection",
    "DemoSection",
    "DesktopSection",
    "EvalSection",
    "FamilyLimitSection",
    "InferenceSection",
    "LimitSection",
    "ModelSection",
    "Override",
    "Recipe",
    "RecipeError",
    "RolloutSection",
    "RunSection",
    "TaskSection",
    "TrackingSection",
    "TrainSection",
    "WarmupSection",
    "load_recipe",
]
