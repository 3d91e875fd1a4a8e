"""Screenshots, which continuous integration stores."""

from pathlib import Path

from playwright.sync_api import Page

from tests.services.directories import REPOSITORY

PICTURES = REPOSITORY / "var" / "log" / "browser"


def take_picture(page: Page, name: str) -> Path:
    """Take a screenshot."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    path = PICTURES / f"{name}.png"
    page.screenshot(path=path)
    return path
