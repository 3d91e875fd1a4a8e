"""`python -m deploy.migrations "what changes"`: write the next migration from the current models.

Review the generated file: Alembic writes a renamed column as a dropped and a new one.
"""

import sys
import tempfile
from pathlib import Path

from alembic import command
from alembic.script import ScriptDirectory

from shared.db.migrations import configuration, migrate, opened


def main(message: str) -> None:
    """Compare the models with a database created by the existing migrations."""
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{Path(directory) / 'schema.db'}"
        migrate(url)
        with opened(url) as connection:
            config = configuration(connection)
            number = len(list(ScriptDirectory.from_config(config).walk_revisions())) + 1
            command.revision(config, message, autogenerate=True, rev_id=f"{number:04}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
