"""Disk images as files, and their remains after a crash."""

from pathlib import Path

from worker.engine.disk_images import DiskImages

NAME = "aw-1"


def test_disk_that_a_crash_has_left_half_made_is_found_and_removed(tmp_path: Path) -> None:
    """It may be all that a deleted sandbox has left, so its removal depends on it."""
    images = DiskImages(tmp_path, "installation")
    images.folder.mkdir(parents=True)
    half_made = images.path(NAME).with_suffix(".new")
    half_made.touch()
    assert images.names() == [NAME]
    assert images.exists(NAME)
    images.remove(NAME)
    assert (images.names(), images.exists(NAME), half_made.exists()) == ([], False, False)
