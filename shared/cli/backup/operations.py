"""Backup and restore of an installation."""

from pathlib import Path

from shared.backup import store
from shared.backup.manifest import Manifest
from shared.cli.local.installation import Installation


class BackupOperations(Installation):
    """Backup and restore. `shared.backup.store` says which errors they raise."""

    def back_up(self, folder: Path, passphrase: str | None) -> Manifest:
        """Write a backup into a new folder."""
        return store.back_up(self._settings, folder, passphrase)

    def restore(self, folder: Path, passphrase: str | None) -> tuple[Manifest, int]:
        """Restore a backup, and migrate it to this version's schema.

        Returns:
            What was restored, and the number of sandboxes whose idle deadlines begin again.
        """
        made = store.restore(self._settings, folder, passphrase)
        self.migrate()
        with self.writing() as session:
            return made, store.restart_deadlines(session)
