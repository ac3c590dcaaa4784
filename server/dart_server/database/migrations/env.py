"""Alembic's entry: runs the migrations on the connection that `dart_server.database.write_queue` hands over."""

from __future__ import annotations

from alembic import context

from dart_server.database.models import FarmTable

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=FarmTable.metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
