"""Backup and restore of an installation."""

from pathlib import Path

from shared.backup import former_files, store
from shared.backup.manifest import Manifest
from shared.changes import change_feed
from shared.cli.local.installation import LocalInstallation
from shared.clock import now
from shared.db import unfinished_restore
from shared.nodes import registry as node_registry
from shared.private_files import share_with_service
from shared.retention import tombstones
from shared.users import api_keys

# Sandboxes per transaction, which then takes less than 100 ms.
BATCH = 50
# Tombstones per transaction: the same.
TOMBSTONES = 500


class BackupOperations(LocalInstallation):
    """Backup and restore. `shared.backup.store` documents the errors that they raise."""

    def back_up(self, folder: Path, passphrase: str | None) -> Manifest:
        """Write a backup into a new folder."""
        return store.back_up(self._settings, folder, passphrase)

    def restore(self, folder: Path, passphrase: str | None) -> tuple[Manifest, int]:
        """Restore a backup, and migrate it to this version's schema. An interrupted restore continues where it stopped.

        Returns:
            What was restored, and the number of sandboxes whose idle deadlines were restarted.
        """
        made = store.restore(self._settings, folder, passphrase)
        self.prepare()
        self._keep_unknown_key()
        share_with_service(self._settings.admin_key_file, with_group=False)  # as if the service had created it
        with self.reading() as session:
            ids = store.with_deadlines(session)
        for start in range(0, len(ids), BATCH):
            with self.writing() as session:
                store.restart_deadlines(session, ids[start : start + BATCH])
        self._restart_retention()
        with self.writing() as session:
            store.forget_removals(session)
            store.keep_started(session)
            node_registry.mark_unreported(session)
            change_feed.skip_numbers(session)
            unfinished_restore.clear(session)
        return made, len(ids)

    def _restart_retention(self) -> None:
        began, is_complete = now(), False
        while not is_complete:
            with self.writing() as session:
                is_complete = tombstones.restart_retention(session, began, limit=TOMBSTONES) < TOMBSTONES

    def _keep_unknown_key(self) -> None:
        """Rename the first user's key file if the database does not know the key, which a starting service prints."""
        file = self._settings.admin_key_file
        if not file.exists():
            return
        with self._database() as database:
            [holder] = api_keys.authenticate(database, self.vault(), [file.read_text().strip()])
        if holder is None:
            former_files.keep(file)
