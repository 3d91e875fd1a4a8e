"""`python -m deploy.migrations "what changes"`: write the next migration from the current models.

Review the generated file: Alembic writes a renamed column as a dropped and a new one.
"""

import sys
import tempfile
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from shared.db.migrations import configuration, migrate, opened


def main(message: str) -> None:
    """Compare the models with a database created by the existing migrations."""
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{Path(directory) / 'schema.db'}"
        migrate(url)
        with opened(url) as connection:
            config = configuration(connection)
            command.revision(config, message, autogenerate=True, rev_id=next_number(config))


def next_number(config: Config) -> str:
    """The number after the newest migration's. It is not their count: numbers may be missing."""
    return f"{int(ScriptDirectory.from_config(config).get_current_head() or 0) + 1:04}"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
