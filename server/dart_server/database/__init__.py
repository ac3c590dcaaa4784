"""The farm's database: connection, write queue, migrations, and the repository, the only place with SQL."""
