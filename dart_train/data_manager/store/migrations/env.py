"""Alembic environment: it runs on the connection that `dart_train.data_manager.store.database` provides."""

from __future__ import annotations

from alembic import context

from dart_train.data_manager.store.models import StoreBase

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=StoreBase.metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
